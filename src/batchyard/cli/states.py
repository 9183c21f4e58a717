"""States of clusters: read over HTTP, every kind that the platform looks at, all from one revision where that goes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.kueue_configuration import completed
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.cli import output
from batchyard.cli.state_files import state_from as of_file
from batchyard.cli.state_files import tell_unread
from batchyard.controller_groups import NAMESPACES, REMOTE, kinds_seen
from batchyard.scheduling.kueue_configuration import decisive
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.kubeconfig.access import Access, KubeconfigError, Source, access_of_owner
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.kueue_configuration import configuration_of, told_beside
from batchyard.server.operator.snapshot import Reading, SnapshotError, Taking, read_cluster
from batchyard.server.platform.data_dir import process_in
from batchyard.sim.state import LEFT_OUT, State
from batchyard.sim.state_document import state_of
from batchyard.sim.whatif import NEEDED

_SEEN: Final = (*kinds_seen([group for group in REMOTE if group != NAMESPACES]), scheme.RESOURCE_QUOTA)
#: ConfigMaps may hold anything, and nobody decides by them.
KINDS: Final = tuple(kind for kind in dict.fromkeys(_SEEN) if kind not in {*LEFT_OUT, scheme.CONFIG_MAP})


class Where(NamedTuple):
    """Which cluster: a kubeconfig and a context of it, or else the platform of a data directory."""

    kubeconfig: str
    context: str
    data_dir: Path


class ClusterError(Exception):
    """A cluster's state cannot be read; says why and what to do."""


REFUSALS: Final = (ClusterError, KubeconfigError, OSError)


def state_from(file: str | None, where: Where) -> State:
    """The state of a file, or of a cluster; ends the command where there is none to be had."""
    if file is not None:
        return of_file(file)
    try:
        state = asyncio.run(_read(where))
    except REFUSALS as error:
        output.fail(f"batchyard: {error}")
    tell_unread(state)
    return state


def access_to(where: Where) -> Callable[[], Awaitable[Access]]:
    """What reads where the cluster is and who we are to it."""
    if where.kubeconfig or where.context:

        async def read() -> Access:
            from batchyard.server.kubeconfig.loading import read_access  # noqa: PLC0415 - takes long to load

            return await read_access(Source(where.kubeconfig, where.context))

        return read
    running = process_in(where.data_dir)
    if running is None:
        told = "start a platform with `batchyard up`, name another cluster with --kubeconfig, or give a --state FILE"
        raise ClusterError(f"nothing runs in {where.data_dir}: {told}")

    async def own() -> Access:
        return access_of_owner(running, where.data_dir)

    return own


async def reading_of(where: Where, take: Taking) -> Reading:
    """Read a cluster, a page at a time; ClusterError where that cannot be, or would be good for nothing."""
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
        raise ClusterError(
            "there are no ClusterQueues on this server: Kueue is not installed, and nothing else that queues"
        )
    lacking = [kind for kind in NEEDED if kind in reading.forbidden]
    if lacking:
        names = ", ".join(f"{kind_info(kind).plural}.{kind_info(kind).group}" for kind in lacking)
        raise ClusterError(
            f"we may not list {names} of all namespaces: ask for `list` on them; without them nothing can be "
            f"said ({reading.refusal})"
        )
    reading.at = reading.at or wall_clock()
    return reading


async def _configure(reading: Reading, wire: HttpTransport) -> None:
    """Find Kueue's Configuration, of which only what decides is kept."""
    if reading.configuration is None:
        found = await configuration_of(wire)
        reading.configuration = found.configuration
        reading.of_configuration = found.told if found.configuration is not None or found.is_lacking else ""
    if reading.configuration is not None:
        reading.beside = list(told_beside(reading.configuration))
        reading.configuration = decisive(reading.configuration)


async def _read(where: Where) -> State:
    objects: list[Obj] = []

    def take(_: str, found: Sequence[Obj]) -> None:
        objects.extend(found)

    reading = await reading_of(where, take)
    if reading.configuration is None:
        if reading.of_configuration:
            output.tell(f"batchyard: {reading.of_configuration}; taken as if it said nothing")
        return state_of(objects, reading.at, tuple(reading.forbidden))
    return state_of([*objects, completed(reading.configuration)], reading.at, tuple(reading.forbidden))
