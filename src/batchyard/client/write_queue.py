"""Write queue: sends writes to a server in order for each object, with a rate limit and retries.

The writes of one submission are sent one after the other until one is rejected. A submission waits for earlier
submissions that write one of its objects. A write without a response is retried a limited number of times if a
repetition is harmless. If the server's error shows that the first try succeeded, the write counts as done. After
this process has lost leadership, nothing is sent, and writes that need another request get no result.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api import conversion, scheme
from batchyard.api.errors import ApiError, Conflict, NotFound, NoValidResponse, TemporarilyForbidden
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind
from batchyard.client.flow_control import SendQueue, WritePriority, priority_of
from batchyard.client.transport import (
    HttpRequest,
    HttpResponse,
    RateLimit,
    Transport,
    contains_fields,
    decode_object,
    error_of,
    is_retriable,
    jittered_backoff,
    kind_of,
    list_one_request,
    may_have_succeeded,
    name_of,
    namespace_of,
    object_in_list,
    object_path,
    request_of,
    to_storage_version,
    to_wire_format,
)
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write
from batchyard.interfaces.controller import Kernel

# Requests that change a stored object: a merge patch of the changed fields, or a server-side apply.
#
# A patch names the revision that it is based on, so a concurrent change of another client is a conflict. The status of
# a Workload is applied with the field managers that Kueue uses. So Kueue can take over from this client, and this
# client from Kueue: the next applier may remove what the last one set. Sources: pkg/workload/patching and
# pkg/util/client of Kueue.


#: A generator that yields the requests of one write in order, and is sent the object that the server returned for each.
RequestSteps: TypeAlias = Generator[HttpRequest, Mapping[str, Any], None]

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
ADMISSION_MANAGER: Final = "kueue-admission"
RECLAIMABLE_PODS_MANAGER: Final = "kueue-reclaimable-pods"
PODS_READY_MANAGER: Final = "kueue-job-controller-PodsReady"
POD_MANAGER: Final = "kueue-pod-controller"
#: The field managers above, which both Kueue and this client use.
SHARED_MANAGERS: Final = frozenset({ADMISSION_MANAGER, RECLAIMABLE_PODS_MANAGER, PODS_READY_MANAGER, POD_MANAGER})
#: The managers of conditions that are applied alone.
_MANAGER_BY_CONDITION: Final = {"PodsReady": PODS_READY_MANAGER, "WaitingForReplacementPods": POD_MANAGER}
_RECLAIMABLE_PODS_FIELD: Final = "reclaimablePods"
_BINDING_SUBRESOURCE: Final = "binding"
#: The conditions that Kueue applies as `kueue-admission`, and the condition of batchyard's partial preemption.
_ADMISSION_CONDITIONS: Final = frozenset(
    {
        *("QuotaReserved", "BlockedOnPreemptionGates", "Evicted", "Admitted", "Preempted", "Requeued"),
        *("DeactivationTarget", "Finished", "PodsReady", "PartiallyPreempted"),
    }
)
#: Lists that server-side apply merges by a key, with that key.
_MERGE_KEYS: Final = {"conditions": "type", "admissionChecks": "name"}
_ABSENT_VALUE: Final = object()
#: Metadata fields that the server sets: a patch must not contain them, except the two preconditions.
_SERVER_OWNED_FIELDS: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "deletionTimestamp"}
)
_encode: Final = msgspec.json.Encoder().encode


class _AppliedStatus(NamedTuple):
    manager: str
    status: Mapping[str, Any]


def write_requests(write: Write, base_object: Obj | None, served_kind: ServedKind, version: str) -> RequestSteps:
    """Yield the HTTP requests of one write; `base_object` is the cached object to update, None if there is none."""
    if isinstance(write, Create | Delete) or (base_object is None and not write.obj["metadata"].get("resourceVersion")):
        yield request_of(write, served_kind, version)
    elif isinstance(write, UpdateStatus) and kind_of(write) == scheme.WORKLOAD:
        yield from _apply_status(write, base_object, served_kind, version)
    else:
        request = _merge_request(write, base_object, served_kind, version)
        yield _binding_request(write, request, served_kind, version) or request


def _binding_request(
    write: Write, merge_request: HttpRequest, served_kind: ServedKind, version: str
) -> HttpRequest | None:
    """Return the request that binds a pod, if a write changes only its node and sets annotations; else None.

    Kubernetes rejects updates of `spec.nodeName`. It adds the annotations of a Binding to the pod. A Binding cannot
    remove annotations. Source: pkg/registry/core/pod/storage (BindingREST).
    """
    if not isinstance(write, Update) or kind_of(write) != scheme.POD:
        return None
    patch = msgspec.json.decode(merge_request.body)
    node = patch.get("spec", {}).get("nodeName")
    if not node or {**patch, "metadata": None, "spec": None} != {"metadata": None, "spec": None}:
        return None
    changed_metadata = patch.get("metadata", {})
    if len(patch["spec"]) > 1 or changed_metadata.keys() - {"resourceVersion", "annotations"}:
        return None
    metadata: dict[str, Any] = {"name": name_of(write), "uid": write.obj["metadata"].get("uid", "")}
    if "annotations" in changed_metadata:
        metadata["annotations"] = annotations = changed_metadata["annotations"]
        if annotations is None or None in annotations.values():
            return None
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    path = object_path(served_kind, version, namespace_of(write), name_of(write), _BINDING_SUBRESOURCE)
    return HttpRequest("POST", path, _encode(binding))


def _is_binding_request(request: HttpRequest | None) -> bool:
    return request is not None and request.method == "POST" and request.path.endswith(f"/{_BINDING_SUBRESOURCE}")


def merge_patch(old_object: Mapping[str, Any], new_object: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) that turns the old object into the new one; empty if they are equal."""
    patch: dict[str, Any] = dict.fromkeys(field for field in old_object if field not in new_object)
    for field, value in new_object.items():
        old = old_object.get(field, _ABSENT_VALUE)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[field] = inner
        elif old is _ABSENT_VALUE or old != value:
            patch[field] = value
    return patch


