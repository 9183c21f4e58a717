"""States of clusters: read over HTTP, every kind that the platform looks at, all from one revision where that goes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.base.instant import MINUTE
from batchyard.cli import output
from batchyard.client.places import path_of_kind, received, revision_of
from batchyard.client.wire import HttpAnswer, HttpRequest
from batchyard.client.writes import decoded, trouble_of
from batchyard.controllers.groups import NAMESPACES, REMOTE, kinds_seen
from batchyard.live.access import Access, KubeconfigError, Source, access_of_owner
from batchyard.live.clock import wall_clock
from batchyard.live.folder import process_in
from batchyard.live.report import PATH as REPORT
from batchyard.live.rest_wire import HttpTransport
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.state import LEFT_OUT, State
from batchyard.sim.state_document import read_state, state_of

_SEEN: Final = (*kinds_seen([group for group in REMOTE if group != NAMESPACES]), scheme.RESOURCE_QUOTA)
KINDS: Final = tuple(kind for kind in dict.fromkeys(_SEEN) if kind not in LEFT_OUT)
_PAGE: Final = 2000
_NOT_THERE, _FORBIDDEN = 404, 403
#: The server does not know how things stood at a revision, any more or at all.
_NOT_SO: Final = (400, 410, 504)


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
    try:
        return asyncio.run(_read(where)) if file is None else read_state(file)
    except InvalidScenario as invalid:
        output.fail(str(invalid))
    except REFUSALS as error:
        output.fail(f"batchyard: {error}")


def access_to(where: Where) -> Callable[[], Awaitable[Access]]:
    """What reads where the cluster is and who we are to it."""
    if where.kubeconfig or where.context:

        async def read() -> Access:
            from batchyard.live.kubeconfig import read_access  # noqa: PLC0415 - takes long to load

            return await read_access(Source(where.kubeconfig, where.context))

        return read
    running = process_in(where.data_dir)
    if running is None:
        told = "start a platform with `batchyard up`, name another cluster with --kubeconfig, or give a --state FILE"
        raise ClusterError(f"nothing runs in {where.data_dir}: {told}")

    async def own() -> Access:
        return access_of_owner(running, where.data_dir)

    return own


async def _read(where: Where) -> State:
    reading = access_to(where)
    wire = HttpTransport(await reading(), reading)
    try:
        return await _state(wire)
    finally:
        await wire.close()


async def _state(wire: HttpTransport) -> State:
    told = await wire.ask(HttpRequest("GET", REPORT))
    at = int(decoded(told.body).get("instant") or 0) if told.code == 200 else 0
    objects: list[Obj] = []
    revision = 0
    unseen: list[str] = []
    for kind in KINDS:
        found, seen_at = await _listed(wire, kind, revision, unseen)
        objects += found
        revision = revision or seen_at
    if unseen:
        output.tell(f"batchyard: we may not list {', '.join(unseen)}: what they say is not looked at")
    return state_of(objects, at or wall_clock())


async def _listed(wire: HttpTransport, kind: str, revision: int, unseen: list[str]) -> tuple[list[Obj], int]:
    """All objects of a kind as they were at a revision, and the revision of the list; as they are where that is 0."""
    info = kind_info(kind)
    for version in reversed(info.versions):
        path = path_of_kind(info, version)
        exact = f"&resourceVersion={revision}&resourceVersionMatch=Exact" if revision else ""
        answer, items, seen_at = await _pages(wire, path, exact)
        if exact and answer.code in _NOT_SO:
            answer, items, seen_at = await _pages(wire, path, "")
        if answer.code == 200:
            return [received(info, version, item) for item in items], seen_at
        if answer.code == _FORBIDDEN:
            unseen.append(f"{info.plural}.{info.group}" if info.group else info.plural)
            return [], 0
        if answer.code != _NOT_THERE:
            raise ClusterError(trouble_of(answer))
    return [], 0


async def _pages(wire: HttpTransport, path: str, exact: str) -> tuple[HttpAnswer, Iterable[Obj], int]:
    items: list[Obj] = []
    token, seen_at = "", 0
    while True:
        query = f"?limit={_PAGE}" + (f"&continue={token}" if token else exact)
        answer = await wire.ask(HttpRequest("GET", f"{path}{query}", within=MINUTE))
        if answer.code != 200:
            return answer, items, seen_at
        page = decoded(answer.body)
        items += page.get("items") or ()
        seen_at = seen_at or revision_of(page)
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            return answer, items, seen_at
