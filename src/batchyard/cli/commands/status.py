"""The command `batchyard status`: prints the status report of a running platform."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from batchyard.api.meta import Obj
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.cli import output
from batchyard.cli.background import require_running_platform
from batchyard.cli.options import DATA_DIR, Output, PlatformDir
from batchyard.cli.output import render_document
from batchyard.server.kubeconfig.access import KubeconfigError, owner_tls_context
from batchyard.server.platform.data_dir import KUBECONFIG_FILE, PlatformProcess
from batchyard.server.platform.status_report import STATUS_REPORT_PATH

_RESPONSE_TIMEOUT: Final = 10  # seconds
#: The maximum number of kinds whose object counts are shown without `-o wide`.
_KINDS_SHOWN_MAX: Final = 4


def print_status(folder: Path, output_format: Output) -> None:
    """Print the status report; exit with 1 if no platform is running or the platform does not respond."""
    platform_process = require_running_platform(folder)
    try:
        status_report = fetch_status(platform_process, folder)
    except KubeconfigError as error:
        output.fail(f"batchyard: {error}")
    except (OSError, http.client.HTTPException) as error:
        problem = f"{platform_process.url}, pid {platform_process.pid}, does not respond: {error}"
        output.fail(f"batchyard: {problem}; run the command again, or restart it with `batchyard down` and `up`")
    except ValueError as error:
        problem = f"{platform_process.url}, pid {platform_process.pid}, does not report its status: {error}"
        output.fail(f"batchyard: {problem}; run the command again, or restart it with `batchyard down` and `up`")
    kubeconfig = str((folder / KUBECONFIG_FILE).resolve())
    document = {"url": platform_process.url, "pid": platform_process.pid, "kubeconfig": kubeconfig, **status_report}
    if output_format.is_table:
        output.write(format_status(document, is_wide=output_format is Output.WIDE))
    else:
        output.write(render_document(document, output_format))


def fetch_status(platform_process: PlatformProcess, folder: Path) -> dict[str, Any]:
    """Request a platform's status report over a new connection, as its owner.

    Raises KubeconfigError, or the errors of `read_status`.
    """
    connection = open_owner_connection(platform_process, folder)
    try:
        return read_status(connection)
    finally:
        connection.close()


def open_owner_connection(platform_process: PlatformProcess, folder: Path) -> http.client.HTTPConnection:
    """Return an HTTP connection to a platform; for an https URL, with the owner's client certificate.

    Raises KubeconfigError if the credentials cannot be read.
    """
    url_parts = urlsplit(platform_process.url)
    assert url_parts.hostname is not None, f"the platform URL {platform_process.url} has no host"
    if url_parts.scheme == "http":
        return http.client.HTTPConnection(url_parts.hostname, url_parts.port, timeout=_RESPONSE_TIMEOUT)
    context = owner_tls_context(folder)
    return http.client.HTTPSConnection(url_parts.hostname, url_parts.port, timeout=_RESPONSE_TIMEOUT, context=context)


def read_status(connection: http.client.HTTPConnection) -> dict[str, Any]:
    """Request the platform's status report; raise OSError, HTTPException or ValueError on failure."""
    return request_as_owner(connection, STATUS_REPORT_PATH)


def request_as_owner(connection: http.client.HTTPConnection, path: str, put_body: Obj | None = None) -> dict[str, Any]:
    """GET a path, or PUT `put_body` to it if set; return the JSON response.

    Raises OSError, HTTPException or ValueError.
    """
    connection.request("GET" if put_body is None else "PUT", path, None if put_body is None else json.dumps(put_body))
    response = connection.getresponse()
    content = response.read()
    if response.status != http.client.OK:
        raise ValueError(f"{path}: {response.status} {response.reason}")
    document: dict[str, Any] = json.loads(content)
    return document


