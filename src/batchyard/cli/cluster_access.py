"""Reads clusters for the commands: single HTTP GET requests, and all objects of a cluster or of a state file.

The cluster is the platform of a data directory, or that of a kubeconfig. The kubeconfig client is slow to import;
requests to the local platform need only the standard library.
"""

import asyncio
import http.client
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from batchyard.api import scheme
from batchyard.api.kueue_configuration import complete_configuration
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.api.times import format_time, parse_time
from batchyard.apiserver.dashboard import DASHBOARD_TIME_PATH
from batchyard.base.instant import HOUR, Instant
from batchyard.cli import output
from batchyard.cli.missing_objects import NamespacedName
from batchyard.client.transport import HttpRequest, HttpResponse, failure_advice, kind_path, object_path
from batchyard.controller_groups import NAMESPACES, REMOTE_GROUPS, kinds_read
from batchyard.scheduling.kueue_configuration import decision_fields
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.kubeconfig.access import (
    ApiServerAccess,
    KubeconfigError,
    KubeconfigSource,
    owner_access,
    owner_tls_context,
)
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.coexistence import read_kueue_configuration, unsupported_settings
from batchyard.server.operator.snapshot import PageHandler, SnapshotError, SnapshotResult, read_cluster
from batchyard.server.platform.data_dir import PlatformProcess, running_process_in
from batchyard.server.platform.status_report import STATUS_REPORT_PATH
from batchyard.sim.forecasting.run_times import with_runtimes
from batchyard.sim.scenario import FileFault, InvalidScenario, read_sources
from batchyard.sim.state import OMITTED_KINDS, REQUIRED_KINDS, State, consequences_of_unread_kinds
from batchyard.sim.state_document import is_snapshot_text, is_state_text, state_of, state_of_texts

# GET requests to the cluster of a kubeconfig, with any of its credential types, or to the local platform.


def request_kubeconfig_cluster(
    read_access: Callable[[], Awaitable[ApiServerAccess]], path_for_namespace: Callable[[str], str]
) -> tuple[str, int, bytes]:
    """Send a GET request to the cluster of a kubeconfig; return the server's URL, the status code and the body.

    `path_for_namespace` maps the default namespace to the URL path. Raises OSError if the server does not respond.
    """

    async def send_request() -> tuple[str, int, bytes]:
        access = await read_access()
        transport = HttpTransport(access, read_access)
        try:
            response = await transport.send_request(HttpRequest("GET", path_for_namespace(access.namespace)))
        finally:
            await transport.close()
        if not response.code:
            raise OSError(f"{access.url}: {failure_advice(response)}")
        return access.url, response.code, response.body

    return asyncio.run(send_request())


_TIMEOUT: Final = 60  # seconds