def _merge_request(
    write: Update | UpdateStatus, base: Obj | None, served_kind: ServedKind, version: str
) -> HttpRequest:
    """Return a merge-patch request with the fields that a write changes, and the revision on which the write is based.

    Without `base`, all fields are sent. The server rejects the patch if the revision is outdated.
    """
    is_status_update = isinstance(write, UpdateStatus)
    new_object = _convert_to_version(write.obj, served_kind, version)
    old_object = _convert_to_version(base, served_kind, version) if base is not None else {}
    patch = merge_patch(old_object, new_object)
    if is_status_update:
        patch = {"status": patch["status"]} if "status" in patch else {}
    elif not (isinstance(write, Update) and write.is_whole):
        patch.pop("status", None)
    metadata = {name: v for name, v in (patch.pop("metadata", None) or {}).items() if name not in _SERVER_OWNED_FIELDS}
    if "resourceVersion" in new_object["metadata"]:
        metadata["resourceVersion"] = new_object["metadata"]["resourceVersion"]
    if write.managed_fields is not None:
        metadata["managedFields"] = write.managed_fields
    if metadata:
        patch["metadata"] = metadata
    return _patch_request(write, served_kind, version, patch, "status" if is_status_update else "")


def _apply_status(write: UpdateStatus, base: Obj | None, served_kind: ServedKind, version: str) -> RequestSteps:
    """Yield the requests that write a Workload's status: one server-side apply for each field manager.

    If removed values are still stored, because another manager owns them too, a merge patch removes these values.
    """
    new_object = _convert_to_version(write.obj, served_kind, version)
    old_status = (_convert_to_version(base, served_kind, version) if base is not None else {}).get("status") or {}
    metadata, status = new_object["metadata"], new_object.get("status") or {}
    resource_version = metadata.get("resourceVersion")
    for applied in _split_by_manager(old_status, status):
        identity_fields = {field: metadata[field] for field in ("name", "namespace", "uid") if field in metadata}
        if resource_version:
            identity_fields["resourceVersion"] = resource_version
        document = {"apiVersion": new_object["apiVersion"], "kind": new_object["kind"], "metadata": identity_fields}
        request = _patch_request(
            write, served_kind, version, {**document, "status": applied.status}, "status", APPLY_PATCH
        )
        stored_object = yield request._replace(path=f"{request.path}?fieldManager={applied.manager}&force=true")
        resource_version = _resource_version_in(stored_object)
    if patch_of_removed := _removal_patch(old_status, status, stored_object.get("status") or {}):
        status_patch = {"metadata": {"resourceVersion": resource_version}, "status": patch_of_removed}
        yield _patch_request(write, served_kind, version, status_patch, "status")


