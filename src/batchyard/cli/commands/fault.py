"""`batchyard fault node`: inject node failures into a running platform.

A machine failure is written to the status of its Instance, as scenario faults do. A drain works as kubectl's.

"""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.cli import output
from batchyard.cli.background import process_of
from batchyard.cli.commands.status import owner_connection, read_status
from batchyard.cli.options import DATA_DIR
from batchyard.cloud.catalog import instances
from batchyard.nodes.conditions import DrainOptions, drain
from batchyard.server.kubeconfig.access import KubeconfigError

_INSTANCES: Final = f"/apis/{scheme.kind_info(scheme.INSTANCE).api_version}/instances"
_NODES: Final = "/api/v1/nodes"
_MERGE: Final = "application/merge-patch+json"
#: As `kubectl drain --force --ignore-daemonsets --delete-emptydir-data`.
_OPTIONS: Final = DrainOptions(force=True, ignore_daemonsets=True, delete_emptydir_data=True)


class _Owner:
    """Requests to the platform as its owner, over one connection."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def get(self, path: str) -> Obj | None:
        """Return the object or list at a path; None if it does not exist."""
        code, document = self._answer("GET", path)
        if code == http.client.NOT_FOUND:
            return None
        return _must(code, document)

    def patch(self, path: str, change: Mapping[str, Any]) -> None:
        """Apply a merge patch to an object."""
        _must(*self._answer("PATCH", path, change, _MERGE))

    def post(self, path: str, document: Mapping[str, Any]) -> str:
        """Create an object; return the error message, or '' on success."""
        code, answer = self._answer("POST", path, document, "application/json")
        return "" if code < http.client.BAD_REQUEST else str(answer.get("message") or code)

    def now(self) -> Instant:
        """Return the time of the platform."""
        instant: Instant = read_status(self._connection)["instant"]
        return instant

    def _answer(
        self, method: str, path: str, document: Mapping[str, Any] | None = None, media: str = ""
    ) -> tuple[int, dict[str, Any]]:
        body = None if document is None else json.dumps(document)
        self._connection.request(method, path, body, {"Content-Type": media} if media else {})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")


def break_machine(folder: Path, name: str, *, is_reclaimed: bool) -> None:
    """Crash the machine of a node, or reclaim it as its cloud would; ends the command if it has no machine."""
    with _owner_of(folder) as owner:
        instance = _machine_of(owner, name)
        now = owner.now()
        stop = format_time(now + instances.NOTICE)
        if is_reclaimed:
            if instance["spec"].get("provisioning") != "spot":
                output.fail(f"batchyard: the machine of node {name} is not a Spot machine; use --crash")
            changed = instances.in_phase(instance, instances.STOPPING, now, stopAt=stop)
        else:
            changed = instances.in_phase(instance, instances.CRASHED, now)
        owner.patch(f"{_INSTANCES}/{quote(name)}/status", {"status": changed["status"]})
    message = f"is being reclaimed: it stops at {stop}" if is_reclaimed else f"crashed at {format_time(now)}"
    output.report_line(f"batchyard: the machine of node {name} {message}")


def drain_node(folder: Path, name: str) -> None:
    """Cordon a node and evict its pods; ends the command with 1 if an eviction is rejected."""
    with _owner_of(folder) as owner:
        if owner.get(f"{_NODES}/{quote(name)}") is None:
            output.fail(f"batchyard: node {name} not found; `kubectl get nodes` lists the nodes")
        owner.patch(f"{_NODES}/{quote(name)}", {"spec": {"unschedulable": True}})
        found = owner.get(f"/api/v1/pods?fieldSelector={quote('spec.nodeName=' + name)}")
        pods = [] if found is None else drain(found["items"], _OPTIONS).evicted
        refused = {_shown(pod): message for pod in pods if (message := _evict(owner, pod))}
    for pod, message in refused.items():
        output.report_line(f"batchyard: pod {pod} was not evicted: {message}")
    message = f"node {name} is cordoned, {len(pods) - len(refused)} of {len(pods)} pods were evicted"
    if refused:
        output.fail(f"batchyard: {message}; run the command again once the others can be evicted")
    output.report_line(f"batchyard: {message}; kubectl uncordon {name} makes it schedulable again")


@contextmanager
def _owner_of(folder: Path) -> Iterator[_Owner]:
    """Requests to the platform of a data directory; ends the command if the platform does not respond."""
    running = process_of(folder)
    try:
        with closing(owner_connection(running, folder)) as connection:
            yield _Owner(connection)
    except (KubeconfigError, OSError, http.client.HTTPException, ValueError) as error:
        output.fail(f"batchyard: {running.url}: {error}")


def _machine_of(owner: _Owner, name: str) -> Obj:
    """Return the Instance of a node if it is up; ends the command otherwise."""
    instance = owner.get(f"{_INSTANCES}/{quote(name)}")
    if instance is None:
        if owner.get(f"{_NODES}/{quote(name)}") is None:
            output.fail(f"batchyard: node {name} not found; `kubectl get nodes` lists the nodes")
        message = "has no simulated machine: --crash and --reclaim require a simulated node"
        output.fail(f"batchyard: node {name} {message}; --drain works for every node")
    phase = instances.phase_of(instance)
    if phase not in {instances.RUNNING, instances.STOPPING} or instances.is_leaving(instance):
        state = "is being removed" if instances.is_leaving(instance) else f"is in phase {phase or 'Pending'}"
        output.fail(f"batchyard: the machine of node {name} {state}, so it cannot be broken now")
    return instance


def _evict(owner: _Owner, pod: Obj) -> str:
    """Evict a pod; return the reason of a rejection, or ''."""
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    path = f"/api/v1/namespaces/{quote(metadata['namespace'])}/pods/{quote(metadata['name'])}/eviction"
    return owner.post(path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})


def _must(code: int, document: dict[str, Any]) -> Obj:
    """Return the document; ValueError for an error status."""
    if code >= http.client.BAD_REQUEST:
        raise ValueError(f"{code}: {document.get('message') or 'no message'}")
    return document


def _shown(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


# --- fault ---
#
# The options of `batchyard fault`.


app = typer.Typer(name="fault", help="Inject faults into a running platform.", no_args_is_help=True)


@app.callback()
def fault() -> None:
    """Inject faults into a running platform."""


@app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node.")],
    crash: Annotated[bool, typer.Option("--crash", help="Crash its simulated machine until it is repaired.")] = False,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Reclaim its Spot machine, with 30 seconds of notice.")
    ] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Cordon it and evict its pods.")] = False,
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data directory.")] = DATA_DIR,
) -> None:
    """Crash, reclaim or drain a node of a running platform, as its owner."""
    if crash + reclaim + drain != 1:
        raise typer.BadParameter("give one of --crash, --reclaim and --drain")

    if drain:
        drain_node(data_dir, name)
    else:
        break_machine(data_dir, name, is_reclaimed=reclaim)
