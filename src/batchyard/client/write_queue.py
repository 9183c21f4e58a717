"""Write queue: sends writes to a server in order for each object, with a rate limit and retries.

The writes of one submission are sent one after the other until one is rejected. A submission that touches an object of
an earlier submission waits for that one. A write without a response is retried a limited number of times if a
repetition is harmless. If the server's error shows that the first try succeeded, the write counts as done. While the
gate is closed, nothing is sent and no result is reported, because this process has lost leadership.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api import conversion, scheme
from batchyard.api.errors import ApiError, Conflict, NotFound, RefusedForNow
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.base.instant import Instant
from batchyard.client.transport import (
    HttpAnswer,
    HttpRequest,
    RateLimit,
    Transport,
    as_sent,
    decoded,
    error_of,
    holds,
    jittered_backoff,
    kind_of,
    may_try_again,
    name_of,
    namespace_of,
    object_in_list,
    path_of,
    read_request,
    received,
    request_of,
    was_maybe_done,
)
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write
from batchyard.interfaces.controller import Kernel

# --- changes ---
#
# Requests that change a stored object: a merge patch of the changed fields, or a server-side apply.
#
# A patch names the revision that it is based on, so a concurrent change of another client is a conflict. The status of
# a Workload is applied with the field managers that Kueue uses. So Kueue can take over from this client, and this
# client from Kueue: the next applier may remove what the last one set. Sources: pkg/workload/patching and
# pkg/util/client of Kueue.


#: Yields the requests of one write in order, and takes the object that the server returned for each.
Requests: TypeAlias = Generator[HttpRequest, Mapping[str, Any], None]

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
ADMISSION: Final = "kueue-admission"
RECLAIMABLE: Final = "kueue-reclaimable-pods"
PODS_READY: Final = "kueue-job-controller-PodsReady"
#: The field managers above, which both Kueue and this client use.
SHARED_MANAGERS: Final = frozenset({ADMISSION, RECLAIMABLE, PODS_READY})
_RECLAIMABLE_FIELD: Final = "reclaimablePods"
#: The conditions that Kueue applies as `kueue-admission`.
_CONDITIONS: Final = frozenset(
    {
        *("QuotaReserved", "BlockedOnPreemptionGates", "Evicted", "Admitted", "Preempted", "Requeued"),
        *("DeactivationTarget", "Finished", "PodsReady"),
    }
)
#: Lists that server-side apply merges by a key, with that key.
_KEYS: Final = {"conditions": "type", "admissionChecks": "name"}
_ABSENT: Final = object()
#: Metadata fields that the server sets: a patch must not contain them, except the two preconditions.
_SERVERS_OWN: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "deletionTimestamp"}
)
_encode: Final = msgspec.json.Encoder().encode


class _Applied(NamedTuple):
    """A part of a status, and the field manager that applies it."""

    manager: str
    status: Mapping[str, Any]


def requests_of(write: Write, base: Obj | None, info: ServedKind, version: str) -> Requests:
    """Yield the requests of a write; `base` is the object that the write was made from, if known."""
    if isinstance(write, Create | Delete) or (base is None and not write.obj["metadata"].get("resourceVersion")):
        yield request_of(write, info, version)
    elif isinstance(write, UpdateStatus) and kind_of(write) == scheme.WORKLOAD:
        yield from _apply_status(write, base, info, version)
    else:
        yield _merge_request(write, base, info, version)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) from one document to another; empty if they are equal."""
    patch: dict[str, Any] = dict.fromkeys(field for field in before if field not in after)
    for field, value in after.items():
        old = before.get(field, _ABSENT)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[field] = inner
        elif old is _ABSENT or old != value:
            patch[field] = value
    return patch


