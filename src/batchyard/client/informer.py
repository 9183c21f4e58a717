"""Informers with their cache of watched objects, a client that adds container runs, and the expiry of parsed objects.

An informer lists the objects of one kind, then watches them from the revision of the list. It sends nothing itself:
`plan_request` returns the next request, and other methods process the responses. Each change of the cache is reported
once, with the previous object. A watch that breaks off resumes at the last reported revision. If the server no longer
has that revision, or does not have it yet because it was restored from a backup, the informer lists again and reports
the differences as changes. If the server does not serve one version of the kind, the informer tries the other versions.
If the server serves no version, the informer retries periodically. Sources: client-go, tools/cache/reflector.go;
k8s.io/apimachinery, pkg/api/errors.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from batchyard.api import scheme
from batchyard.api.conversion import SharedParts
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind
from batchyard.api.views.node import forget_node_view
from batchyard.api.views.pods import forget_pod_view
from batchyard.api.views.workload import forget_workload_view
from batchyard.base.instant import SECOND, Duration
from batchyard.base.primitives import draw_integer
from batchyard.client import transport
from batchyard.interfaces.client import Delete, EventType, Listener, ObjectClient, WatchEvent, Write, WriteResult
from batchyard.interfaces.containers import RUN, ContainerRuntime

# The cache of watched objects, and an index of dependents by the uid of their owner. Each change updates both.


_DELETED = EventType.DELETED


class OwnerIndex:
    """An index of dependents: maps the uid of each owner to the keys of the objects that refer to it."""

    __slots__ = ("_dependents", "_sorted_dependents")

    def __init__(self) -> None:
        self._dependents: dict[str, dict[Key, None]] = {}
        self._sorted_dependents: dict[str, list[Key]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._dependents

    def observe(self, event: WatchEvent) -> None:
        """Update the index after a watch event, if it changes the owner references of its object."""
        kind, _, obj, old, _ = event
        old_references = old["metadata"].get("ownerReferences") if old is not None else None
        new_references = obj["metadata"].get("ownerReferences") if kind is not _DELETED else None
        if old_references is not new_references:
            self._replace(event.key, old_references or (), new_references or ())

    def owner_uids(self) -> Sequence[str]:
        """Return the uids of all owners that any indexed object refers to, including owners that do not exist."""
        return list(self._dependents)

    def dependents(self, uid: str, namespace: str = "") -> Sequence[Key]:
        """Return the sorted keys of an owner's dependents in a namespace ('' for all); `uid` is the owner's uid."""
        keys = self._sorted_dependents.get(uid)
        if keys is None:
            if uid not in self._dependents:
                return ()
            keys = self._sorted_dependents[uid] = sorted(self._dependents[uid])
        return [key for key in keys if key.namespace == namespace] if namespace else keys

    def _replace(self, key: Key, old_references: Sequence[Obj], new_references: Sequence[Obj]) -> None:
        for owner in old_references:
            self._remove_dependent(owner["uid"], key)
        for owner in new_references:
            self._add_dependent(owner["uid"], key)

    def _add_dependent(self, uid: str, key: Key) -> None:
        self._dependents.setdefault(uid, {})[key] = None
        self._sorted_dependents.pop(uid, None)

    def _remove_dependent(self, uid: str, key: Key) -> None:
        keys = self._dependents.get(uid)
        if keys is None or key not in keys:
            return  # an object may name one owner twice
        del keys[key]
        self._sorted_dependents.pop(uid, None)
        if not keys:
            del self._dependents[uid]


class ObjectCache:
    """A client-side cache of watched objects, by kind and key, with sorted keys and an index by owner."""

    __slots__ = ("_keys", "_objects", "_owners")

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {}
        self._keys: dict[str, list[Key]] = {}
        self._owners = OwnerIndex()

    def get(self, key: Key) -> Obj | None:
        """Return the cached object with this key, or None."""
        objects = self._objects.get(key.kind)
        return None if objects is None else objects.get(key)

    def of_kind(self, kind: str) -> dict[Key, Obj]:
        """Return the cached objects of a kind by key. The caller must not change the returned dict."""
        return self._objects.setdefault(kind, {})

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the cached objects of a kind in a namespace (None: in all), sorted by namespace and name."""
        objects, keys = self._objects.get(kind, {}), self._keys.get(kind, [])
        if namespace is not None:
            namespace_start = bisect_left(keys, Key(kind, namespace, ""))
            keys = keys[namespace_start : bisect_left(keys, Key(kind, namespace + "\0", ""), lo=namespace_start)]
        return [objects[key] for key in keys]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of the owner with this uid and namespace ('' if cluster-scoped), sorted by key."""
        return [self._objects[key.kind][key] for key in self._owners.dependents(uid, namespace)]

    def apply_event(self, event: WatchEvent) -> None:
        """Apply a watch event to the cache: store, replace or remove its object."""
        key = event.key
        objects, keys = self.of_kind(key.kind), self._keys.setdefault(key.kind, [])
        if event.type is _DELETED:
            del objects[key]
            del keys[bisect_left(keys, key)]
        else:
            if key not in objects:
                insort(keys, key)
            objects[key] = event.obj
        self._owners.observe(event)


#: The maximum number of objects in one page of a list.
LIST_PAGE_SIZE: Final = 500
#: The minimum timeout of a watch; the maximum is twice as long.
WATCH_SECONDS_MIN: Final = 300  # seconds
#: The timeout of a request for one page of a list.
_PAGE_TIMEOUT: Final = 60 * SECOND
#: The delay before the informer lists a kind again that the server does not serve.
UNSERVED_RETRY_DELAY: Final = 30 * SECOND
_EXPIRED_CODE: Final = 410
#: The Accept header that requests only the metadata of objects; servers without support for it send full objects.
_METADATA_ACCEPT: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_ADDED, _MODIFIED, _INFORMER_DELETED = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


class NextRequest(NamedTuple):
    """The next request of an informer (a list or a watch), and the delay before it is sent."""

    request: transport.HttpRequest
    is_watch: bool
    delay: Duration


class InformerScope(NamedTuple):
    """The objects of a kind that an informer lists and watches: a namespace ('' for all) and a selector query."""

    namespace: str = ""
    #: In query form, such as `fieldSelector=metadata.name%3Da`.
    selector: str = ""


_ALL_OBJECTS: Final = InformerScope()


class Informer:
    """An informer of one kind: lists and watches its objects, updates the cache, and schedules retries."""

    def __init__(self, info: ServedKind, cache: ObjectCache, seed: int, scope: InformerScope = _ALL_OBJECTS) -> None:
        self.info = info
        self._scope = scope
        self._cache = cache
        self._seed = seed
        self._versions = [info.storage_version, *[v for v in reversed(info.versions) if v != info.storage_version]]
        #: The number of versions that the server rejected since it last served one.
        self._rejected_versions = 0
        self._token = ""
        self._is_paged = True
        self._shared_parts = SharedParts()
        self._page: dict[Key, Obj] = {}
        self._wait: Duration = 0
        self._failures = 0
        #: How often in a row the revision of a watch expired (410) without any event in between.
        self._consecutive_expiries = 0
        #: The revision up to which changes were reported; None before the first list is complete.
        self.revision: int | None = None
        self._is_listed = False
        #: Whether the current watch has received any line.
        self._has_received = False
        #: The number of started lists, and the number of started watches.
        self.lists = 0
        self.watches = 0
        #: The number of completed lists.
        self.listings = 0
        #: The number of the last completed list, counted by `lists`.
        self.last_listed = 0
        #: The current error; '' if there is none.
        self.trouble = ""

    @property
    def version(self) -> str:
        """The API version in which the informer requests the kind."""
        return self._versions[self._rejected_versions % len(self._versions)]

    @property
    def is_served(self) -> bool:
        """Whether the server serves the kind in some version, as far as the informer knows."""
        return self._rejected_versions < len(self._versions)

    @property
    def is_synced(self) -> bool:
        """Whether the initial list is complete, or the kind is not served."""
        return self.revision is not None

    def plan_request(self) -> NextRequest:
        """Return the informer's next request: a page of a list, or a watch after the list is complete."""
        path = self._path()
        delay, self._wait = self._wait, 0
        if not self._is_listed:
            self.lists += not self._token
            request = transport.HttpRequest("GET", f"{path}{self._page_query()}", timeout=_PAGE_TIMEOUT)
            return NextRequest(request, False, delay)
        self.watches += 1
        self._has_received = False
        timeout_seconds = (
            WATCH_SECONDS_MIN + draw_integer(self._seed, self.info.constant, str(self.watches)) % WATCH_SECONDS_MIN
        )
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={self.revision}&timeoutSeconds={timeout_seconds}"
        watch_timeout = timeout_seconds * SECOND
        request = transport.HttpRequest("GET", f"{path}?{query}{self._label_selector_query()}", timeout=watch_timeout)
        return NextRequest(request, True, delay)

    def names_page_request(self, continue_token: str) -> transport.HttpRequest:
        """Return a request for a page of the objects' metadata; `continue_token` is '' for the first page."""
        next_page = f"&continue={quote(continue_token, safe='')}" if continue_token else ""
        query = f"?limit={LIST_PAGE_SIZE}{next_page}{self._label_selector_query()}"
        return transport.HttpRequest("GET", f"{self._path()}{query}", timeout=_PAGE_TIMEOUT, accept=_METADATA_ACCEPT)

    def process_list_page(self, response: transport.HttpResponse) -> Sequence[WatchEvent]:
        """Process the response to a list request, and return the resulting changes of the cache.

        The cache changes only after the last page, or after the server has rejected all versions of the kind.
        """
        list_page = transport.list_in_response(response)
        if list_page is None:
            return self._process_list_error(response)
        metadata = list_page.get("metadata") or {}
        for listed_item in list_page.get("items") or ():
            self._shared_parts.share(listed_item)
            obj = transport.to_storage_version(self.info, self.version, listed_item)
            self._page[transport.received_key(self.info, obj)] = obj
        self._token = metadata.get("continue") or ""
        if self._token:
            return ()
        listed_objects, self._page = self._page, {}
        self.listings += 1
        self.last_listed = self.lists
        self._reset_error_state()
        self._is_listed, self.revision = True, transport.revision_of(list_page)
        return self._compare_with_cache(listed_objects, self.revision)

    def process_watch_lines(self, lines: Sequence[bytes]) -> Sequence[WatchEvent]:
        """Apply lines of a watch to the cache, and return the changes.

        Empty `lines` mean that the server has accepted the watch.
        """
        self.trouble = ""
        self._has_received = self._has_received or bool(lines)
        events: list[WatchEvent] = []
        for line in lines:
            if not self._is_listed:
                break
            watch_event = transport.decode_object(line)
            obj = watch_event.get("object")
            match watch_event.get("type"):
                case "ADDED" | "MODIFIED" | "DELETED" as verb if transport.is_object(obj):
                    self._reset_error_state()
                    self._consecutive_expiries = 0
                    self._apply_watch_event(verb == "DELETED", obj, events)
                case "BOOKMARK" if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict):
                    self._reset_error_state()
                    self._consecutive_expiries = 0
                    self._advance_revision(transport.revision_of(obj))
                case "ERROR":
                    self._schedule_list_retry(_error_response(obj))
                case _:  # a truncated line, or one that is not from the Kubernetes API
                    self._schedule_list_retry(
                        transport.HttpResponse(
                            0, trouble="the API server sent an incomplete or invalid line in a watch"
                        )
                    )
        return events

    def process_watch_end(self, response: transport.HttpResponse) -> None:
        """Process the end of a watch: its timeout, a broken connection, or a rejection by the server."""
        if response.code != 200 or response.trouble:
            self._schedule_list_retry(response)
        elif not self._has_received:  # whatever the reason: do not retry in a tight loop
            self._failures += 1
            self._wait = transport.jittered_backoff(self._failures, self._seed, self.info.constant)

    def relist(self) -> None:
        """Drop the continue token and the pages read so far, so that the next request starts the list again."""
        self._is_listed, self._token = False, ""
        self._page.clear()

    def _path(self) -> str:
        namespace = self._scope.namespace
        if namespace:
            return transport.object_path(self.info, self.version, namespace)
        return transport.kind_path(self.info, self.version)

    def _label_selector_query(self) -> str:
        return f"&{self._scope.selector}" if self._scope.selector else ""

    def _page_query(self) -> str:
        if not self._is_paged:
            return f"?{self._scope.selector}" if self._scope.selector else ""
        next_page = f"&continue={quote(self._token, safe='')}" if self._token else ""
        return f"?limit={LIST_PAGE_SIZE}{next_page}{self._label_selector_query()}"

    def _apply_watch_event(self, is_deleted: bool, received_object: Any, events: list[WatchEvent]) -> None:
        self._shared_parts.share(received_object)
        obj = transport.to_storage_version(self.info, self.version, received_object)
        key, revision = transport.received_key(self.info, obj), transport.revision_of(obj)
        old = self._cache.get(key)
        self._advance_revision(revision)
        if old is not None and 0 < revision <= transport.revision_of(old):
            return
        if is_deleted and old is not None:
            self._apply_and_collect(WatchEvent(_INFORMER_DELETED, key, obj, old, revision), events)
        elif not is_deleted:
            self._store(key, obj, revision, events)

    def _store(self, key: Key, obj: Obj, revision: int, events: list[WatchEvent]) -> None:
        old = self._cache.get(key)
        if old is not None and old["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._apply_and_collect(WatchEvent(_INFORMER_DELETED, key, old, old, revision), events)
            old = None
        self._apply_and_collect(WatchEvent(_ADDED if old is None else _MODIFIED, key, obj, old, revision), events)

    def _apply_and_collect(self, event: WatchEvent, events: list[WatchEvent]) -> None:
        self._cache.apply_event(event)
        events.append(event)

    def _compare_with_cache(self, listed_objects: dict[Key, Obj], revision: int) -> Sequence[WatchEvent]:
        events: list[WatchEvent] = []
        cached_objects = self._cache.of_kind(self.info.constant)
        for key in sorted(key for key in cached_objects if key not in listed_objects):
            self._apply_and_collect(
                WatchEvent(_INFORMER_DELETED, key, cached_objects[key], cached_objects[key], revision), events
            )
        for key, obj in listed_objects.items():
            old = cached_objects.get(key)
            if (
                old is None
                or _resource_version(old) != _resource_version(obj)
                or old["metadata"].get("uid") != obj["metadata"].get("uid")
            ):
                self._store(key, obj, transport.revision_of(obj), events)
        return events

    def _advance_revision(self, revision: int) -> None:
        self.revision = max(self.revision or 0, revision)

    def _process_list_error(self, response: transport.HttpResponse) -> Sequence[WatchEvent]:
        if response.code == 404:
            return self._try_next_api_version()
        self._schedule_list_retry(response)
        return ()

    def _try_next_api_version(self) -> Sequence[WatchEvent]:
        self._rejected_versions += 1
        if self._rejected_versions % len(self._versions):
            return ()
        self._wait = UNSERVED_RETRY_DELAY
        self.trouble = f"{self.info.plural}.{self.info.group}".rstrip(".") + " are not served by the API server"
        self.revision = self.revision or 0
        return self._compare_with_cache({}, self.revision)

    def _schedule_list_retry(self, response: transport.HttpResponse) -> None:
        if response.code == _EXPIRED_CODE and self._token:
            self._is_paged = False  # a server that expires the continue token must send the list at once
        if response.code in {_EXPIRED_CODE, 404} or self._token or transport.is_revision_too_new(response):
            self.relist()
        if response.code == _EXPIRED_CODE:  # one expiry is normal; repeated ones must not load the server
            self._wait = transport.jittered_backoff(self._consecutive_expiries, self._seed, self.info.constant)
            self._consecutive_expiries += 1
            return
        self._failures += 1
        retry_delay = transport.jittered_backoff(self._failures, self._seed, self.info.constant)
        self._wait = max(retry_delay, response.retry_after or 0)
        self.trouble = transport.failure_reason(response)

    def _reset_error_state(self) -> None:
        self._failures, self._rejected_versions, self.trouble = 0, self._rejected_versions % len(self._versions), ""


def _error_response(status: Any) -> transport.HttpResponse:
    status_map = status if isinstance(status, dict) else {}
    code = status_map.get("code")
    return transport.HttpResponse(code if isinstance(code, int) else 500, trouble=str(status_map.get("message") or ""))


def _resource_version(obj: Obj) -> str | None:
    resource_version: str | None = obj["metadata"].get("resourceVersion")
    return resource_version


# A client that combines the objects of a store with the container runs of this machine.


class ResultDeliveringClient(ObjectClient, Protocol):
    """An API client that can also deliver the results of writes that another component has executed."""

    def queue_result(self, on_result: Callable[[WriteResult], None], result: WriteResult) -> None:
        """Schedule a call of `on_result` with the result of a write, on the event loop."""


class CompositeClient:
    """A client that sends writes of container runs to this machine's runtime, and other writes to an API client."""

    def __init__(self, object_client: ResultDeliveringClient, container_runtime: ContainerRuntime) -> None:
        self._objects = object_client
        self._machine = container_runtime

    def get(self, key: Key) -> Obj | None:
        """Return the container run or object with this key, or None."""
        return self._machine.find_run(key) if key.kind == RUN else self._objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return a kind's objects in a namespace (None: in all); for container runs, `namespace` is a pod's uid."""
        return self._machine.runs(namespace) if kind == RUN else self._objects.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of the owner with this uid and namespace ('' if cluster-scoped), sorted by key.

        Container runs are not included.
        """
        return self._objects.owned_by(uid, namespace)

    def submit(self, writes: Sequence[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Apply writes of container runs at once, then submit the writes of API objects.

        `on_result` gets the result of the API writes, or if there are none, that of the last write of a container run.
        """
        object_writes = [write for write in writes if not _is_run_write(write)]
        run_results = [WriteResult(self._machine.execute_write(write)) for write in writes if _is_run_write(write)]
        if object_writes:
            self._objects.submit(object_writes, on_result)
        else:
            self._objects.queue_result(on_result, run_results[-1])

    def subscribe(self, event_listener: Listener) -> None:
        """Call the listener with every later change of objects and of container runs."""
        self._objects.subscribe(event_listener)
        self._machine.subscribe(event_listener)

    def is_settled(self) -> bool:
        """Return whether all changes of API objects and all results of writes have been delivered."""
        return self._objects.is_settled()


def _is_run_write(write: Write) -> bool:
    if isinstance(write, Delete):
        return write.key.kind == RUN
    return bool(write.obj["kind"] == "Run" and write.obj["apiVersion"].startswith(RUN.partition(".")[2]))


# Drops the cached views (parsed forms) of deleted objects, to bound the memory of a long-running process.
#
# Subscribers that get the batch later, and watches that wait for the journal, read a deleted object once more. So its
# view stays until KEPT_VIEWS_MAX other objects were deleted.


#: The number of deleted objects whose views stay in the cache.
KEPT_VIEWS_MAX: Final = 256
_VIEW_FORGETTERS: Final[Mapping[str, Callable[[str], None]]] = {
    scheme.NODE: forget_node_view,
    scheme.POD: forget_pod_view,
    scheme.WORKLOAD: forget_workload_view,
}


class ViewExpiry:
    """Drops cached parsed forms of deleted Nodes, Pods and Workloads, after KEPT_VIEWS_MAX later deletions."""

    def __init__(self) -> None:
        self._deleted: deque[tuple[str, str]] = deque()

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Record the objects that these events delete; keep the parsed forms of the last KEPT_VIEWS_MAX of them."""
        for event in events:
            if event.type is EventType.DELETED and event.key.kind in _VIEW_FORGETTERS:
                self._deleted.append((event.key.kind, event.obj["metadata"].get("uid", "")))
        while len(self._deleted) > KEPT_VIEWS_MAX:
            kind, uid = self._deleted.popleft()
            _VIEW_FORGETTERS[kind](uid)
