"""The cluster of the daily commands: lists, changes, log streams and watches of its objects, over one HTTP client."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
import typer

from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, find_kind, kind_info
from batchyard.base.instant import SECOND, Instant
from batchyard.cli import output
from batchyard.cli.cluster_access import (
    REQUEST_ERRORS,
    TIME_PATHS,
    ClusterTarget,
    access_reader_of_target,
    time_in_document,
)
from batchyard.client.informer import LIST_PAGE_SIZE, Informer
from batchyard.client.transport import (
    HttpRequest,
    HttpResponse,
    api_version_path,
    decode_object,
    failure_advice,
    failure_reason,
    kind_path,
    list_in_response,
    object_path,
    to_storage_version,
)
from batchyard.interfaces.client import WatchEvent
from batchyard.server.clocks.wall import monotonic_seconds, sleep_for, wall_clock
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator.aiohttp_transport import HttpTransport

NamespaceOption: TypeAlias = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace; default: the kubeconfig's.")
]
AllNamespaces: TypeAlias = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]

#: The maximum number of pages of one list: 200,000 objects.
_PAGES_MAX: Final = 400
_VISIBILITY_GROUP: Final = "visibility.kueue.x-k8s.io"
_VISIBILITY_PATH: Final = f"/apis/{_VISIBILITY_GROUP}"
_VISIBILITY_VERSIONS: Final = ("v1beta2", "v1beta1")
#: The number of Workloads in one page of the visibility API, which is also Kueue's default.
_VISIBILITY_PAGE_SIZE: Final = 1000
_MERGE_PATCH: Final = "application/merge-patch+json"

T = TypeVar("T")


class ClusterRequestError(Exception):
    """A request to the cluster fails or must not be sent; the message has the reason."""


class _ServerTime(NamedTuple):
    """The server's time and clock speed; `read_at` is this machine's monotonic clock in seconds."""

    instant: Instant
    speed: float
    read_at: float


class PendingList(NamedTuple):
    """A queue's pending Workloads in scheduling order; if they cannot be listed, `problem` has the reason."""

    items: Sequence[Obj]
    problem: str = ""
    #: Whether the user lacks the permission to list them.
    is_forbidden: bool = False


