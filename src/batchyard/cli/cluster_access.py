"""Requests to a command's cluster: the platform of a data directory, or the cluster of a kubeconfig.

The client for other clusters is slow to import; requests to the local platform need only the standard library.
"""

import asyncio
import http.client
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from batchyard.api import scheme
from batchyard.api.kueue_configuration import completed
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.client.transport import HttpRequest
from batchyard.controller_groups import NAMESPACES, REMOTE, kinds_seen
from batchyard.scheduling.kueue_configuration import decision_fields
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.kubeconfig.access import (
    ApiServerAccess,
    KubeconfigError,
    KubeconfigSource,
    access_of_owner,
    tls_of_owner,
)
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.coexistence import configuration_of, unsupported_settings
from batchyard.server.operator.snapshot import PageHandler, SnapshotError, SnapshotResult, read_cluster
from batchyard.server.platform.data_dir import PlatformProcess, process_in
from batchyard.sim.forecasting.run_times import with_runtimes
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.state import LEFT_OUT, State
from batchyard.sim.state_document import read_state, state_of
from batchyard.sim.whatif import NEEDED, consequences_of

# --- reaching others ---
#
# Requests to the cluster of a kubeconfig, with any of its credential types.


def answered_elsewhere(
    read: Callable[[], Awaitable[ApiServerAccess]], path_in: Callable[[str], str]
) -> tuple[str, int, bytes]:
    """The server's URL, and the status code and body at a path, which depends on the default namespace.

    Raises OSError if the server does not respond.
    """

    async def ask() -> tuple[str, int, bytes]:
        access = await read()
        wire = HttpTransport(access, read)
        try:
            answer = await wire.ask(HttpRequest("GET", path_in(access.namespace)))
        finally:
            await wire.close()
        if not answer.code:
            raise OSError(f"{access.url}: {answer.trouble or 'the server does not respond'}")
        return access.url, answer.code, answer.body

    return asyncio.run(ask())


_ANSWERS_WITHIN: Final = 60  # seconds


class UnreachableError(Exception):
    """The cluster cannot be reached or rejects the request; the message has the reason and the remedy."""

    def __init__(self, reported: str, code: int = 0) -> None:
        super().__init__(reported)
        #: The HTTP status code; 0 without a response.
        self.code = code


#: Errors that are reported to the user as one line.
REFUSALS: Final = (UnreachableError, KubeconfigError, OSError, http.client.HTTPException)


class ClusterTarget(NamedTuple):
    """The cluster by kubeconfig or context; both '' for the platform of the data directory."""

    kubeconfig: str
    context: str
    data_dir: Path

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is another cluster than the platform of the data directory."""
        return bool(self.kubeconfig or self.context)


def reading(target: ClusterTarget) -> Callable[[], Awaitable[ApiServerAccess]]:
    """A function that reads the cluster's address and credentials, also again once they have expired."""
    if target.is_elsewhere:

        async def read() -> ApiServerAccess:
            from batchyard.server.kubeconfig.loading import read_access  # noqa: PLC0415 - slow to load

            return await read_access(KubeconfigSource(target.kubeconfig, target.context))

        return read
    running = _running(target.data_dir)

    async def own() -> ApiServerAccess:
        return access_of_owner(running, target.data_dir)

    return own


def answered(target: ClusterTarget, path_in: Callable[[str], str]) -> Mapping[str, Any]:
    """The document at a path, which depends on the default namespace; UnreachableError for an error status."""
    if target.is_elsewhere:
        url, code, body = answered_elsewhere(reading(target), path_in)
    else:
        url, code, body = _answered_here(_running(target.data_dir), target.data_dir, path_in("default"))
    if code != http.client.OK:
        raise UnreachableError(f"{url}: {_trouble(code, body)}", code)
    return _decoded(body)


def _running(folder: Path) -> PlatformProcess:
    running = process_in(folder)
    if running is None:
        message = "start a platform with `batchyard up`, give its --data-dir, or select a cluster with --kubeconfig"
        raise UnreachableError(f"no platform runs in {folder}: {message}")
    return running


def _answered_here(running: PlatformProcess, folder: Path, path: str) -> tuple[str, int, bytes]:
    place = urlsplit(running.url)
    assert place.hostname is not None, "the URL of a platform has a host"
    if place.scheme == "http":
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN)
    else:
        secured = tls_of_owner(folder)
        connection = http.client.HTTPSConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN, context=secured)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return running.url, response.status, response.read()
    finally:
        connection.close()


def _trouble(code: int, body: bytes) -> str:
    """The error message of a response: that of its Status, else the status code."""
    try:
        message = _decoded(body).get("message") or ""
    except msgspec.DecodeError:
        message = body[:200].decode("utf-8", "replace").strip()
    return f"{code}: {message}" if message else f"{code}: {http.client.responses.get(code, 'no response')}"


