"""The command `batchyard fault node`: crashes, reclaims or drains a node of a running platform.

A machine failure is written to the status of the machine's Instance, as in simulations. A drain evicts
the same pods as `kubectl drain`, but does not wait for their end.
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
from batchyard.api.times import format_second, format_time
from batchyard.base.instant import Instant
from batchyard.cli import output
from batchyard.cli.background import require_running_platform
from batchyard.cli.commands.status import open_owner_connection, read_status
from batchyard.cli.help import HELP_SETTINGS, HelpCommand, HelpGroup
from batchyard.cli.options import DATA_DIR
from batchyard.cloud.catalog import instances
from batchyard.nodes.conditions import DrainOptions, plan_drain
from batchyard.server.kubeconfig.access import KubeconfigError

_INSTANCES_PATH: Final = f"/apis/{scheme.kind_info(scheme.INSTANCE).api_version}/instances"
_NODES_PATH: Final = "/api/v1/nodes"
_MERGE_PATCH_TYPE: Final = "application/merge-patch+json"
#: The options of `kubectl drain --force --ignore-daemonsets --delete-emptydir-data`.
_DRAIN_OPTIONS: Final = DrainOptions(force=True, ignore_daemonsets=True, delete_emptydir_data=True)


class _OwnerClient:
    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def get(self, path: str) -> Obj | None:
        status_code, document = self._send("GET", path)
        if status_code == http.client.NOT_FOUND:
            return None
        return _check_status(status_code, document)

    def patch(self, path: str, patch_document: Mapping[str, Any]) -> None:
        _check_status(*self._send("PATCH", path, patch_document, _MERGE_PATCH_TYPE))

    def post(self, path: str, document: Mapping[str, Any]) -> str:
        """Create an object; return the platform's error message, or '' on success."""
        status_code, response_document = self._send("POST", path, document, "application/json")
        return "" if status_code < http.client.BAD_REQUEST else str(response_document.get("message") or status_code)

    def now(self) -> Instant:
        instant: Instant = read_status(self._connection)["instant"]
        return instant

    def _send(
        self, method: str, path: str, document: Mapping[str, Any] | None = None, media_type: str = ""
    ) -> tuple[int, dict[str, Any]]:
        body = None if document is None else json.dumps(document)
        self._connection.request(method, path, body, {"Content-Type": media_type} if media_type else {})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")


def break_machine(folder: Path, name: str, *, is_reclaimed: bool) -> None:
    """Crash or reclaim (as a cloud would) the simulated machine of a node.

    The command exits if the node has no running simulated machine, or if the machine to reclaim is no Spot machine.
    """
    with _connect_as_owner(folder) as owner:
        instance = _running_instance(owner, name)
        now = owner.now()
        stop_time = now + instances.PREEMPTION_NOTICE
        if is_reclaimed:
            if instance["spec"].get("provisioning") != "spot":
                output.fail(f"batchyard: the machine of node {name} is not a Spot machine; use --crash, not --reclaim")
            changed_instance = instances.with_phase(instance, instances.STOPPING, now, stopAt=format_time(stop_time))
        else:
            changed_instance = instances.with_phase(instance, instances.CRASHED, now)
        owner.patch(f"{_INSTANCES_PATH}/{quote(name)}/status", {"status": changed_instance["status"]})
    message = f"is being reclaimed and stops at {format_second(stop_time)}"
    message = message if is_reclaimed else f"crashed at {format_second(now)}"
    output.report_line(f"batchyard: the machine of node {name} {message}")