class ClusterClient:
    """An HTTP client of one cluster, with the URL of its API server and the default namespace of its user."""

    def __init__(self, transport: HttpTransport, access: ApiServerAccess) -> None:
        self.transport = transport
        self.url = access.url
        self.namespace = access.namespace
        self._time_source = _ServerTime(wall_clock(), 1.0, monotonic_seconds())
        self._served_versions: dict[str, str] = {}
        self._visibility_versions: Sequence[str] = _VISIBILITY_VERSIONS

    @property
    def now(self) -> Instant:
        """The server's time, extrapolated from the last `read_time`; before the first one, this machine's time."""
        instant, speed, read_at = self._time_source
        return instant + round((monotonic_seconds() - read_at) * SECOND * speed)

    async def read_time(self) -> None:
        """Read the virtual time and speed of a batchyard server, or the Date header of another server."""
        for path in TIME_PATHS:
            response = await self.get(path)
            reading = time_in_document(decode_object(response.body)) if response.code == HTTPStatus.OK else None
            if reading is not None:
                self._time_source = _ServerTime(*reading, monotonic_seconds())
                return
        if response.server_time:
            self._time_source = _ServerTime(response.server_time, 1.0, monotonic_seconds())

    async def list_objects(
        self, kind: str, namespace: str = "", query: str = "", *, is_required: bool = True
    ) -> Sequence[Obj] | None:
        """Return a kind's objects in a namespace ('' for all), in the kind's storage version; None if forbidden.

        `query` holds more URL parameters. If the server does not serve the kind, the list is empty, or with
        `is_required` ClusterRequestError is raised.
        """
        info = kind_info(kind)
        for version in self._versions_of(info):
            path = object_path(info, version, namespace) if namespace else kind_path(info, version)
            code, items = await self._list_pages(path, query)
            if code == HTTPStatus.NOT_FOUND:
                continue
            self._served_versions[kind] = version
            return None if code == HTTPStatus.FORBIDDEN else [to_storage_version(info, version, item) for item in items]
        if is_required:
            message = f"{self.url} does not serve {info.plural}.{info.group}"
            raise ClusterRequestError(f"{message}: install Kueue first, or select another cluster")
        return ()

    async def list_pending(self, queue_path: str) -> PendingList:
        """Return a queue's pending Workloads, or why Kueue's visibility API does not list them.

        `queue_path` is the path of the queue in the API, such as `clusterqueues/NAME`.
        """
        for version in self._visibility_versions:
            path = f"{_VISIBILITY_PATH}/{version}/{queue_path}/pendingworkloads"
            items: list[Obj] = []
            for _ in range(_PAGES_MAX):
                response = await self.get(f"{path}?limit={_VISIBILITY_PAGE_SIZE}&offset={len(items)}")
                page: Sequence[Obj] = decode_object(response.body).get("items") or ()
                items.extend(page)
                if len(page) < _VISIBILITY_PAGE_SIZE:
                    break
            if response.code == HTTPStatus.OK:
                self._visibility_versions = (version,)
                return PendingList(items)
            if response.code == HTTPStatus.FORBIDDEN:
                problem = f"no permission to get {queue_path}/pendingworkloads of {_VISIBILITY_GROUP}"
                return PendingList((), problem, is_forbidden=True)
        return PendingList((), f"the server does not serve pending Workloads ({_VISIBILITY_GROUP})")

    async def get(self, path: str, timeout_seconds: int = 30) -> HttpResponse:
        """Send a GET request; raise ClusterRequestError if there is no response, or for status 401 (Unauthorized)."""
        return await self._request(HttpRequest("GET", path, timeout=timeout_seconds * SECOND))

    async def merge_patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """Apply a JSON merge patch to the object at a path; raise ClusterRequestError if the request fails."""
        body = msgspec.json.encode(patch)
        response = await self._request(HttpRequest("PATCH", path, body, content_type=_MERGE_PATCH))
        if not 200 <= response.code < 300:
            raise ClusterRequestError(failure_reason(response))

    async def delete(self, path: str, uid: str) -> None:
        """Delete the object with this uid after its dependents (foreground); do nothing if the object does not exist.

        Raises ClusterRequestError if the request fails.
        """
        fields = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        options = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", **fields})
        response = await self._request(HttpRequest("DELETE", path, options))
        if not 200 <= response.code < 300 and response.code != HTTPStatus.NOT_FOUND:
            raise ClusterRequestError(failure_reason(response))

    async def path_of(self, api_version: str, kind: str, namespace: str, name: str) -> str:
        """Return the URL path of a namespaced object.

        Raises ClusterRequestError if the kind is neither built in nor served.
        """
        info = find_kind(api_version, kind)
        group, _, version = api_version.rpartition("/")
        if info is not None:
            return object_path(info, self._served_versions.get(info.constant, version), namespace, name)
        path = api_version_path(group, version)
        resources: Sequence[Mapping[str, Any]] = decode_object((await self.get(path)).body).get("resources") or ()
        for resource in resources:
            if resource["kind"] == kind and "/" not in resource["name"]:
                return f"{path}/namespaces/{quote(namespace)}/{resource['name']}/{quote(name)}"
        raise ClusterRequestError(f"{self.url} does not serve kind {kind} of {api_version}: install its definition")

    async def stream_log(
        self, path: str, query: str, since_time: str, handle_lines: Callable[[Sequence[bytes]], None]
    ) -> HttpResponse:
        """Stream the log of the pod at `path`, with timestamps, to `handle_lines`; return the response at the end."""
        since_query = f"&sinceTime={quote(since_time)}" if since_time else ""
        request = HttpRequest("GET", f"{path}/log?timestamps=true&{query}{since_query}", accept="*/*")
        return await self.transport.stream(request, handle_lines, deliver_incomplete_line=True)

    def _versions_of(self, info: ServedKind) -> Sequence[str]:
        if info.constant in self._served_versions:
            return [self._served_versions[info.constant]]
        return [info.storage_version, *[each for each in reversed(info.versions) if each != info.storage_version]]

    async def _list_pages(self, path: str, query: str) -> tuple[int, Sequence[Obj]]:
        """Return status code 200 and the items of all pages; on 403 or 404, that status code without items."""
        items: list[Obj] = []
        selector, next_page = f"&{query}" if query else "", ""
        for _ in range(_PAGES_MAX):
            response = await self.get(f"{path}?limit={LIST_PAGE_SIZE}{next_page}{selector}")
            if response.code in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
                return response.code, ()
            page = list_in_response(response)
            if page is None:
                raise ClusterRequestError(f"{self.url}: {failure_reason(response)}")
            items.extend(page.get("items") or ())
            token = page["metadata"].get("continue")
            if not token:
                return response.code, items
            next_page = f"&continue={quote(token, safe='')}"
        message = f"{self.url}{path}: more than {_PAGES_MAX * LIST_PAGE_SIZE:,} objects"
        remedy = "delete objects that have ended" if "/namespaces/" in path else "use -n NS"
        raise ClusterRequestError(f"{message}: {remedy}")

    async def _request(self, request: HttpRequest) -> HttpResponse:
        response = await self.transport.send_request(request)
        if not response.code or response.code == HTTPStatus.UNAUTHORIZED:
            raise ClusterRequestError(f"{self.url}: {failure_advice(response)}")
        return response


