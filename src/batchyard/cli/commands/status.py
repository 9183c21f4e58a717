"""`batchyard status`: the status report of a running platform."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from batchyard.cli import output
from batchyard.cli.background import process_of
from batchyard.cli.options import DATA_DIR, Output, PlatformDir
from batchyard.cli.output import render_json, render_yaml
from batchyard.server.kubeconfig.access import KubeconfigError, tls_of_owner
from batchyard.server.platform.data_dir import KUBECONFIG, PlatformProcess
from batchyard.server.platform.status_report import STATUS_REPORT_PATH

_ANSWERS_WITHIN: Final = 10  # seconds


def print_status(folder: Path, form: Output) -> None:
    """Print the report; ends the command with 1 if no platform runs or it does not respond."""
    running = process_of(folder)
    try:
        reported = fetch_status(running, folder)
    except KubeconfigError as error:
        output.fail(f"batchyard: {error}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        output.fail(f"batchyard: {running.url}, pid {running.pid}, does not respond: {error}")
    document = {"url": running.url, "pid": running.pid, "kubeconfig": str((folder / KUBECONFIG).resolve()), **reported}
    if form is Output.JSON:
        output.write(render_json(document))
    elif form is Output.YAML:
        output.write(render_yaml(document))
    else:
        output.write(_lines(document))


def fetch_status(running: PlatformProcess, folder: Path) -> dict[str, Any]:
    """The status report, requested as the owner."""
    connection = owner_connection(running, folder)
    try:
        return read_status(connection)
    finally:
        connection.close()


def owner_connection(running: PlatformProcess, folder: Path) -> http.client.HTTPConnection:
    """A connection to the platform as its owner; it reconnects on the next request after a close."""
    place = urlsplit(running.url)
    assert place.hostname is not None, "the URL of a platform has a host"
    if place.scheme == "http":
        return http.client.HTTPConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN)
    secured = tls_of_owner(folder)
    return http.client.HTTPSConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN, context=secured)


def read_status(connection: http.client.HTTPConnection) -> dict[str, Any]:
    """The status report of the platform; raises OSError, HTTPException or ValueError on failure."""
    return answer_to_owner(connection, STATUS_REPORT_PATH)


def answer_to_owner(
    connection: http.client.HTTPConnection, path: str, put: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The document at a path, after a PUT of `put`; raises OSError, HTTPException or ValueError on failure."""
    connection.request("GET" if put is None else "PUT", path, None if put is None else json.dumps(put))
    response = connection.getresponse()
    content = response.read()
    if response.status != http.client.OK:
        raise ValueError(f"{path}: {response.status} {response.reason}")
    document: dict[str, Any] = json.loads(content)
    return document


def _lines(reported: Mapping[str, Any]) -> str:
    """Format the report, one line per field."""
    nodes, workloads = reported["nodes"], reported["workloads"]
    rows = {
        "url": f"{reported['url']}  pid {reported['pid']}",
        "kubeconfig": reported["kubeconfig"],
        "health": reported["health"],
        "version": reported["version"],
        "up": f"{reported['uptimeSeconds']} s, since {reported['started']}",
        "time": f"{reported['time']}, at {reported['speed']:g}x",
        "revision": reported["revision"],
        "journal": f"{reported['journalBytes'] / 1_000_000:.1f} MB, --sync {reported['sync']}",
        "nodes": f"{nodes['ready']} ready of {nodes['all']}",
        "workloads": f"{workloads['pending']} pending, {workloads['admitted']} admitted, {workloads['all']} in all",
        "objects": ", ".join(f"{count} {kind}" for kind, count in reported["objects"].items()),
    }
    rows |= _of_this_machine(reported["local"]) if "local" in reported else {}
    width = max(map(len, rows)) + 2
    return "".join(f"{name:{width}}{value}\n" for name, value in rows.items())


def _of_this_machine(local: Mapping[str, Any]) -> dict[str, str]:
    """The rows of a local node: isolation of pods, GPUs, and missing features with remedies."""
    apart = local["isolation"]
    ways = {
        f"bubblewrap {apart['bubblewrap']}": apart["bubblewrap"],
        "a network for each pod": apart["podNetwork"],
        f"cgroups {apart['cgroups']}": apart["cgroups"],
        "a user namespace": apart["userNamespace"],
        "a user for each pod": apart.get("usersOfPods"),
        "seccomp": apart.get("seccomp"),
    }
    had = ", ".join(way for way, is_had in ways.items() if is_had)
    rows = {"this machine": f"node {local['node']}, {local['pods']} pods run", "isolation": had or "none"}
    rows["not enforced"] = "NetworkPolicy: pods reach all other pods"
    rows["images"] = _of_images(local)
    for number, gpu in enumerate(local["gpus"]):
        used = f", {gpu['busyPercent']} % busy, {gpu['celsius']} °C" if "busyPercent" in gpu else ""
        memory = f"{gpu.get('usedBytes', 0) >> 20} of {gpu['memoryBytes'] >> 20} MiB"
        rows[f"GPU {number}"] = f"{gpu['model']} {gpu['uuid']}, {memory}{used}, {gpu['pod'] or 'free'}"
    for row in local["missing"]:
        rows[f"no {row['what']}"] = f"{row['means']}; {row['remedy']}"
    return rows


def _of_images(local: Mapping[str, Any]) -> str:
    """Which images can run here, and which engine runs them."""
    ways = [_way(engine) for engine in local["engines"]]
    if not ways:
        return "only those of --image; for others: apt-get install podman runc, or docker"
    message = f"{ways[0]} images without --image"
    message += "".join(
        f"; {way} images of --image NAME={engine['name']}:"
        for way, engine in zip(ways[1:], local["engines"][1:], strict=True)
    )
    return message + (f"; podman cannot run them itself: {local['runsNone']}" if local["runsNone"] else "")


def _way(engine: Mapping[str, Any]) -> str:
    named = f"{engine['name']} {engine['version']}"
    return f"{named} pulls and runs" if engine["runs"] else f"{named} pulls, bubblewrap runs"


def status(
    data_dir: PlatformDir = DATA_DIR,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show the state of a platform: health, time, counts, queues, nodes, journal."""
    print_status(data_dir, output)
