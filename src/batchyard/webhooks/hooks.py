"""The webhooks by kind and operation, under the names that Kueue's and JobSet's webhooks have.

Sources: Kueue's config/components/webhook, JobSet's config/components/webhook. The CEL rules of their CRDs are
checked by webhooks here, so some kinds have a webhook more.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from batchyard import controller_groups
from batchyard.admission_plugins.built_in import check_queue_kept, queue_job
from batchyard.api import conversion, defaults, scheme, validation, well_known
from batchyard.api.defaults import jobset_defaults
from batchyard.api.errors import FieldError, Forbidden
from batchyard.api.meta import Key, Obj, Selector, group_kind
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.controller_groups import ADMISSION, JOBSET
from batchyard.jobs.jobset.exclusive_placement import mutate_pod, validate_pod

#: The URL paths of the webhooks.
MUTATE: Final = "/mutate"
VALIDATE: Final = "/validate"
CONVERT: Final = "/convert"
#: A Namespace whose Jobs and pods are excluded: a cluster must be able to start without the operator.
SYSTEM: Final = "kube-system"
#: The label that distinguishes pods of JobSets.
POD_LABEL: Final = well_known.JOB_SET_NAME
_CREATED: Final = ("CREATE",)
_WRITTEN: Final = ("CREATE", "UPDATE")


class Hook(NamedTuple):
    """One webhook: the requests that it handles."""

    name: str
    info: ServedKind
    operations: Sequence[str]
    mutates: bool
    #: Subresources that it also handles.
    parts: Sequence[str] = ()

    @property
    def resources(self) -> list[str]:
        """The resources in the notation of webhook rules."""
        return [self.info.plural, *(f"{self.info.plural}/{part}" for part in self.parts)]

    @property
    def is_of_work(self) -> bool:
        """Whether it handles the users' workloads, which exist in every Namespace."""
        return self.info.constant in {scheme.JOB, scheme.JOB_SET, scheme.POD}


