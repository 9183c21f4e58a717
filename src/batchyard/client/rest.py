"""The client of a remote API server: a cache filled by watches, and writes as HTTP requests.

A watch event is in the cache before listeners get it, in the same step of the event loop. A write has two
confirmations, in any order: the server's response and its watch event. `done` is called when both have arrived, so that
the writer sees its own write in the cache. Kinds that are not watched, such as Events, are written too. For those the
client keeps its own last writes, up to a limit.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.errors import NotFound
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.scheme import kind_info
from batchyard.base.instant import SECOND, Instant
from batchyard.client.informer import Cache, Informer
from batchyard.client.transport import HttpAnswer, RateLimit, Transport, key_in, list_in, revision_of
from batchyard.client.write_queue import Submission, WriteQueue, WriteResponse
from batchyard.interfaces.client import Create, Delete, EventType, Listener, Reader, WatchEvent, Write, WriteResult
from batchyard.interfaces.controller import Kernel

REMEMBERED_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class ClientDependencies:
    """The dependencies of a client: event loop, real-time timers, transport, rate limit, and the gate for writes.

    Both event loops are the same if the platform runs in real time.
    """

    kernel: Kernel
    timers: Kernel
    transport: Transport
    limit: RateLimit
    gate: Callable[[], bool]
    seed: int = 0


class _Confirmation(NamedTuple):
    """The event that confirms a write: a revision of its kind, or the deletion of an object with that uid.

    A list that was started after the response also confirms it, even if the server was restored from a backup since.
    """

    key: Key
    revision: int
    gone: str
    #: The number of lists of its kind that were started before.
    lists: int


class _PendingResult:
    """A submission with all responses, and the number of events that it still waits for."""

    __slots__ = ("done", "left", "result", "submission")

    def __init__(self, submission: Submission, done: Callable[[WriteResult], None], result: WriteResult) -> None:
        self.submission = submission
        self.done = done
        self.result = result
        self.left = 1


class RestClient:
    """The client: an informer for each watched kind, their cache, and a queue of writes."""

    def __init__(self, wiring: ClientDependencies, kinds: Sequence[str]) -> None:
        self._wiring = wiring
        self._cache = Cache()
        self.informers = {kind: Informer(kind_info(kind), self._cache, wiring.seed) for kind in kinds}
        self.outbox = WriteQueue(wiring.timers, wiring.transport, wiring.limit, self._version_of, wiring.gate)
        self._listeners: list[Listener] = []
        #: By kind, the events that must arrive before a writer gets its result.
        self._awaited: dict[str, list[tuple[_Confirmation, _PendingResult]]] = {}
        #: The last writes of kinds that are not watched.
        self._written: OrderedDict[Key, Obj] = OrderedDict()
        #: Called when a list or a watch has received something or failed.
        self.on_news: Callable[[Informer], None] = _ignore_news

    def start(self) -> None:
        """Start to list and watch."""
        for informer in self.informers.values():
            self._send_next(informer)

    @property
    def is_synced(self) -> bool:
        """Whether all initial lists are complete."""
        return all(informer.is_synced for informer in self.informers.values())

    def everything(self) -> Sequence[WatchEvent]:
        """Return all objects as ADDED events."""
        found = [obj for kind in self.informers for obj in self._cache.list(kind)]
        return [WatchEvent(EventType.ADDED, key_of(obj), obj, None, revision_of(obj)) for obj in found]

    def get(self, key: Key) -> Obj | None:
        """Return the object as last seen, or None."""
        return self._cache.get(key) if key.kind in self.informers else self._written.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""
        return self._cache.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of an owner by its uid, in a namespace or cluster-scoped (''), sorted by key."""
        return self._cache.owned_by(uid, namespace)

    def subscribe(self, listener: Listener) -> None:
        """Call the listener with later changes, in order, in batches, from the event loop and never re-entrantly."""
        self._listeners.append(listener)

    def settled(self) -> bool:
        """Return True: events are delivered as they arrive."""
        return True

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Send writes in order until one is rejected; `done` later gets the result of the last one tried."""
        last = writes[-1]
        known = self.get(last.key) if isinstance(last, Delete) else None
        bases = [self._base_of(write) for write in writes]
        submission = Submission(writes, partial(self._answered, done, known), bases)
        self.outbox.submit(submission)

    def _base_of(self, write: Write) -> Obj | None:
        """Return the cached object that a write changes, unless the write names another revision."""
        if isinstance(write, Create | Delete):
            return None
        known = self.get(key_of(write.obj))
        named = write.obj["metadata"].get("resourceVersion")
        is_base = known is not None and named in {None, known["metadata"].get("resourceVersion")}
        return known if is_base else None

    def _version_of(self, kind: str) -> str:
        """Return the version in which a kind is written."""
        informer = self.informers.get(kind)
        return kind_info(kind).storage_version if informer is None else informer.version

    def _send_next(self, informer: Informer) -> None:
        """Send the next request of an informer, after its wait."""
        following = informer.following()
        transport = self._wiring.transport
        if following.is_watch:
            watched, ended = partial(self._watched, informer), partial(self._watch_ended, informer)
            ask = partial(transport.watch, following.request, watched, ended)
        else:
            ask = partial(transport.send, following.request, partial(self._listed, informer))
        if following.wait:
            timers = self._wiring.timers
            timers.call_at(timers.now() + following.wait, ask)
        else:
            ask()

    def _listed(self, informer: Informer, answer: HttpAnswer) -> None:
        self._deliver(informer, informer.listed(answer))
        self._send_next(informer)

    def _watched(self, informer: Informer, lines: Sequence[bytes]) -> None:
        self._deliver(informer, informer.watched(lines))

    def _watch_ended(self, informer: Informer, answer: HttpAnswer) -> None:
        informer.ended(answer)
        self.on_news(informer)
        self._send_next(informer)

    def _deliver(self, informer: Informer, events: Sequence[WatchEvent]) -> None:
        """Deliver changes to listeners, then results to the writers that waited for them."""
        if events:
            for listener in self._listeners:
                listener(events)
        kind = informer.info.constant
        waiting = self._awaited.get(kind)
        if waiting:
            self._awaited[kind] = []
            for awaited, expected in waiting:
                if self._is_seen(awaited):
                    self._seen(expected)
                else:
                    self._awaited[kind].append((awaited, expected))
        self.on_news(informer)

    def _answered(self, done: Callable[[WriteResult], None], known: Obj | None, submission: Submission) -> None:
        """All requests of a submission have responses: wait for the events of its changes."""
        expected = _PendingResult(submission, done, _result_of(submission.answered[-1], known))
        for written in submission.answered:
            awaited = self._awaited_of(written)
            if awaited is not None and not self._is_seen(awaited):
                expected.left += 1
                self._awaited.setdefault(awaited.key.kind, []).append((awaited, expected))
        self._seen(expected)

    def _awaited_of(self, written: WriteResponse) -> _Confirmation | None:
        """Return the event that confirms a write; None if it was rejected, or its kind is not watched."""
        write, body = written.write, written.body
        key = write.key if isinstance(write, Delete) else key_of(body) if written.error is None else None
        if written.error is not None or key is None or key.kind not in self.informers:
            self._remember(written)
            return None
        metadata = body.get("metadata") or {}
        is_marked = "deletionTimestamp" in metadata
        is_held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        lists = self.informers[key.kind].lists
        if is_held or not (is_marked or isinstance(write, Delete)):
            return _Confirmation(key, revision_of(body), "", lists)
        known = self._cache.get(key)
        uid = metadata.get("uid") or (body.get("details") or {}).get("uid")
        return None if known is None else _Confirmation(key, 0, uid or known["metadata"]["uid"], lists)

    def _is_seen(self, awaited: _Confirmation) -> bool:
        informer = self.informers[awaited.key.kind]
        if informer.last_listed > awaited.lists:
            return True
        if not awaited.gone:
            return (informer.revision or 0) >= awaited.revision
        known = self._cache.get(awaited.key)
        return known is None or known["metadata"]["uid"] != awaited.gone

    def _seen(self, expected: _PendingResult) -> None:
        """Count one confirmation; deliver the result after the last."""
        expected.left -= 1
        if not expected.left:
            expected.done(expected.result)
            self.outbox.finish(expected.submission)

    def _remember(self, written: WriteResponse) -> None:
        """Keep the last write of an object of a kind that is not watched, as the base of later writes."""
        write = written.write
        if isinstance(written.error, NotFound) and not isinstance(write, Create):
            self._written.pop(write.key if isinstance(write, Delete) else key_of(write.obj), None)
        elif written.error is None and not isinstance(write, Delete):
            self._written[key_of(written.body)] = written.body
            if len(self._written) > REMEMBERED_MAX:
                self._written.popitem(last=False)


def _result_of(written: WriteResponse, known: Obj | None) -> WriteResult:
    """Return the result of a write: the object as stored; for a deleted object, its last known state."""
    write, body = written.write, written.body
    if written.error is not None:
        return WriteResult(None, written.error, write)
    if not isinstance(write, Delete) or body.get("kind") == kind_info(write.key.kind).kind:
        return WriteResult(body)
    info, (_, namespace, name) = kind_info(write.key.kind), write.key
    place = {"namespace": namespace, "name": name}
    return WriteResult(known or {"apiVersion": info.api_version, "kind": info.kind, "metadata": place})


def _ignore_news(_informer: Informer) -> None:
    pass


# --- staleness ---
#
# Staleness check: lists the server's objects and compares them with the cache, to find out when watches have caught
# up.
#
# Each watch may be late by a different time, and bookmarks arrive only about once a minute. A list is not late. A watch
# has caught up with it once it has reached its revision. It has also caught up once the cache holds all listed objects,
# in the same or a later revision, and no others. Source: Kubernetes API concepts, "Resource versions" (a list without a
# resourceVersion returns the most recent state).


#: The minimum time between two checks.
_PAUSE: Final = SECOND


class StalenessCheck:
    """The state of the check. A callback runs when `known_to` advances."""

    def __init__(self, client: RestClient, transport: Transport, timers: Kernel, caught_up: Callable[[], None]) -> None:
        self._client = client
        self._transport = transport
        self._timers = timers
        self._on_caught_up = caught_up
        #: All changes before this time have been received.
        self.known_to: Instant = 0
        self._is_asking = False
        self._asked_at: Instant = 0
        #: The listed objects of each kind whose watch has not caught up yet.
        self._open: dict[str, _ListedObjects] = {}

    def ask(self) -> None:
        """Start a check, unless one is running."""
        if not self._is_asking:
            self._is_asking = True
            self._timers.call_at(max(self._timers.now(), self._asked_at + _PAUSE), self._ask_all)

    def heard(self, informer: Informer) -> None:
        """Process a report of an informer: a list or a watch event has arrived."""
        listed = self._open.get(informer.info.constant)
        if listed is not None and listed.is_known(informer, self._client):
            del self._open[informer.info.constant]
            if not self._open:
                self._is_asking, self.known_to = False, self._asked_at
                self._on_caught_up()

    def _ask_all(self) -> None:
        self._asked_at = self._timers.now()
        self._open = {kind: _ListedObjects() for kind in self._client.informers}
        for informer in self._client.informers.values():
            self._ask(informer, "")

    def _ask(self, informer: Informer, token: str) -> None:
        self._transport.send(informer.look(token), partial(self._answered, informer))

    def _answered(self, informer: Informer, answer: HttpAnswer) -> None:
        """Process a page of a list; if the request failed, restart the list, unless the kind is not served."""
        listed = self._open[informer.info.constant]
        page = list_in(answer)
        if page is not None and (token := listed.take_in(informer, page)):
            self._ask(informer, token)
        elif page is not None or not informer.is_served:
            listed.is_whole = True
            self.heard(informer)
        else:
            listed.revisions.clear()
            self._timers.call_at(self._timers.now() + _PAUSE, partial(self._ask, informer, ""))


class _ListedObjects:
    """The objects of one kind that the server listed."""

    def __init__(self) -> None:
        self.revisions: dict[Key, int] = {}
        self.revision = 0
        self.is_whole = False
        #: The listed keys that the cache did not have at the last comparison, once compared.
        self._missing: list[Key] | None = None

    def take_in(self, informer: Informer, page: Mapping[str, Any]) -> str:
        """Add a page; return the continue token of the next, '' after the last."""
        for item in page.get("items") or ():
            self.revisions[key_in(informer.info, item)] = revision_of(item)
        self.revision = revision_of(page)
        return (page.get("metadata") or {}).get("continue") or ""

    def is_known(self, informer: Informer, known: Reader) -> bool:
        """Report whether the watch has received all listed objects."""
        if not self.is_whole:
            return False
        if not informer.is_served or (informer.revision or 0) >= self.revision:
            return True
        if self._missing is None:
            found = (key_in(informer.info, obj) for obj in known.list(informer.info.constant))
            self._missing = list(dict.fromkeys([*self.revisions, *found]))
        self._missing = [key for key in self._missing if not self._is_as_known(key, known)]
        return not self._missing

    def _is_as_known(self, key: Key, known: Reader) -> bool:
        obj = known.get(key)
        if key in self.revisions:
            return obj is not None and revision_of(obj) >= self.revisions[key]
        return obj is None or revision_of(obj) > self.revision