def _split_by_manager(old_status: Mapping[str, Any], status: Mapping[str, Any]) -> Sequence[_AppliedStatus]:
    changed_fields = [field for field in {**old_status, **status} if old_status.get(field) != status.get(field)]
    status_parts: list[_AppliedStatus] = []
    changed_types = _changed_condition_types(old_status, status) if changed_fields == ["conditions"] else []
    manager = _MANAGER_BY_CONDITION.get(changed_types[0]) if len(changed_types) == 1 else None
    if manager is not None:
        own_conditions = [condition for condition in status["conditions"] if condition["type"] == changed_types[0]]
        return (
            [_AppliedStatus(manager, {"conditions": own_conditions})]
            if own_conditions
            else [_admission_status_part(status)]
        )
    if changed_fields != [_RECLAIMABLE_PODS_FIELD]:
        status_parts.append(_admission_status_part(status))
    if _RECLAIMABLE_PODS_FIELD in changed_fields:
        pods = status.get(_RECLAIMABLE_PODS_FIELD)
        status_parts.append(_AppliedStatus(RECLAIMABLE_PODS_MANAGER, {_RECLAIMABLE_PODS_FIELD: pods} if pods else {}))
    return status_parts


def _admission_status_part(status: Mapping[str, Any]) -> _AppliedStatus:
    admission = {field: value for field, value in status.items() if field != _RECLAIMABLE_PODS_FIELD}
    if "conditions" in admission:
        admission["conditions"] = [each for each in admission["conditions"] if each["type"] in _ADMISSION_CONDITIONS]
    return _AppliedStatus(ADMISSION_MANAGER, admission)