_MUTATED: Final = {
    controller_groups.ADMISSION: (
        *(scheme.JOB, scheme.JOB_SET, scheme.CLUSTER_QUEUE, scheme.RESOURCE_FLAVOR),
        *(scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
    ),
    controller_groups.JOBSET: (scheme.JOB_SET, scheme.POD),
}
_VALIDATED: Final = {
    controller_groups.ADMISSION: (
        *(scheme.JOB, scheme.JOB_SET, scheme.CLUSTER_QUEUE, scheme.COHORT, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD),
        *(scheme.LOCAL_QUEUE, scheme.ADMISSION_CHECK, scheme.TOPOLOGY),
    ),
    controller_groups.JOBSET: (scheme.JOB_SET, scheme.POD),
}
#: Kinds whose status subresource is validated too.
_WITH_STATUS: Final = (scheme.WORKLOAD,)


def hooks(of: Sequence[str]) -> Sequence[Hook]:
    """The webhooks of controller groups, mutating ones first."""
    return [*_hooks(of, mutates=True), *_hooks(of, mutates=False)]


def _hooks(of: Sequence[str], *, mutates: bool) -> Iterator[Hook]:
    table = _MUTATED if mutates else _VALIDATED
    for kind in dict.fromkeys(kind for group in of for kind in table.get(group, ())):
        info = kind_info(kind)
        operations = _CREATED if mutates or kind == scheme.POD else _WRITTEN
        parts = ("status",) if kind in _WITH_STATUS and not mutates else ()
        yield Hook(f"{'m' if mutates else 'v'}{info.singular}.kb.io", info, operations, mutates, parts)


# --- lookups ---
#
# Lookups of an answer: it is computed from the known objects, and again after a missing object was fetched.


class ObjectQuery(NamedTuple):
    """An object by its key, or the pods of a Job by the Job's uid."""

    key: Key
    owner: str = ""


class ObjectNotFetched(Exception):  # noqa: N818 - reads better
    """An answer requires an object that has not been fetched yet."""

    def __init__(self, question: ObjectQuery) -> None:
        super().__init__(str(question))
        self.question = question


class FetchedObjects:
    """The fetched objects for one answer; raises Unknown for others."""

    def __init__(self, namespace: str, known: Mapping[ObjectQuery, Sequence[Obj]]) -> None:
        self._namespace = namespace
        self._known = known

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        found = self._found(ObjectQuery(key))
        return found[0] if found else None

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """The pods of a Job."""
        return self._found(ObjectQuery(Key("", self._namespace, ""), uid))

    def _found(self, question: ObjectQuery) -> Sequence[Obj]:
        if question not in self._known:
            raise ObjectNotFetched(question)
        return self._known[question]


# --- patches ---
#
# The difference between two objects as a JSON patch (RFC 6902).


def patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The operations: fields of objects one by one, lists as a whole."""
    return list(_operations(before, after, ""))


# --- reviews ---
#
# Answers to an external API server: AdmissionReview and ConversionReview, both v1.
#
# They use the functions of the embedded API server, so defaulting, validation and conversion are the same in both. For
# kinds of Kubernetes itself only the rules of Kueue and JobSet apply: their API server has applied the others.
# Source of the forms: k8s.io/api, admission/v1; k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1.


def _operations(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    for field in before:
        if field not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(field)}"}
    for field, value in after.items():
        place = f"{path}/{_escaped(field)}"
        old = before.get(field)
        if field not in before:
            yield {"op": "add", "path": place, "value": value}
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            yield from _operations(old, value, place)
        elif old != value:
            yield {"op": "replace", "path": place, "value": value}


def _escaped(field: str) -> str:
    return field.replace("~", "~0").replace("/", "~1")


_ADMISSION: Final = "admission.k8s.io/v1"
_CONVERSION: Final = "apiextensions.k8s.io/v1"
_WORK: Final = (scheme.JOB, scheme.JOB_SET)
#: The prefix of the embedded API server's webhook errors; here the external API server adds it.
_DENIED: Final = " denied the request: "
_encode: Final = msgspec.json.Encoder().encode


class InvalidReview(ValueError):  # noqa: N818 - reads better
    """The request body is not a review."""


def namespace_of(review: Mapping[str, Any]) -> str:
    """The Namespace of the reviewed object."""
    namespace: str = _request(review).get("namespace") or ""
    return namespace


def mutated(
    review: Mapping[str, Any], groups: Sequence[str], find: FetchedObjects, managed: Selector | None = None
) -> Obj:
    """The response with the defaults as a JSON patch; `managed` selects the Namespaces whose jobs are managed."""
    request = _request(review)
    obj = _object(request, "object")
    try:
        done = _completed(_in_namespace(obj, request), groups, find, managed)
    except Forbidden as refused:
        return _refusal(request, str(refused))
    patch = patch_between(obj, _as_sent(done, obj))
    if not patch:
        return _answer(request)
    return _answer(request, patchType="JSONPatch", patch=base64.b64encode(_encode(patch)).decode())


def validated(review: Mapping[str, Any], groups: Sequence[str], find: FetchedObjects) -> Obj:
    """The response whether the object is allowed."""
    request = _request(review)
    new = _in_namespace(_object(request, "object"), request)
    old = _object(request, "oldObject") if request.get("operation") == "UPDATE" else None
    faults = list(_faults(new, old, request.get("subResource") or ""))
    if faults:
        message = str(faults[0]) if len(faults) == 1 else f"[{', '.join(map(str, faults))}]"
        return _refusal(request, message)
    try:
        _check(new, old, groups, find)
    except Forbidden as refused:
        return _refusal(request, str(refused))
    return _answer(request)


def converted(review: Mapping[str, Any]) -> Obj:
    """The response with the objects in another version; if one cannot be converted, the review fails."""
    request = _request(review)
    wanted, objects = request.get("desiredAPIVersion"), request.get("objects")
    if not isinstance(wanted, str) or not isinstance(objects, list):
        raise InvalidReview("a ConversionReview requires desiredAPIVersion and objects")
    reported: dict[str, Any] = {"uid": request.get("uid", "")}
    try:
        done = [conversion.from_storage(conversion.to_storage(obj), wanted) for obj in objects]
    except (ValueError, KeyError, TypeError) as error:
        reported |= {"convertedObjects": [], "result": {"status": "Failed", "message": str(error)}}
    else:
        reported |= {"convertedObjects": done, "result": {"status": "Success"}}
    return {"apiVersion": _CONVERSION, "kind": "ConversionReview", "response": reported}


def _completed(obj: Obj, groups: Sequence[str], find: FetchedObjects, managed: Selector | None) -> Obj:
    """The object with defaults and mutations, as it is stored."""
    kind = group_kind(obj)
    if kind == scheme.POD:
        return mutate_pod(obj, find)
    if kind == scheme.JOB_SET and JOBSET in groups:
        obj = jobset_defaults(obj)
    if kind in _WORK:
        return queue_job(obj, find.get, managed) if ADMISSION in groups else obj
    return defaults.with_defaults(obj)


def _faults(new: Obj, old: Obj | None, part: str) -> Iterator[FieldError]:
    kind = group_kind(new)
    if kind == scheme.POD:
        return
    if part:
        yield from validation.validate_status(new, old) if old is not None else ()
        return
    found = validation.validate(new) if old is None else validation.validate_update(new, old)
    # The API server validates names itself; a name that is still to be generated is empty.
    ours = (fault for fault in found if not fault.path.startswith("metadata.name"))
    yield from (fault for fault in ours if fault.webhook or kind != scheme.JOB)


def _check(new: Obj, old: Obj | None, groups: Sequence[str], find: FetchedObjects) -> None:
    """Check rules that depend on other objects; raises Forbidden."""
    kind = group_kind(new)
    if kind == scheme.POD:
        validate_pod(new, find)
    elif kind in _WORK and old is not None and ADMISSION in groups:
        check_queue_kept(new, old, find.get)


def _request(review: Mapping[str, Any]) -> Mapping[str, Any]:
    request = review.get("request")
    if not isinstance(request, dict):
        raise InvalidReview("a review requires a request")
    return request


def _object(request: Mapping[str, Any], field: str) -> dict[str, Any]:
    obj = request.get(field)
    is_object = isinstance(obj, dict) and isinstance(obj.get("metadata"), dict)
    if not isinstance(obj, dict) or not is_object or "kind" not in obj or "apiVersion" not in obj:
        raise InvalidReview(f"the request has no object in {field}")
    return obj


def _in_namespace(obj: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its Namespace set, which a new object may omit."""
    namespace, metadata = request.get("namespace"), obj["metadata"]
    if not namespace or metadata.get("namespace"):
        return obj
    return {**obj, "metadata": {**metadata, "namespace": namespace}}


def _as_sent(done: Obj, sent: Obj) -> Obj:
    """The object without the Namespace if it was sent without."""
    if "namespace" in sent["metadata"]:
        return done
    metadata = {field: value for field, value in done["metadata"].items() if field != "namespace"}
    return {**done, "metadata": metadata}


def _refusal(request: Mapping[str, Any], reported: str) -> Obj:
    message = reported.partition(_DENIED)[2] or reported
    status = {"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}
    return _answer(request, allowed=False, status=status)


def _answer(request: Mapping[str, Any], *, allowed: bool = True, **further: Any) -> Obj:
    response = {"uid": request.get("uid", ""), "allowed": allowed, **further}
    return {"apiVersion": _ADMISSION, "kind": "AdmissionReview", "response": response}
