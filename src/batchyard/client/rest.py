"""The client of a remote API server: reads from a cache that watches fill, and sends writes as HTTP requests.

A watch event is in the cache before listeners get it, in the same step of the event loop. A write has two
confirmations, in any order: the server's response and its watch event. `on_result` is called when both have arrived, so
that the writer sees its own write in the cache. A Conflict is likewise reported when the cache holds a newer version of
the object, but a second later at most, so that the writer's next attempt is not based on the outdated version again.

Kinds that are not watched, such as Events, can be written too: for these the client keeps its own last writes, up to a
limit. A staleness check finds out when the watches have caught up.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.errors import Conflict, NotFound
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.base.instant import SECOND, Instant
from batchyard.client.informer import Informer, ObjectCache
from batchyard.client.transport import HttpResponse, RateLimit, Transport, list_in_response, received_key, revision_of
from batchyard.client.write_queue import Submission, WriteQueue, WriteResponse
from batchyard.interfaces.client import Create, Delete, EventType, Listener, Reader, WatchEvent, Write, WriteResult
from batchyard.interfaces.controller import Kernel

UNWATCHED_OBJECTS_MAX: Final = 4096
#: A Conflict is reported after this time at the latest: it may have another cause than an outdated cache.
_CONFLICT_DELAY_MAX: Final = SECOND


@dataclass(frozen=True, slots=True)
class ClientDependencies:
    """The dependencies of a RestClient: event loop, real-time timers, transport, rate limit, permission to write, seed.

    `may_write` returns whether writes may be sent now. If `kernel` runs in real time, `timers` may be the same object.
    """

    kernel: Kernel
    timers: Kernel
    transport: Transport
    limit: RateLimit
    may_write: Callable[[], bool]
    seed: int = 0


class _ConfirmationCondition(NamedTuple):
    """What confirms a write: the informer has reached a revision, or the object with a uid is gone from its cache.

    A Conflict is confirmed by another version of the object than the version on which the write was based. A binding is
    confirmed by the pod with a node, or by the absence of the pod with this uid. A list that starts after the response
    confirms any write, even if the server was restored from a backup since.
    """

    key: Key
    revision: int
    #: The uid of a deleted object or of a bound pod; '' for other writes.
    deleted_object_uid: str
    #: The number of lists of the kind that were started before the response.
    list_count_at_write: int
    outdated_version: str = ""
    is_binding: bool = False


class _PendingResult:
    __slots__ = ("on_result", "pending_events", "result", "submission")

    def __init__(self, submission: Submission, on_result: Callable[[WriteResult], None], result: WriteResult) -> None:
        self.submission = submission
        self.on_result = on_result
        self.result = result
        self.pending_events = 1


class RestClient:
    """A client of a remote API server: an informer for each watched kind, their cache, and a write queue."""

    def __init__(
        self, dependencies: ClientDependencies, kinds: Sequence[str], external_kinds: Sequence[ServedKind] = ()
    ) -> None:
        """Create the client; `external_kinds` are other kinds to watch, such as those of other controllers' jobs."""
        self._dependencies = dependencies
        self._cache = ObjectCache()
        watched_kinds = [*map(kind_info, kinds), *external_kinds]
        self.informers = {info.constant: Informer(info, self._cache, dependencies.seed) for info in watched_kinds}
        self.outbox = WriteQueue(
            dependencies.timers, dependencies.transport, dependencies.limit, self._target_of, dependencies.may_write
        )
        self._is_started = False
        self._listeners: list[Listener] = []
        #: By kind, the events that must arrive before a writer gets its result.
        self._pending_confirmations: dict[str, list[tuple[_ConfirmationCondition, _PendingResult]]] = {}
        #: The last writes of kinds that are not watched.
        self._unwatched_objects: OrderedDict[Key, Obj] = OrderedDict()
        #: Called with an informer after its list or watch received data or failed.
        self.on_new_data: Callable[[Informer], None] = _ignore_informer_change

    def start(self) -> None:
        """Start to list and watch all kinds."""
        self._is_started = True
        for informer in self.informers.values():
            self._send_next_request(informer)

    def watch_kind(self, info: ServedKind) -> None:
        """List and watch another kind, at once or from the start on; do nothing if it is watched already."""
        if info.constant not in self.informers:
            informer = self.informers[info.constant] = Informer(info, self._cache, self._dependencies.seed)
            if self._is_started:
                self._send_next_request(informer)

    @property
    def is_synced(self) -> bool:
        """Whether the initial lists of all watched kinds that the server serves are complete."""
        return all(informer.is_synced for informer in self.informers.values())

    def added_events(self) -> Sequence[WatchEvent]:
        """Return all cached objects as ADDED events."""
        cached_objects = [obj for kind in self.informers for obj in self._cache.list(kind)]
        return [WatchEvent(EventType.ADDED, key_of(obj), obj, None, revision_of(obj)) for obj in cached_objects]

    def get(self, key: Key) -> Obj | None:
        """Return the object as last received from the server, or None if the cache does not contain it.

        Of a kind that is not watched, the cache contains only objects that this client wrote recently.
        """
        return self._cache.get(key) if key.kind in self.informers else self._unwatched_objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the cached objects of a kind in a namespace (None: in all), sorted by namespace and name."""
        return self._cache.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of the owner with this uid and namespace ('' if cluster-scoped), sorted by key."""
        return self._cache.owned_by(uid, namespace)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener`, in the event loop, with later changes in order, in batches of one kind each."""
        self._listeners.append(listener)

    def is_settled(self) -> bool:
        """Return True: events of the server are delivered as soon as they arrive."""
        return True

    def submit(self, writes: Sequence[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Send writes in order until one is rejected; `on_result` later gets the result of the last attempted write."""
        last_write = writes[-1]
        known_object = self.get(last_write.key) if isinstance(last_write, Delete) else None
        base_objects = [self._find_base_object(write) for write in writes]
        submission = Submission(writes, partial(self._process_responses, on_result, known_object), base_objects)
        self.outbox.submit(submission)

    def _find_base_object(self, write: Write) -> Obj | None:
        """Return the cached object on which an update is based; None for a Create or a Delete.

        Return None also if the write names another resourceVersion than the cached one.
        """
        if isinstance(write, Create | Delete):
            return None
        base_object = self.get(key_of(write.obj))
        named_revision = write.obj["metadata"].get("resourceVersion")
        is_base = base_object is not None and named_revision in {None, base_object["metadata"].get("resourceVersion")}
        return base_object if is_base else None

    def _target_of(self, kind: str) -> tuple[ServedKind, str]:
        """Return the names of a kind, and the version in which its objects are written."""
        kind_informer = self.informers.get(kind)
        if kind_informer is not None:
            return kind_informer.info, kind_informer.version
        info = kind_info(kind)
        return info, info.storage_version

    def _send_next_request(self, informer: Informer) -> None:
        planned_request = informer.plan_request()
        transport = self._dependencies.transport
        if planned_request.is_watch:
            on_lines, on_end = partial(self._process_watch_lines, informer), partial(self._process_watch_end, informer)
            start_request = partial(transport.watch, planned_request.request, on_lines, on_end)
        else:
            start_request = partial(transport.send, planned_request.request, partial(self._process_list_page, informer))
        if planned_request.delay:
            timers = self._dependencies.timers
            timers.call_at(timers.now() + planned_request.delay, start_request)
        else:
            start_request()

    def _process_list_page(self, informer: Informer, response: HttpResponse) -> None:
        self._deliver_events(informer, informer.process_list_page(response))
        self._send_next_request(informer)

    def _process_watch_lines(self, informer: Informer, lines: Sequence[bytes]) -> None:
        self._deliver_events(informer, informer.process_watch_lines(lines))

    def _process_watch_end(self, informer: Informer, response: HttpResponse) -> None:
        informer.process_watch_end(response)
        self.on_new_data(informer)
        self._send_next_request(informer)

    def _deliver_events(self, informer: Informer, events: Sequence[WatchEvent]) -> None:
        if events:
            for listener in self._listeners:
                listener(events)
        kind = informer.info.constant
        pending_confirmations = self._pending_confirmations.get(kind)
        if pending_confirmations:
            self._pending_confirmations[kind] = []
            for confirmation, pending_result in pending_confirmations:
                if self._is_confirmed(confirmation):
                    self._count_confirmed_write(pending_result)
                else:
                    self._pending_confirmations[kind].append((confirmation, pending_result))
        self.on_new_data(informer)

    def _process_responses(
        self, on_result: Callable[[WriteResult], None], base: Obj | None, submission: Submission
    ) -> None:
        """Deliver a submission's result once the watches show its writes.

        `base` is the cached object if the last write is a Delete, else None.
        """
        pending_result = _PendingResult(submission, on_result, _result_from_response(submission.responses[-1], base))
        for response in submission.responses:
            confirmation = self._confirmation_for(response)
            if confirmation is not None and not self._is_confirmed(confirmation):
                pending_result.pending_events += 1
                self._pending_confirmations.setdefault(confirmation.key.kind, []).append((confirmation, pending_result))
        self._await_newer_version(pending_result)
        self._count_confirmed_write(pending_result)

    def _await_newer_version(self, pending_result: _PendingResult) -> None:
        """Delay the report of a Conflict until the cache has a newer version of the object, for a limited time."""
        submission = pending_result.submission
        response, base = submission.responses[-1], submission.base_objects[len(submission.responses) - 1]
        if not isinstance(response.error, Conflict) or base is None:
            return
        key = key_of(base)
        if key.kind not in self.informers:
            return
        lists, base_version = self.informers[key.kind].lists, base["metadata"]["resourceVersion"]
        confirmation = _ConfirmationCondition(key, 0, "", lists, base_version)
        if self._is_confirmed(confirmation):
            return
        pending_result.pending_events += 1
        self._pending_confirmations.setdefault(key.kind, []).append((confirmation, pending_result))
        timers = self._dependencies.timers
        give_up = partial(self._stop_waiting, confirmation, pending_result)
        timers.call_at(timers.now() + _CONFLICT_DELAY_MAX, give_up)

    def _stop_waiting(self, confirmation: _ConfirmationCondition, pending_result: _PendingResult) -> None:
        pending_confirmations = self._pending_confirmations[confirmation.key.kind]
        if (confirmation, pending_result) in pending_confirmations:
            pending_confirmations.remove((confirmation, pending_result))
            self._count_confirmed_write(pending_result)

    def _confirmation_for(self, response: WriteResponse) -> _ConfirmationCondition | None:
        """Return what a watch must deliver to confirm a write; None if nothing needs to be confirmed.

        If the kind of the object is not watched, the written object is kept for later updates.
        """
        write, response_body = response.write, response.body
        key = write.key if isinstance(write, Delete) else key_of(response_body) if response.error is None else None
        if response.error is not None or key is None or key.kind not in self.informers:
            self._store_unwatched_object(response)
            return None
        metadata = response_body.get("metadata") or {}
        is_marked_deleted = "deletionTimestamp" in metadata
        is_deletion_delayed = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        list_count_at_write = self.informers[key.kind].lists
        is_deletion = not is_deletion_delayed and (is_marked_deleted or isinstance(write, Delete))
        if not is_deletion and not response.is_binding:
            return _ConfirmationCondition(key, revision_of(response_body), "", list_count_at_write)
        cached_object = self._cache.get(key)
        uid = metadata.get("uid") or (response_body.get("details") or {}).get("uid")
        if cached_object is None:
            return None
        awaited_uid = uid or cached_object["metadata"]["uid"]
        return _ConfirmationCondition(key, 0, awaited_uid, list_count_at_write, is_binding=response.is_binding)

    def _is_confirmed(self, confirmation: _ConfirmationCondition) -> bool:
        informer = self.informers[confirmation.key.kind]
        if informer.last_listed > confirmation.list_count_at_write:
            return True
        if not confirmation.deleted_object_uid and not confirmation.outdated_version:
            return (informer.revision or 0) >= confirmation.revision
        cached_object = self._cache.get(confirmation.key)
        if confirmation.outdated_version and cached_object is not None:
            return bool(cached_object["metadata"]["resourceVersion"] != confirmation.outdated_version)
        if confirmation.is_binding and cached_object is not None and cached_object["spec"].get("nodeName"):
            return True
        return cached_object is None or cached_object["metadata"]["uid"] != confirmation.deleted_object_uid

    def _count_confirmed_write(self, pending_result: _PendingResult) -> None:
        pending_result.pending_events -= 1
        if not pending_result.pending_events:
            pending_result.on_result(pending_result.result)
            self.outbox.finish(pending_result.submission)

    def _store_unwatched_object(self, response: WriteResponse) -> None:
        write = response.write
        if response.is_binding or (isinstance(response.error, NotFound) and not isinstance(write, Create)):
            self._unwatched_objects.pop(write.key if isinstance(write, Delete) else key_of(write.obj), None)
        elif response.error is None and not isinstance(write, Delete):
            self._unwatched_objects[key_of(response.body)] = response.body
            if len(self._unwatched_objects) > UNWATCHED_OBJECTS_MAX:
                self._unwatched_objects.popitem(last=False)


def _result_from_response(response: WriteResponse, known_object: Obj | None) -> WriteResult:
    write, body = response.write, response.body
    if response.error is not None:
        return WriteResult(None, response.error, write)
    if not isinstance(write, Delete) or body.get("kind") == write.key.kind.partition(".")[0]:
        return WriteResult(body)
    if known_object is not None:
        return WriteResult(known_object)
    info, (_, namespace, name) = kind_info(write.key.kind), write.key
    object_name = {"namespace": namespace, "name": name}
    return WriteResult({"apiVersion": info.api_version, "kind": info.kind, "metadata": object_name})


def _ignore_informer_change(_informer: Informer) -> None:
    pass


# Staleness check: lists the server's objects and compares them with the cache, to detect when the watches have caught
# up.
#
# Each watch may lag by a different time, and bookmarks arrive only about once a minute. A list returns the current
# state. A watch has caught up with a list once it has reached the revision of the list. It has also caught up once the
# cache holds exactly the listed objects, in the same or a later revision. Source: Kubernetes API concepts, "Resource
# versions" (a list without a resourceVersion returns the most recent state).


#: The minimum time between two staleness checks.
_CHECK_INTERVAL: Final = SECOND


class StalenessCheck:
    """Checks that all watches of a client have caught up with the server; `on_caught_up` is called when they have."""

    def __init__(
        self, client: RestClient, transport: Transport, timers: Kernel, on_caught_up: Callable[[], None]
    ) -> None:
        self._client = client
        self._transport = transport
        self._timers = timers
        self._on_caught_up = on_caught_up
        #: All changes before this instant have been received.
        self.caught_up_to: Instant = 0
        self._is_running = False
        self._started_at: Instant = 0
        #: The listed objects of each kind whose watch has not caught up yet.
        self._unconfirmed_lists: dict[str, _ListedObjects] = {}

    def request_check(self) -> None:
        """Request a staleness check; do nothing if one is scheduled or running."""
        if not self._is_running:
            self._is_running = True
            self._timers.call_at(max(self._timers.now(), self._started_at + _CHECK_INTERVAL), self._list_all_kinds)

    def on_informer_update(self, informer: Informer) -> None:
        """Check again whether the watch of this informer has caught up, after its list or watch has received data."""
        listed_objects = self._unconfirmed_lists.get(informer.info.constant)
        if listed_objects is not None and listed_objects.has_caught_up(informer, self._client):
            del self._unconfirmed_lists[informer.info.constant]
            if not self._unconfirmed_lists:
                self._is_running, self.caught_up_to = False, self._started_at
                self._on_caught_up()

    def _list_all_kinds(self) -> None:
        self._started_at = self._timers.now()
        self._unconfirmed_lists = {kind: _ListedObjects() for kind in self._client.informers}
        for informer in self._client.informers.values():
            self._request_page(informer, "")

    def _request_page(self, informer: Informer, continue_token: str) -> None:
        self._transport.send(informer.names_page_request(continue_token), partial(self._process_page, informer))

    def _process_page(self, informer: Informer, response: HttpResponse) -> None:
        listed_objects = self._unconfirmed_lists[informer.info.constant]
        page = list_in_response(response)
        if page is not None and (token := listed_objects.add_page(informer, page)):
            self._request_page(informer, token)
        elif page is not None or not informer.is_served:
            listed_objects.is_complete = True
            self.on_informer_update(informer)
        else:
            listed_objects.revisions.clear()
            self._timers.call_at(self._timers.now() + _CHECK_INTERVAL, partial(self._request_page, informer, ""))


class _ListedObjects:
    def __init__(self) -> None:
        self.revisions: dict[Key, int] = {}
        self.revision = 0
        self.is_complete = False
        #: The keys that differed from the cache at the last comparison; None before the first comparison.
        self._differing_keys: list[Key] | None = None

    def add_page(self, informer: Informer, page: Mapping[str, Any]) -> str:
        for item in page.get("items") or ():
            self.revisions[received_key(informer.info, item)] = revision_of(item)
        self.revision = revision_of(page)
        return (page.get("metadata") or {}).get("continue") or ""

    def has_caught_up(self, informer: Informer, cache: Reader) -> bool:
        if not self.is_complete:
            return False
        if not informer.is_served or (informer.revision or 0) >= self.revision:
            return True
        if self._differing_keys is None:
            cached_keys = (received_key(informer.info, obj) for obj in cache.list(informer.info.constant))
            self._differing_keys = list(dict.fromkeys([*self.revisions, *cached_keys]))
        self._differing_keys = [key for key in self._differing_keys if not self._matches_cache(key, cache)]
        return not self._differing_keys

    def _matches_cache(self, key: Key, cache: Reader) -> bool:
        obj = cache.get(key)
        if key in self.revisions:
            return obj is not None and revision_of(obj) >= self.revisions[key]
        return obj is None or revision_of(obj) > self.revision