def _changed_condition_types(old_status: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    old, new = ({each["type"]: each for each in status.get("conditions") or ()} for status in (old_status, status))
    return [kind for kind in {**old, **new} if old.get(kind) != new.get(kind)]


def _removal_patch(
    old_status: Mapping[str, Any], status: Mapping[str, Any], stored_status: Mapping[str, Any]
) -> dict[str, Any]:
    removals: dict[str, Any] = {field: None for field in old_status if field not in status and field in stored_status}
    for field, key in _MERGE_KEYS.items():
        kept_merge_keys = [item[key] for item in status.get(field) or ()]
        removed_merge_keys = {item[key] for item in old_status.get(field) or () if item[key] not in kept_merge_keys}
        stored_items = stored_status.get(field) or ()
        if field not in removals and any(item[key] in removed_merge_keys for item in stored_items):
            removals[field] = [item for item in stored_items if item[key] not in removed_merge_keys]
    return removals


def _convert_to_version(obj: Obj, served_kind: ServedKind, version: str) -> Mapping[str, Any]:
    return conversion.from_storage(to_wire_format(obj, served_kind), served_kind.api_version_for(version))


def _patch_request(
    write: Write,
    served_kind: ServedKind,
    version: str,
    patch: Mapping[str, Any],
    subresource: str,
    content_type: str = MERGE_PATCH,
) -> HttpRequest:
    path = object_path(served_kind, version, namespace_of(write), name_of(write), subresource)
    return HttpRequest("PATCH", path, _encode(patch), content_type=content_type)


def _resource_version_in(stored_object: Mapping[str, Any]) -> str:
    resource_version: str = (stored_object.get("metadata") or {}).get("resourceVersion") or ""
    return resource_version


ATTEMPTS_MAX: Final = 8
_REJECTION_COUNTS_MAX: Final = 4096


class WriteResponse(NamedTuple):
    """A write, and the object or error with which the server responded."""

    write: Write
    #: The object in the response, or a Status; after a binding, the written pod with its old resourceVersion.
    body: Obj
    error: ApiError | None
    #: Whether the write has bound a pod. The server's response to a binding does not contain the pod.
    is_binding: bool = False


class Submission:
    """Writes of one caller, sent one after the other until one is rejected, with the progress of sending them."""

    __slots__ = (
        *("base_objects", "followers", "is_repeat", "keys", "on_end", "priority", "request", "requests"),
        *("responses", "tries", "waits_for", "writes"),
    )

    def __init__(
        self, writes: Sequence[Write], on_end: Callable[["Submission"], None], base_objects: Sequence[Obj | None] = ()
    ) -> None:
        self.writes = writes
        #: The object that each write is based on, if known.
        self.base_objects = base_objects or [None] * len(writes)
        self.priority = priority_of(writes, self.base_objects)
        #: The generator of the current write's HTTP requests, and the request that has no response yet.
        self.requests: RequestSteps | None = None
        self.request: HttpRequest | None = None
        #: Called when all requests of the submission have responses.
        self.on_end = on_end
        #: The writes with a response, in order.
        self.responses: list[WriteResponse] = []
        self.tries = 0
        #: Whether the server may have processed the current write already, in an attempt without a response.
        self.is_repeat = False
        self.keys = [_written_key(write) for write in writes if name_of(write)]
        self.waits_for = 0
        self.followers: list[Submission] = []


class WriteQueue:
    """Sends submitted writes, in order for each object; counts responses and rejections."""

    def __init__(
        self,
        timers: Kernel,
        transport: Transport,
        rate_limit: RateLimit,
        target_of: Callable[[str], tuple[ServedKind, str]],
        may_send: Callable[[], bool],
    ) -> None:
        self._timers = timers
        self._transport = transport
        self.send_queue = SendQueue(timers, rate_limit)
        #: Returns the names of a kind, and the version in which its objects are written.
        self._target_of = target_of
        self._may_send = may_send
        self._last_submissions: dict[Key, Submission] = {}
        #: The number of responses by method and code.
        self.response_counts: Counter[tuple[str, int]] = Counter()
        self.dropped_event_count = 0
        #: Called with the text of each rejection to report; a successful write of the object resets its count.
        self.on_refused: Callable[[str], None] = _ignore_rejection
        self._rejection_counts: dict[tuple[type[Write], str | Key], int] = {}

    def submit(self, submission: Submission) -> None:
        """Queue a caller's writes; they are sent when earlier submissions for the same objects are finished.

        While too many Events wait, the writes of new Events are not sent: their result is an error.
        """
        if self.send_queue.is_full(submission.priority):
            self.dropped_event_count += 1
            submission.keys = []
            error = NoValidResponse("too many Events wait to be written")
            submission.responses.append(WriteResponse(submission.writes[0], {}, error))
            submission.on_end(submission)
            return
        for key in dict.fromkeys(submission.keys):
            previous_submission = self._last_submissions.get(key)
            if previous_submission is not None:
                previous_submission.followers.append(submission)
                submission.waits_for += 1
            self._last_submissions[key] = submission
        if not submission.waits_for:
            self._send_when_allowed(submission)

    def finish(self, submission: Submission) -> None:
        """Remove a submission whose result was delivered, and send the submissions that waited for its objects."""
        for key in submission.keys:
            if self._last_submissions.get(key) is submission:
                del self._last_submissions[key]
        for follower in submission.followers:
            follower.waits_for -= 1
            if not follower.waits_for:
                self._send_when_allowed(follower)

    def _send_when_allowed(self, submission: Submission) -> None:
        self.send_queue.add(submission.priority, lambda: self._send(submission))

    def _send(self, submission: Submission) -> None:
        write_index = len(submission.responses)
        write = submission.writes[write_index]
        if submission.requests is None or submission.request is None:
            kind = kind_of(write)
            base_object = submission.base_objects[write_index]
            submission.requests = write_requests(write, base_object, *self._target_of(kind))
            submission.request = next(submission.requests)
        on_response = partial(self._process_response, submission, write)
        self._send_and_count(submission.priority, submission.request, on_response)

    def _send_and_count(
        self, priority: WritePriority, request: HttpRequest, on_response: Callable[[HttpResponse], None]
    ) -> None:
        sent_at = self._timers.now()

        def count_response(http_response: HttpResponse) -> None:
            self.response_counts[request.method, http_response.code] += 1
            self.send_queue.on_response(priority, sent_at, http_response)
            on_response(http_response)

        if self._may_send():
            self._transport.send(request, count_response)

    def _process_response(self, submission: Submission, write: Write, http_response: HttpResponse) -> None:
        submission.tries += 1
        if is_retriable(write, http_response) and submission.tries < ATTEMPTS_MAX:
            submission.is_repeat = submission.is_repeat or may_have_succeeded(http_response)
            name = f"{namespace_of(write)}/{name_of(write)}"
            retry_delay = max(http_response.retry_after or 0, jittered_backoff(submission.tries, 0, name))
            self._timers.call_at(self._timers.now() + retry_delay, lambda: self._send_when_allowed(submission))
            return
        response_body = decode_object(http_response.body)
        is_binding = _is_binding_request(submission.request)
        error = error_of(http_response, write, response_body, may_be_status=is_binding or isinstance(write, Delete))
        self._report_rejection(write, http_response.code, error)
        if error is not None and submission.is_repeat and self._accept_repeat_error(submission, write, error):
            return
        if error is None and submission.requests is not None:
            submission.request = _next_request(submission.requests, response_body)
            if submission.request is not None:
                submission.tries, submission.is_repeat = 0, False
                self._send_when_allowed(submission)
                return
        if is_binding and error is None and isinstance(write, Update):
            self._complete_write(submission, WriteResponse(write, write.obj, None, is_binding=True))
        else:
            self._complete_write(submission, self._response_from_body(write, response_body, error))

    def _report_rejection(self, write: Write, status_code: int, error: ApiError | None) -> None:
        """Pass the message about a rejected write to `on_refused`; after a success (`error` is None), reset its counts.

        Conflict, NotFound and server errors are not reported. Missing permissions are reported once for each kind and
        type of write. Other rejections are reported for each object, at the 1st, 2nd, 4th, 8th time and so on.
        """
        kind_key, object_key = (type(write), kind_of(write)), (type(write), _written_key(write))
        if error is None:
            if self._rejection_counts:
                self._rejection_counts.pop(kind_key, None)
                self._rejection_counts.pop(object_key, None)
            return
        if not 400 <= status_code < 500 or isinstance(error, Conflict | NotFound):
            return
        is_forbidden = isinstance(error, TemporarilyForbidden)
        count_key = kind_key if is_forbidden else object_key
        rejection_count = self._rejection_counts[count_key] = self._rejection_counts.get(count_key, 0) + 1
        if len(self._rejection_counts) > _REJECTION_COUNTS_MAX:
            self._rejection_counts.pop(next(iter(self._rejection_counts)))
        if rejection_count == 1 or (not is_forbidden and not rejection_count & (rejection_count - 1)):
            object_text = (
                "" if is_forbidden else f" of {kind_of(write).partition('.')[0]} {namespace_of(write)}/{name_of(write)}"
            )
            repetition_suffix = f" ({rejection_count} times)" if rejection_count > 1 else ""
            self.on_refused(f"{type(write).__name__}{object_text}: {error}{repetition_suffix}")

    def _accept_repeat_error(self, submission: Submission, write: Write, error: ApiError) -> bool:
        """Complete a repeated write if its error can mean that an earlier attempt succeeded; else return False.

        A Create, and the binding of a pod, are completed after a comparison with the existing object.
        """
        if isinstance(write, Delete) and isinstance(error, NotFound):
            self._complete_write(submission, WriteResponse(write, {}, None))
            return True
        is_compared = isinstance(write, Create) or _is_binding_request(submission.request)
        if not is_compared or not isinstance(error, Conflict):
            return False
        kind = kind_of(write)
        request = list_one_request(write, *self._target_of(kind))
        compare = partial(self._compare_existing, submission, write, error)
        priority = submission.priority
        self.send_queue.add(priority, lambda: self._send_and_count(priority, request, compare))
        return True

    def _compare_existing(
        self, submission: Submission, write: Write, error: ApiError, http_response: HttpResponse
    ) -> None:
        assert isinstance(write, Create | Update)
        response = self._response_from_body(write, object_in_list(http_response), None)
        if isinstance(write, Update):
            is_bound = _is_same_binding(response.body, write.obj)
            bound_response = WriteResponse(write, write.obj, None, is_binding=True)
            self._complete_write(submission, bound_response if is_bound else response._replace(error=error))
            return
        sent_object = to_wire_format(write.obj, self._target_of(kind_of(write))[0])
        expected_fields = {field: value for field, value in sent_object.items() if field != "status"}
        self._complete_write(
            submission, response if contains_fields(response.body, expected_fields) else response._replace(error=error)
        )

    def _response_from_body(self, write: Write, body: Obj, error: ApiError | None) -> WriteResponse:
        if error is not None or body.get("kind") == "Status" or "metadata" not in body:
            return WriteResponse(write, body, error)
        kind = kind_of(write)
        return WriteResponse(write, to_storage_version(*self._target_of(kind), body), None)

    def _complete_write(self, submission: Submission, response: WriteResponse) -> None:
        submission.responses.append(response)
        submission.requests = submission.request = None
        if response.error is None and len(submission.responses) < len(submission.writes):
            submission.tries, submission.is_repeat = 0, False
            self._send_when_allowed(submission)
        else:
            submission.on_end(submission)


def _is_same_binding(stored_pod: Obj, pod: Obj) -> bool:
    """Return whether the stored pod is the same pod, and is bound to the same node."""
    is_same_pod = (stored_pod.get("metadata") or {}).get("uid") == pod["metadata"].get("uid")
    return is_same_pod and bool((stored_pod.get("spec") or {}).get("nodeName") == pod["spec"]["nodeName"])


def _next_request(requests: RequestSteps, stored_object: Obj) -> HttpRequest | None:
    try:
        return requests.send(stored_object)
    except StopIteration:
        return None


def _ignore_rejection(_rejection_text: str) -> None:
    pass


def _written_key(write: Write) -> Key:
    return Key(kind_of(write), namespace_of(write), name_of(write))