def _decoded(body: bytes) -> Mapping[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


# --- state files ---
#
# State files, and remarks on them. Imports no cluster client.


#: The default limit of the virtual time after a state.
UNTIL: Final = 24 * HOUR
_NAMED_MAX: Final = 3


def state_in(file: str) -> State:
    """The state in a file; ends the command if it cannot be read."""
    try:
        state = read_state(file)
    except InvalidScenario as invalid:
        output.fail(str(invalid))
    print_unread_kinds(state)
    return state


def print_unread_kinds(state: State) -> None:
    """Print which kinds the reader of a state was not allowed to list."""
    for line in consequences_of(state.unread):
        output.report_line(f"batchyard: not known here: {line}")


def with_explicit_runtimes(state: State, which: str = "they run to the end") -> State:
    """The state with explicit run times; prints which running jobs have an unknown one."""
    reported, unknown = with_runtimes(state)
    if unknown:
        who = ", ".join(unknown[:_NAMED_MAX]) + (f" and {more} more" if (more := len(unknown) - _NAMED_MAX) > 0 else "")
        output.report_line(f"batchyard: run time of {who} is unknown: {which}")
    return reported


_SEEN: Final = (*kinds_seen([group for group in REMOTE if group != NAMESPACES]), scheme.RESOURCE_QUOTA)
#: ConfigMaps can hold anything, and no decision depends on them.
KINDS: Final = tuple(kind for kind in dict.fromkeys(_SEEN) if kind not in {*LEFT_OUT, scheme.CONFIG_MAP})


class ClusterSource(NamedTuple):
    """The cluster to read: a context of a kubeconfig, or else the platform of a data directory."""

    kubeconfig: str
    context: str
    data_dir: Path


class ClusterError(Exception):
    """A cluster's state cannot be read; the message has the reason and the remedy."""


SOURCE_REFUSALS: Final = (ClusterError, KubeconfigError, OSError)


def requested_state(file: str | None, where: ClusterSource) -> State:
    """The state in a file, or of a cluster; ends the command if it cannot be read."""
    if file is not None:
        return state_in(file)
    try:
        state = asyncio.run(_read(where))
    except SOURCE_REFUSALS as error:
        output.fail(f"batchyard: {error}")
    print_unread_kinds(state)
    return state


def access_to(where: ClusterSource) -> Callable[[], Awaitable[ApiServerAccess]]:
    """A function that reads the cluster's address and credentials."""
    if where.kubeconfig or where.context:

        async def read() -> ApiServerAccess:
            from batchyard.server.kubeconfig.loading import read_access  # noqa: PLC0415 - slow to load

            return await read_access(KubeconfigSource(where.kubeconfig, where.context))

        return read
    running = process_in(where.data_dir)
    if running is None:
        message = "start a platform with `batchyard up`, select a cluster with --kubeconfig, or give a --state FILE"
        raise ClusterError(f"no platform runs in {where.data_dir}: {message}")

    async def own() -> ApiServerAccess:
        return access_of_owner(running, where.data_dir)

    return own


async def reading_of(where: ClusterSource, take: PageHandler) -> SnapshotResult:
    """Read a cluster page by page; ClusterError if that fails or if kinds that every command needs are missing."""
    read = access_to(where)
    wire = HttpTransport(await read(), read)
    try:
        reading = await read_cluster(wire, KINDS, take)
        await _configure(reading, wire)
    except SnapshotError as error:
        raise ClusterError(str(error)) from None
    finally:
        await wire.close()
    if scheme.CLUSTER_QUEUE in reading.unserved:
        raise ClusterError("this server does not serve ClusterQueues: Kueue is not installed")
    lacking = [kind for kind in NEEDED if kind in reading.forbidden]
    if lacking:
        names = ", ".join(f"{kind_info(kind).plural}.{kind_info(kind).group}" for kind in lacking)
        raise ClusterError(
            f"no permission to list {names} in all namespaces, which is required: ask for `list` on them "
            f"({reading.refusal})"
        )
    reading.at = reading.at or wall_clock()
    return reading


async def _configure(reading: SnapshotResult, wire: HttpTransport) -> None:
    """Find Kueue's Configuration and keep the fields that affect decisions."""
    if reading.configuration is None:
        found = await configuration_of(wire)
        reading.configuration = found.configuration
        reading.of_configuration = found.message if found.configuration is not None or found.is_lacking else ""
    if reading.configuration is not None:
        reading.beside = list(unsupported_settings(reading.configuration))
        reading.configuration = decision_fields(reading.configuration)


async def _read(where: ClusterSource) -> State:
    objects: list[Obj] = []

    def take(_: str, found: Sequence[Obj]) -> None:
        objects.extend(found)

    reading = await reading_of(where, take)
    if reading.configuration is None:
        if reading.of_configuration:
            output.report_line(f"batchyard: {reading.of_configuration}; using the defaults")
        return state_of(objects, reading.at, tuple(reading.forbidden))
    return state_of([*objects, completed(reading.configuration)], reading.at, tuple(reading.forbidden))