def run_in_cluster(target: ClusterTarget, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """Await `work`, called with a client of the target cluster, and return the result; exit with 1 on failure."""

    async def run() -> T:
        read_access = access_reader_of_target(target)
        access = await read_access()
        transport = HttpTransport(access, read_access)
        try:
            client = ClusterClient(transport, access)
            await client.read_time()
            return await work(client)
        finally:
            await transport.close()

    try:
        return asyncio.run(run())
    except (ClusterRequestError, *REQUEST_ERRORS) as error:
        output.fail(f"batchyard: {error}")


async def watch_objects(
    transport: HttpTransport,
    informer: Informer,
    on_events: Callable[[Sequence[WatchEvent]], None],
    on_request_end: Callable[[Informer], None],
) -> None:
    """List and watch an informer's objects until the task is cancelled; pass their changes to `on_events`.

    `on_request_end` is called after each request, whether it succeeded or failed.
    """

    def on_lines(lines: Sequence[bytes]) -> None:
        on_events(informer.process_watch_lines(lines))

    while True:
        plan = informer.plan_request()
        if plan.delay:
            await sleep_for(plan.delay)
        if plan.is_watch:
            informer.process_watch_end(await transport.stream(plan.request, on_lines))
        else:
            on_events(informer.process_list_page(await transport.send_request(plan.request)))
        on_request_end(informer)


class LogReader:
    """Passes the lines of a pod's timestamped log to `notify`, each at most once, even if the log is read again."""

    def __init__(self, pod: str, notify: Callable[[str, str], None]) -> None:
        self._pod = pod
        self._notify = notify
        #: The timestamp of the last reported line; `_reported_count` lines with it were reported.
        self.since = ""
        self._reported_count = 0
        self._lines_to_skip = 0

    def process_lines(self, lines: Sequence[bytes]) -> None:
        """Report the new lines of the log; skip lines that were reported before reading restarted."""
        for line in lines:
            timestamp, _, text = line.decode("utf-8", "replace").partition(" ")
            if timestamp == self.since and self._lines_to_skip:
                self._lines_to_skip -= 1
                continue
            if timestamp < self.since:
                continue
            self._reported_count = self._reported_count + 1 if timestamp == self.since else 1
            self.since = timestamp
            self._notify(self._pod, text)

    def restart_reading(self) -> None:
        """Prepare for reading the log again, from the timestamp of the last reported line."""
        self._lines_to_skip = self._reported_count