def format_status(status_report: Mapping[str, Any], *, is_wide: bool) -> str:
    """Format the status report, one line per field; with `is_wide`, with the number of objects of every kind."""
    nodes, workloads = status_report["nodes"], status_report["workloads"]
    text_by_label = {
        "url": f"{status_report['url']}  pid {status_report['pid']}",
        "kubeconfig": status_report["kubeconfig"],
        "health": status_report["health"],
        "version": status_report["version"],
        "up": f"{status_report['uptimeSeconds']} s, since {status_report['started']}",
        "time": f"{status_report['time']}, at {status_report['speed']:g}x",
        "revision": status_report["revision"],
        "journal": f"{status_report['journalBytes'] / 1_000_000:.1f} MB, --sync {status_report['sync']}",
        "nodes": f"{nodes['ready']} ready of {nodes['all']}",
        "workloads": f"{workloads['pending']} pending, {workloads['admitted']} admitted, {workloads['all']} in all",
        "objects": _describe_objects(status_report["objects"], is_wide=is_wide),
    }
    text_by_label |= _local_node_rows(status_report["local"]) if "local" in status_report else {}
    label_width = max(map(len, text_by_label)) + 2
    return "".join(f"{name:{label_width}}{value}\n" for name, value in text_by_label.items())


def _describe_objects(counts: Mapping[str, int], *, is_wide: bool) -> str:
    shown_counts = sorted(counts.items(), key=lambda each: -each[1])[: None if is_wide else _KINDS_SHOWN_MAX]
    omitted_count = len(counts) - len(shown_counts)
    omission_text = f" and {count_with_noun(omitted_count, 'more kind')} (all: -o wide)" if omitted_count else ""
    names = [f"{count:,} {kind if is_wide else kind.partition('.')[0]}" for kind, count in shown_counts]
    return f"{sum(counts.values()):,} in all: {', '.join(names)}{omission_text}" if counts else "none"


def _local_node_rows(node_status: Mapping[str, Any]) -> dict[str, str]:
    isolation_status = node_status["isolation"]
    mechanisms = {
        f"bubblewrap {isolation_status['bubblewrap']}": isolation_status["bubblewrap"],
        "a network for each pod": isolation_status["podNetwork"],
        f"cgroups {isolation_status['cgroups']}": isolation_status["cgroups"],
        "a user namespace": isolation_status["userNamespace"],
        "a user for each pod": isolation_status.get("usersOfPods"),
        "seccomp": isolation_status.get("seccomp"),
    }
    mechanism_names = ", ".join(mechanism for mechanism, is_available in mechanisms.items() if is_available)
    pods_text = f"{count_with_noun(node_status['pods'], 'pod')} {select_verb(node_status['pods'], 'runs', 'run')}"
    rows = {"this machine": f"node {node_status['node']}, {pods_text}", "isolation": mechanism_names or "none"}
    rows["not enforced"] = "NetworkPolicy: pods reach all other pods"
    rows["images"] = _describe_images(node_status)
    for number, gpu in enumerate(node_status["gpus"]):
        usage_text = f", {gpu['busyPercent']} % busy, {gpu['celsius']} °C" if "busyPercent" in gpu else ""
        memory_text = f"{gpu.get('usedBytes', 0) >> 20} of {gpu['memoryBytes'] >> 20} MiB"
        rows[f"GPU {number}"] = f"{gpu['model']} {gpu['uuid']}, {memory_text}{usage_text}, {gpu['pod'] or 'free'}"
    for row in node_status["missing"]:
        rows[f"no {row['what']}"] = f"{row['means']}; {row['remedy']}"
    return rows


def _describe_images(status: Mapping[str, Any]) -> str:
    engine_descriptions = [_describe_engine(engine) for engine in status["engines"]]
    if not engine_descriptions:
        return "only images set by --image; for other images: apt-get install podman runc, or docker"
    message = f"{engine_descriptions[0]} images without --image"
    message += "".join(
        f"; {description} images of --image NAME={engine['name']}:"
        for description, engine in zip(engine_descriptions[1:], status["engines"][1:], strict=True)
    )
    return message + (f"; podman cannot run them itself: {status['runsNone']}" if status["runsNone"] else "")


def _describe_engine(engine: Mapping[str, Any]) -> str:
    name_and_version = f"{engine['name']} {engine['version']}"
    return f"{name_and_version} pulls and runs" if engine["runs"] else f"{name_and_version} pulls, bubblewrap runs"


def status(
    data_dir: PlatformDir = DATA_DIR,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show the state of a platform: health, time, counts, queues, nodes, journal."""
    print_status(data_dir, output)