class UnreachableError(Exception):
    """The cluster is unreachable or rejects the request; the message has the reason and, for some causes, a remedy."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        #: The HTTP status code; 0 without a response.
        self.code = code


#: Errors that the commands print as one line, without a traceback.
REQUEST_ERRORS: Final = (UnreachableError, KubeconfigError, OSError, http.client.HTTPException)


class ClusterTarget(NamedTuple):
    """The cluster to query: that of a kubeconfig or context, or if both are '', the platform of a data directory."""

    kubeconfig: str
    context: str
    data_dir: Path

    @property
    def uses_kubeconfig(self) -> bool:
        """Whether a kubeconfig or context selects the cluster; otherwise the data directory does."""
        return bool(self.kubeconfig or self.context)


def access_reader_of_target(target: ClusterTarget) -> Callable[[], Awaitable[ApiServerAccess]]:
    """Return a function that reads the cluster's address and credentials, to call again when the credentials expire.

    Raises UnreachableError if the cluster is a local platform that is not running.
    """
    if target.uses_kubeconfig:

        async def read() -> ApiServerAccess:
            from batchyard.server.kubeconfig.loading import read_access  # noqa: PLC0415 - slow to load

            return await read_access(KubeconfigSource(target.kubeconfig, target.context))

        return read
    platform_process = _running_platform(target.data_dir)

    async def read_owner_access() -> ApiServerAccess:
        return owner_access(platform_process, target.data_dir)

    return read_owner_access


def request_document(target: ClusterTarget, path_for_namespace: Callable[[str], str]) -> Mapping[str, Any]:
    """Send a GET request to the cluster and return the JSON document.

    `path_for_namespace` returns the URL path for the default namespace of `target`. If the request fails, one of
    REQUEST_ERRORS is raised: UnreachableError for a status other than 200, or if the local platform does not run.
    """
    if target.uses_kubeconfig:
        url, code, body = request_kubeconfig_cluster(access_reader_of_target(target), path_for_namespace)
    else:
        url, code, body = _request_platform(
            _running_platform(target.data_dir), target.data_dir, path_for_namespace("default")
        )
    if code != http.client.OK:
        raise UnreachableError(f"{url}: {failure_advice(HttpResponse(code, body))}", code)
    return _decode_json(body)


#: The number of objects whose names are compared with a name that does not exist.
_NAMES_LISTED_MAX: Final = 500


def list_existing_names(
    target: ClusterTarget, served_kind: ServedKind, missing_name: NamespacedName
) -> list[NamespacedName] | None:
    """Return the names of existing objects of a kind, to suggest one in place of the missing object `missing_name`.

    First come the objects of that name in all namespaces, then the first 500 objects in its namespace ('' is
    the default namespace). Return None if neither list can be read.
    """
    query = f"fieldSelector=metadata.name%3D{quote(missing_name.name)}"
    for version in reversed(served_kind.versions):

        def path_of_same_named(_: str, version: str = version) -> str:
            return f"{kind_path(served_kind, version)}?{query}"

        def path_for_namespace(namespace: str, version: str = version) -> str:
            return f"{object_path(served_kind, version, missing_name.namespace or namespace)}?limit={_NAMES_LISTED_MAX}"

        same_named, in_namespace = _list_names(target, path_of_same_named), _list_names(target, path_for_namespace)
        if same_named is not None or in_namespace is not None:
            return [*(same_named or ()), *(in_namespace or ())]
    return None


def _list_names(target: ClusterTarget, path_for_namespace: Callable[[str], str]) -> list[NamespacedName] | None:
    try:
        items = request_document(target, path_for_namespace).get("items") or ()
    except REQUEST_ERRORS:
        return None
    return [NamespacedName(obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) for obj in items]


#: The documents that have the time and speed of a platform: the first is for its owner, the second for all users.
TIME_PATHS: Final = (STATUS_REPORT_PATH, DASHBOARD_TIME_PATH)


def time_in_document(document: Mapping[str, Any]) -> tuple[Instant, float] | None:
    """Return the platform's time and its speed from a status or dashboard document; None if either is missing."""
    instant, text, speed = document.get("instant"), document.get("time"), document.get("speed")
    if not isinstance(speed, int | float) or not isinstance(text, str):
        return None
    return instant if isinstance(instant, int) else parse_time(text), float(speed)


def read_platform_time(target: ClusterTarget) -> Instant:
    """Return the platform's current time, or this machine's time if the cluster does not report one.

    Raises the errors of REQUEST_ERRORS except UnreachableError.
    """

    def path_for_namespace(_namespace: str, path: str) -> str:
        return path

    for path in TIME_PATHS:
        with suppress(UnreachableError):
            reading = time_in_document(request_document(target, partial(path_for_namespace, path=path)))
            if reading is not None:
                return reading[0]
    return wall_clock()


def _running_platform(folder: Path) -> PlatformProcess:
    platform_process = running_process_in(folder)
    if platform_process is None:
        message = "start a platform with `batchyard up`, set its --data-dir, or select a cluster with --kubeconfig"
        raise UnreachableError(f"no platform runs in {folder}: {message}")
    return platform_process


def _request_platform(platform_process: PlatformProcess, folder: Path, path: str) -> tuple[str, int, bytes]:
    url_parts = urlsplit(platform_process.url)
    assert url_parts.hostname is not None, f"the platform URL {platform_process.url} has no host"
    if url_parts.scheme == "http":
        connection = http.client.HTTPConnection(url_parts.hostname, url_parts.port, timeout=_TIMEOUT)
    else:
        context = owner_tls_context(folder)
        connection = http.client.HTTPSConnection(url_parts.hostname, url_parts.port, timeout=_TIMEOUT, context=context)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return platform_process.url, response.status, response.read()
    finally:
        connection.close()