def _merge_request(write: Update | UpdateStatus, base: Obj | None, info: ServedKind, version: str) -> HttpRequest:
    """Return a patch of the fields that a write changes, at the revision that it is based on.

    Without the base, all fields are sent, and the server compares the revision.
    """
    of_status = isinstance(write, UpdateStatus)
    after = _served(write.obj, info, version)
    before = _served(base, info, version) if base is not None else {}
    patch = merge_patch(before, after)
    if of_status:
        patch = {"status": patch["status"]} if "status" in patch else {}
    elif not (isinstance(write, Update) and write.is_whole):
        patch.pop("status", None)
    metadata = {name: value for name, value in (patch.pop("metadata", None) or {}).items() if name not in _SERVERS_OWN}
    if "resourceVersion" in after["metadata"]:
        metadata["resourceVersion"] = after["metadata"]["resourceVersion"]
    if write.managed_fields is not None:
        metadata["managedFields"] = write.managed_fields
    if metadata:
        patch["metadata"] = metadata
    return _patch_request(write, info, version, patch, "status" if of_status else "")


def _apply_status(write: UpdateStatus, base: Obj | None, info: ServedKind, version: str) -> Requests:
    """Apply a Workload's status with the managers of its parts; then remove values that another manager keeps."""
    wanted = _served(write.obj, info, version)
    before = (_served(base, info, version) if base is not None else {}).get("status") or {}
    metadata, status = wanted["metadata"], wanted.get("status") or {}
    revision = metadata.get("resourceVersion")
    for applied in _parts(before, status):
        identity = {field: metadata[field] for field in ("name", "namespace", "uid") if field in metadata}
        if revision:
            identity["resourceVersion"] = revision
        document = {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], "metadata": identity}
        request = _patch_request(write, info, version, {**document, "status": applied.status}, "status", APPLY_PATCH)
        stored = yield request._replace(path=f"{request.path}?fieldManager={applied.manager}&force=true")
        revision = _revision_in(stored)
    if left := _left_over(before, status, stored.get("status") or {}):
        patch = {"metadata": {"resourceVersion": revision}, "status": left}
        yield _patch_request(write, info, version, patch, "status")


def _parts(before: Mapping[str, Any], status: Mapping[str, Any]) -> Sequence[_Applied]:
    """Return the changed parts of a status."""
    changed = [field for field in {**before, **status} if before.get(field) != status.get(field)]
    parts: list[_Applied] = []
    if changed == ["conditions"] and _changed_conditions(before, status) == ["PodsReady"]:
        ready = [each for each in status["conditions"] if each["type"] == "PodsReady"]
        return [_Applied(PODS_READY, {"conditions": ready})] if ready else [_admission_part(status)]
    if changed != [_RECLAIMABLE_FIELD]:
        parts.append(_admission_part(status))
    if _RECLAIMABLE_FIELD in changed:
        pods = status.get(_RECLAIMABLE_FIELD)
        parts.append(_Applied(RECLAIMABLE, {_RECLAIMABLE_FIELD: pods} if pods else {}))
    return parts


def _admission_part(status: Mapping[str, Any]) -> _Applied:
    """Return all of a status except reclaimablePods and conditions that Kueue does not apply as `kueue-admission`."""
    part = {field: value for field, value in status.items() if field != _RECLAIMABLE_FIELD}
    if "conditions" in part:
        part["conditions"] = [each for each in part["conditions"] if each["type"] in _CONDITIONS]
    return _Applied(ADMISSION, part)