def drain_node(folder: Path, name: str) -> None:
    """Cordon a node, and evict the pods that `kubectl drain --force --ignore-daemonsets` evicts.

    Exits with 1 if the node does not exist or an eviction is rejected.
    """
    with _connect_as_owner(folder) as owner:
        if owner.get(f"{_NODES_PATH}/{quote(name)}") is None:
            output.fail(f"batchyard: node {name} not found; `kubectl get nodes` lists the nodes")
        owner.patch(f"{_NODES_PATH}/{quote(name)}", {"spec": {"unschedulable": True}})
        pod_list = owner.get(f"/api/v1/pods?fieldSelector={quote('spec.nodeName=' + name)}")
        pods = [] if pod_list is None else plan_drain(pod_list["items"], _DRAIN_OPTIONS).evicted_pods
        rejection_by_pod = {_pod_key(pod): message for pod in pods if (message := _evict_pod(owner, pod))}
    for pod, message in rejection_by_pod.items():
        output.report_line(f"batchyard: pod {pod} was not evicted: {message}")
    evicted_count = len(pods) - len(rejection_by_pod)
    message = f"node {name} is cordoned; pods evicted: {evicted_count} of {len(pods)}"
    if rejection_by_pod:
        output.fail(f"batchyard: {message}; run the command again once the other pods can be evicted")
    output.report_line(f"batchyard: {message}; kubectl uncordon {name} makes it schedulable again")


@contextmanager
def _connect_as_owner(folder: Path) -> Iterator[_OwnerClient]:
    platform_process = require_running_platform(folder)
    try:
        with closing(open_owner_connection(platform_process, folder)) as connection:
            yield _OwnerClient(connection)
    except (KubeconfigError, OSError, http.client.HTTPException, ValueError) as error:
        message = f"batchyard: request to {platform_process.url} failed: {error}"
        output.fail(f"{message}; `batchyard status` shows whether the platform responds")


def _running_instance(owner: _OwnerClient, name: str) -> Obj:
    instance = owner.get(f"{_INSTANCES_PATH}/{quote(name)}")
    if instance is None:
        if owner.get(f"{_NODES_PATH}/{quote(name)}") is None:
            output.fail(f"batchyard: node {name} not found; `kubectl get nodes` lists the nodes")
        message = "has no simulated machine: --crash and --reclaim require a simulated node"
        output.fail(f"batchyard: node {name} {message}; --drain works for every node")
    phase = instances.phase_of(instance)
    if phase not in {instances.RUNNING, instances.STOPPING} or instances.is_being_deleted(instance):
        state_text = "is being removed" if instances.is_being_deleted(instance) else f"is in phase {phase or 'Pending'}"
        message = f"batchyard: the machine of node {name} {state_text}, so it cannot be crashed or reclaimed now"
        output.fail(f"{message}; choose another node")
    return instance


def _evict_pod(owner: _OwnerClient, pod: Obj) -> str:
    """Evict a pod; return the reason why the API server rejected the eviction, or '' on success."""
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    path = f"/api/v1/namespaces/{quote(metadata['namespace'])}/pods/{quote(metadata['name'])}/eviction"
    return owner.post(path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})


def _check_status(status_code: int, document: dict[str, Any]) -> Obj:
    if status_code >= http.client.BAD_REQUEST:
        raise ValueError(f"{status_code}: {document.get('message') or 'the response has no error message'}")
    return document


def _pod_key(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


app = typer.Typer(
    name="fault",
    cls=HelpGroup,
    help="Inject faults into a running platform.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=HELP_SETTINGS,
)


@app.callback()
def fault() -> None:
    """Inject faults into a running platform."""


@app.command(cls=HelpCommand)
def node(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node.")],
    crash: Annotated[bool, typer.Option("--crash", help="Crash its simulated machine until it is repaired.")] = False,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Reclaim its Spot machine, with 30 seconds of notice.")
    ] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Cordon it and evict its pods.")] = False,
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data directory.")] = DATA_DIR,
) -> None:
    """Crash, reclaim or drain a node.

    The command needs the access of the owner of the platform.
    """
    if crash + reclaim + drain != 1:
        raise typer.BadParameter("use exactly one of --crash, --reclaim and --drain")

    if drain:
        drain_node(data_dir, name)
    else:
        break_machine(data_dir, name, is_reclaimed=reclaim)