def _decode_json(body: bytes) -> Mapping[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


# Reading a state file, with remarks on kinds and run times that it lacks.


#: The default duration of virtual time that a run continues after a state.
DEFAULT_RUN_LENGTH: Final = 24 * HOUR
_NAMES_SHOWN_MAX: Final = 3


class SourceTexts(NamedTuple):
    """The requested files as (name, text) pairs, separated into cluster states and manifests; and unreadable files."""

    states: Sequence[tuple[str, str]]
    manifests: Sequence[tuple[str, str]]
    file_faults: Sequence[FileFault]

    def state(self) -> State | None:
        """Return the cluster state in `states` and print remarks on it; return None if `states` is empty.

        The command exits if the state is invalid, or if there are several states and one of them is a snapshot.
        """
        snapshots = [name for name, text in self.states if is_snapshot_text(text)]
        if snapshots and len(self.states) > 1:
            names = " and ".join(name for name, _ in self.states)
            output.fail(
                f"batchyard: {names} each contain the state of a cluster: use one of them, and optionally manifests"
            )
        return read_state_texts(self.states) if self.states else None


def read_source_texts(paths: Sequence[str]) -> SourceTexts:
    """Read files and folders; separate cluster states (snapshots, or lists from `kubectl get`) from manifests."""
    unread: list[FileFault] = []
    states, manifests = list[tuple[str, str]](), list[tuple[str, str]]()
    for name, text in read_sources(paths, unread):
        (states if is_state_text(text) else manifests).append((name, text))
    return SourceTexts(states, manifests, unread)


def read_state_file(file: str) -> State:
    """Return the cluster state (all objects at one time) in a file, and print remarks on the state.

    The command exits if the file cannot be read or is invalid.
    """
    unread: list[FileFault] = []
    return read_state_texts(list(read_sources([file], unread)), unread)


def read_state_texts(texts: Sequence[tuple[str, str]], unread: Sequence[FileFault] = ()) -> State:
    """Return the cluster state that `texts`, given as (name, text) pairs, contain, and print remarks on it.

    `unread` has the faults of files that could not be read. The command exits if `unread` is not empty, or if a
    text is invalid.
    """
    try:
        state = state_of_texts(texts, unread)
    except InvalidScenario as invalid:
        output.fail(str(invalid))
    names = ", ".join(name for name, _ in texts)
    if state.at and not state.is_time_recorded:
        output.report_line(f"batchyard: {names}: state as of {format_time(state.at)}, the latest timestamp in it")
    print_unread_kinds(state)
    _print_missing_references(names, state)
    return state


def _print_missing_references(file: str, state: State) -> None:
    references = [
        *(key for queue in state.of_kind(scheme.CLUSTER_QUEUE) for key in flavor_keys(queue)),
        *(
            Key(scheme.CLUSTER_QUEUE, "", queue["spec"].get("clusterQueue") or "")
            for queue in state.of_kind(scheme.LOCAL_QUEUE)
        ),
    ]
    names = [f"{kind_info(key.kind).kind} {key.name}" for key in dict.fromkeys(references) if key not in state.objects]
    if names:
        names_text = ", ".join(names[:_NAMES_SHOWN_MAX]) + (", ..." if len(names) > _NAMES_SHOWN_MAX else "")
        output.report_line(
            f"batchyard: {file}: the state is incomplete: {names_text} not found, without which Workloads cannot "
            "start; `batchyard snapshot FILE` writes a complete state, `simulate -o json` does not"
        )


def flavor_keys(cluster_queue: Obj) -> Iterator[Key]:
    """Yield the keys of the ResourceFlavors of a ClusterQueue."""
    for group in cluster_queue["spec"].get("resourceGroups") or ():
        yield from (Key(scheme.RESOURCE_FLAVOR, "", flavor["name"]) for flavor in group["flavors"])


def print_unread_kinds(state: State) -> None:
    """Print which kinds a cluster state lacks because the user who read it had no permission to list them."""
    for line in consequences_of_unread_kinds(state.unread_kinds):
        output.report_line(f"batchyard: no permission to list {line}")


def with_explicit_runtimes(state: State, assumption: str = "they run to the end") -> State:
    """Return the cluster state with a run time for each unfinished job; print the running jobs of unknown run time.

    `assumption` ends the printed message: it states what the simulation assumes about these jobs.
    """
    completed_state, unknown_names = with_runtimes(state)
    if unknown_names:
        names = ", ".join(unknown_names[:_NAMES_SHOWN_MAX]) + (
            f" and {omitted_count} more" if (omitted_count := len(unknown_names) - _NAMES_SHOWN_MAX) > 0 else ""
        )
        output.report_line(f"batchyard: run time of {names} is unknown: {assumption}")
    return completed_state


_WATCHED_KINDS: Final = (*kinds_read([group for group in REMOTE_GROUPS if group != NAMESPACES]), scheme.RESOURCE_QUOTA)
#: The kinds that a snapshot omits. ConfigMaps can hold anything, and no decision depends on them. A simulation would
#: create the pods of StatefulSets.
_KINDS_OUTSIDE_SNAPSHOT: Final = frozenset({*OMITTED_KINDS, scheme.CONFIG_MAP, scheme.STATEFUL_SET})
SNAPSHOT_KINDS: Final = tuple(kind for kind in dict.fromkeys(_WATCHED_KINDS) if kind not in _KINDS_OUTSIDE_SNAPSHOT)


class ClusterError(Exception):
    """The objects of a cluster cannot be read; the message has the reason and the remedy."""


class ListPermissionError(ClusterError):
    """The user may not list kinds that a state of the cluster requires."""


SOURCE_ERRORS: Final = (ClusterError, KubeconfigError, OSError)


def read_requested_state(file: str | None, target: ClusterTarget) -> State:
    """Return the cluster state in a file, or if `file` is None, of a live cluster; the command exits on failure."""
    if file is not None:
        return read_state_file(file)
    try:
        return read_cluster_state(target)
    except SOURCE_ERRORS as error:
        output.fail(f"batchyard: {error}")


def read_cluster_state(target: ClusterTarget) -> State:
    """Return the state of a live cluster; raise an error of SOURCE_ERRORS if it cannot be read.

    Print the kinds that the state lacks because the user may not list them.
    """
    state = asyncio.run(_read_state(target))
    print_unread_kinds(state)
    return state


def access_reader_of_source(target: ClusterTarget) -> Callable[[], Awaitable[ApiServerAccess]]:
    """Return a function that reads the cluster's address and credentials.

    Raises ClusterError if the cluster is a local platform that is not running.
    """
    try:
        return access_reader_of_target(target)
    except UnreachableError as error:
        raise ClusterError(str(error)) from None


async def read_snapshot(target: ClusterTarget, handle_page: PageHandler) -> SnapshotResult:
    """Read the objects of SNAPSHOT_KINDS, pass them to `handle_page` page by page, and return the other results.

    The other results include Kueue's Configuration and the kinds that could not be listed. Raises an error of
    SOURCE_ERRORS if the objects cannot be read, and ListPermissionError if the user may not list required kinds.
    """
    read_access = access_reader_of_source(target)
    access = await read_access()
    transport = HttpTransport(access, read_access)
    try:
        snapshot_result = await read_cluster(transport, SNAPSHOT_KINDS, handle_page)
        await _find_kueue_configuration(snapshot_result, transport)
    except SnapshotError as error:
        raise ClusterError(f"{access.url}: {error}") from None
    finally:
        await transport.close()
    if scheme.CLUSTER_QUEUE in snapshot_result.unserved:
        raise ClusterError(f"{access.url} does not serve ClusterQueues: install Kueue first, or select another cluster")
    missing_kinds = [kind for kind in REQUIRED_KINDS if kind in snapshot_result.forbidden]
    if missing_kinds:
        names = ", ".join(f"{kind_info(kind).plural}.{kind_info(kind).group}" for kind in missing_kinds)
        raise ListPermissionError(
            f"{access.url}: no permission to list {names} in all namespaces, which is required: ask for the verb "
            f"`list` on these ({snapshot_result.refusal})"
        )
    snapshot_result.at = snapshot_result.at or wall_clock()
    return snapshot_result


async def _find_kueue_configuration(snapshot_result: SnapshotResult, transport: HttpTransport) -> None:
    if snapshot_result.configuration is None:
        search_result = await read_kueue_configuration(transport)
        snapshot_result.configuration = search_result.configuration
        snapshot_result.configuration_message = (
            search_result.message if search_result.configuration is not None or search_result.is_unreadable else ""
        )
    if snapshot_result.configuration is not None:
        snapshot_result.unsupported_settings = list(unsupported_settings(snapshot_result.configuration))
        snapshot_result.configuration = decision_fields(snapshot_result.configuration)


async def _read_state(target: ClusterTarget) -> State:
    objects: list[Obj] = []

    def collect_objects(_: str, page: Sequence[Obj]) -> None:
        objects.extend(page)

    snapshot = await read_snapshot(target, collect_objects)
    recorded = snapshot.at, tuple(snapshot.forbidden), snapshot.kueue_version
    if snapshot.configuration is None:
        if snapshot.configuration_message:
            output.report_line(f"batchyard: {snapshot.configuration_message}; using the default Kueue Configuration")
        return state_of(objects, *recorded)
    return state_of([*objects, complete_configuration(snapshot.configuration)], *recorded)