def _changed_conditions(before: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    old, new = ({each["type"]: each for each in status.get("conditions") or ()} for status in (before, status))
    return [kind for kind in {**old, **new} if old.get(kind) != new.get(kind)]


def _left_over(before: Mapping[str, Any], status: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that removes values still stored because another manager set them too."""
    left: dict[str, Any] = {field: None for field in before if field not in status and field in stored}
    for field, key in _KEYS.items():
        kept = [item[key] for item in status.get(field) or ()]
        gone = {item[key] for item in before.get(field) or () if item[key] not in kept}
        items = stored.get(field) or ()
        if field not in left and any(item[key] in gone for item in items):
            left[field] = [item for item in items if item[key] not in gone]
    return left


def _served(obj: Obj, info: ServedKind, version: str) -> Mapping[str, Any]:
    """Return an object in the version that the server accepts."""
    return conversion.from_storage(as_sent(obj, info), info.api_version_for(version))


def _patch_request(
    write: Write, info: ServedKind, version: str, patch: Mapping[str, Any], part: str, content_type: str = MERGE_PATCH
) -> HttpRequest:
    path = path_of(info, version, namespace_of(write), name_of(write), part)
    return HttpRequest("PATCH", path, _encode(patch), content_type=content_type)


def _revision_in(stored: Mapping[str, Any]) -> str:
    revision: str = (stored.get("metadata") or {}).get("resourceVersion") or ""
    return revision


TRIES_MAX: Final = 8
_REFUSED_MAX: Final = 4096


class WriteResponse(NamedTuple):
    """A write and the server's response."""

    write: Write
    #: The object in the response, or a Status.
    body: Obj
    error: ApiError | None


class Submission:
    """Writes that are sent in order, one after the other."""

    __slots__ = (
        *("answered", "bases", "done", "followers", "is_repeat", "keys", "request", "requests", "tries", "waits_for"),
        "writes",
    )

    def __init__(
        self, writes: Sequence[Write], done: Callable[["Submission"], None], bases: Sequence[Obj | None] = ()
    ) -> None:
        self.writes = writes
        #: The object that each write was made from, if known.
        self.bases = bases or [None] * len(writes)
        #: The requests of the current write, and the outstanding one.
        self.requests: Requests | None = None
        self.request: HttpRequest | None = None
        #: Called when no more requests will be sent.
        self.done = done
        #: The writes with a response, in order.
        self.answered: list[WriteResponse] = []
        self.tries = 0
        #: Whether the current write may have been done already.
        self.is_repeat = False
        self.keys = [_key(write) for write in writes if name_of(write)]
        self.waits_for = 0
        self.followers: list[Submission] = []


class WriteQueue:
    """The pending submissions by object, and the counts of responses and rejections."""

    def __init__(
        self,
        timers: Kernel,
        transport: Transport,
        limit: RateLimit,
        version_of: Callable[[str], str],
        gate: Callable[[], bool],
    ) -> None:
        self._timers = timers
        self._transport = transport
        self._limit = limit
        self._version_of = version_of
        self._gate = gate
        self._last: dict[Key, Submission] = {}
        #: The number of responses by method and code.
        self.answers: Counter[tuple[str, int]] = Counter()
        #: Called with each rejection to report; a successful write of the object resets its count.
        self.on_refused: Callable[[str], None] = _ignore_refusal
        self._refused: dict[tuple[type[Write], str | Key], int] = {}

    def submit(self, submission: Submission) -> None:
        """Queue writes; they are sent when earlier submissions of their objects are finished."""
        for key in dict.fromkeys(submission.keys):
            before = self._last.get(key)
            if before is not None:
                before.followers.append(submission)
                submission.waits_for += 1
            self._last[key] = submission
        if not submission.waits_for:
            self._send_when_allowed(submission)

    def finish(self, submission: Submission) -> None:
        """Release the submissions that wait for this one, which has its result."""
        for key in submission.keys:
            if self._last.get(key) is submission:
                del self._last[key]
        for follower in submission.followers:
            follower.waits_for -= 1
            if not follower.waits_for:
                self._send_when_allowed(follower)

    def _send_when_allowed(self, submission: Submission) -> None:
        now = self._timers.now()
        self._later(now + self._limit.wait(now), lambda: self._send(submission))

    def _later(self, when: Instant, work: Callable[[], None]) -> None:
        if when <= self._timers.now():
            work()
        else:
            self._timers.call_at(when, work)

    def _send(self, submission: Submission) -> None:
        place = len(submission.answered)
        write = submission.writes[place]
        if submission.requests is None or submission.request is None:
            kind = kind_of(write)
            submission.requests = requests_of(write, submission.bases[place], kind_info(kind), self._version_of(kind))
            submission.request = next(submission.requests)
        self._carry(submission.request, lambda answer: self._answered(submission, write, answer))

    def _carry(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        def counted(answer: HttpAnswer) -> None:
            self.answers[request.method, answer.code] += 1
            answered(answer)

        if self._gate():
            self._transport.send(request, counted)

    def _answered(self, submission: Submission, write: Write, answer: HttpAnswer) -> None:
        submission.tries += 1
        if may_try_again(write, answer) and submission.tries < TRIES_MAX:
            submission.is_repeat = submission.is_repeat or was_maybe_done(answer)
            now = self._timers.now()
            name = f"{namespace_of(write)}/{name_of(write)}"
            wait = max(answer.retry_after or 0, jittered_backoff(submission.tries, 0, name), self._limit.wait(now))
            self._later(now + wait, lambda: self._send(submission))
            return
        body = decoded(answer.body)
        error = error_of(answer, write, body)
        self._note_refusal(write, answer.code, error)
        if error is not None and submission.is_repeat and self._was_done_before(submission, write, error):
            return
        if error is None and submission.requests is not None:
            submission.request = _next_request(submission.requests, body)
            if submission.request is not None:
                submission.tries, submission.is_repeat = 0, False
                self._send_when_allowed(submission)
                return
        self._conclude(submission, self._written(write, body, error))

    def _note_refusal(self, write: Write, code: int, error: ApiError | None) -> None:
        """Report a rejection: a forbidden write once a kind, any other at the 1st, 2nd, 4th, 8th ... of an object."""
        sort, of_object = (type(write), kind_of(write)), (type(write), _key(write))
        if error is None:
            if self._refused:
                self._refused.pop(sort, None)
                self._refused.pop(of_object, None)
            return
        if not 400 <= code < 500 or isinstance(error, Conflict | NotFound):
            return
        is_right = isinstance(error, RefusedForNow)
        refused = sort if is_right else of_object
        times = self._refused[refused] = self._refused.get(refused, 0) + 1
        if len(self._refused) > _REFUSED_MAX:
            self._refused.pop(next(iter(self._refused)))
        if times == 1 or (not is_right and not times & (times - 1)):
            about = "" if is_right else f" of {kind_info(kind_of(write)).kind} {namespace_of(write)}/{name_of(write)}"
            again = f" ({times} times)" if times > 1 else ""
            self.on_refused(f"{type(write).__name__}{about}: {error}{again}")

    def _was_done_before(self, submission: Submission, write: Write, error: ApiError) -> bool:
        """Handle an error that may only show that an earlier try succeeded; return whether it does."""
        if isinstance(write, Delete) and isinstance(error, NotFound):
            self._conclude(submission, WriteResponse(write, {}, None))
            return True
        if not isinstance(write, Create) or not isinstance(error, Conflict):
            return False
        kind = kind_of(write)
        request = read_request(write, kind_info(kind), self._version_of(kind))
        self._carry(request, lambda answer: self._looked(submission, write, answer, error))
        return True

    def _looked(self, submission: Submission, write: Create, answer: HttpAnswer, error: ApiError) -> None:
        """Compare the existing object with the one to create: the write is done if they match, else it conflicts."""
        found = self._written(write, object_in_list(answer), None)
        sent = as_sent(write.obj, kind_info(kind_of(write)))
        wanted = {field: value for field, value in sent.items() if field != "status"}
        self._conclude(submission, found if holds(found.body, wanted) else found._replace(error=error))

    def _written(self, write: Write, body: Obj, error: ApiError | None) -> WriteResponse:
        if error is not None or body.get("kind") == "Status" or "metadata" not in body:
            return WriteResponse(write, body, error)
        kind = kind_of(write)
        return WriteResponse(write, received(kind_info(kind), self._version_of(kind), body), None)

    def _conclude(self, submission: Submission, written: WriteResponse) -> None:
        """Record the result of a write; continue with the next one, or finish the submission."""
        submission.answered.append(written)
        submission.requests = submission.request = None
        if written.error is None and len(submission.answered) < len(submission.writes):
            submission.tries, submission.is_repeat = 0, False
            self._send_when_allowed(submission)
        else:
            submission.done(submission)


def _next_request(requests: Requests, stored: Obj) -> HttpRequest | None:
    """Return the next request of a write, given the response to the last one; None if there is none."""
    try:
        return requests.send(stored)
    except StopIteration:
        return None


def _ignore_refusal(_trouble: str) -> None:
    pass


def _key(write: Write) -> Key:
    return Key(kind_of(write), namespace_of(write), name_of(write))
