"""The operator's webhooks: their registration by kind and operation, and their responses to AdmissionReviews.

The names of the webhooks are those of Kueue's and JobSet's webhooks. The webhooks also check the CEL rules of Kueue's
and JobSet's CRDs, so some kinds have a webhook that upstream lacks.

Sources: Kueue's config/components/webhook, JobSet's config/components/webhook.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from batchyard import controller_groups
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS, ManagedJobs, check_queue_removal, queue_job
from batchyard.admission_plugins.job_annotations import check_ready_timeouts, gate_dependent_job, gate_elastic_job
from batchyard.api import conversion, defaults, scheme, validation, well_known
from batchyard.api.defaults import jobset_defaults
from batchyard.api.errors import FieldError, Forbidden
from batchyard.api.meta import Key, Obj, group_kind, is_elastic
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.api.validation import queued_pods
from batchyard.api.validation.queues import on_flavors_errors
from batchyard.base.instant import Duration
from batchyard.controller_groups import ADMISSION, JOBSET, PODS
from batchyard.jobs.jobset.exclusive_placement import mutate_pod, validate_pod
from batchyard.jobs.pod.admission import queue_pod
from batchyard.jobs.serving.admission import queue_service, service_errors
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules

#: The URL paths of the webhooks.
MUTATE_PATH: Final = "/mutate"
VALIDATE_PATH: Final = "/validate"
CONVERT_PATH: Final = "/convert"
#: A Namespace whose Jobs and pods are excluded: a cluster must be able to start without the operator.
SYSTEM_NAMESPACE: Final = "kube-system"
#: The label that distinguishes pods of JobSets.
JOB_SET_POD_LABEL: Final = well_known.JOB_SET_NAME
_CREATE_OPERATIONS: Final = ("CREATE",)
_CREATE_AND_UPDATE_OPERATIONS: Final = ("CREATE", "UPDATE")


class OperatorWebhook(NamedTuple):
    """One webhook: its name, and the kind and operations that it handles."""

    name: str
    served_kind: ServedKind
    operations: Sequence[str]
    mutates: bool
    #: Subresources that the webhook also handles.
    subresources: Sequence[str] = ()
    #: CEL conditions on the objects that the API server sends to the webhook.
    match_conditions: Sequence[Mapping[str, str]] = ()

    @property
    def resources(self) -> list[str]:
        """The plural resource names that the webhook handles, in the notation of webhook rules."""
        return [
            self.served_kind.plural,
            *(f"{self.served_kind.plural}/{subresource}" for subresource in self.subresources),
        ]

    @property
    def handles_jobs_or_pods(self) -> bool:
        """Whether the webhook handles jobs or pods, which users create in every Namespace."""
        kind = self.served_kind.constant
        job_kinds = (scheme.JOB, scheme.JOB_SET, scheme.POD, *scheme.SERVING_KINDS)
        return kind in job_kinds or not scheme.is_built_in(kind)


_SERVING_KINDS: Final = tuple(filter(scheme.is_built_in, scheme.SERVING_KINDS))
_MUTATED_KINDS: Final = {
    controller_groups.ADMISSION: (
        *(scheme.JOB, scheme.JOB_SET, scheme.CLUSTER_QUEUE, scheme.RESOURCE_FLAVOR),
        *(scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
    ),
    controller_groups.PODS: (scheme.POD, *_SERVING_KINDS),
    controller_groups.JOBSET: (scheme.JOB_SET, scheme.POD),
}
_VALIDATED_KINDS: Final = {
    controller_groups.ADMISSION: (
        *(scheme.JOB, scheme.JOB_SET, scheme.CLUSTER_QUEUE, scheme.COHORT, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD),
        *(scheme.LOCAL_QUEUE, scheme.ADMISSION_CHECK, scheme.TOPOLOGY, scheme.JOB_KIND),
    ),
    controller_groups.PODS: (scheme.POD, *_SERVING_KINDS),
    controller_groups.JOBSET: (scheme.JOB_SET, scheme.POD),
}
#: Kinds whose status subresource is validated too.
_STATUS_VALIDATED_KINDS: Final = (scheme.WORKLOAD,)


def operator_webhooks(enabled_groups: Sequence[str], job_kinds: Sequence[ServedKind] = ()) -> Sequence[OperatorWebhook]:
    """Return the webhooks of the given controller groups, mutating ones first.

    `job_kinds` are the custom kinds of jobs that the group `admission` queues.
    """
    described = job_kinds if ADMISSION in enabled_groups else ()
    return [
        *_iterate_webhooks(enabled_groups, mutates=True),
        *(OperatorWebhook(f"m{info.singular}.kb.io", info, _mutated_operations(info), True) for info in described),
        *_iterate_webhooks(enabled_groups, mutates=False),
        *(OperatorWebhook(f"v{info.singular}.kb.io", info, _CREATE_AND_UPDATE_OPERATIONS, False) for info in described),
    ]


def _mutated_operations(info: ServedKind) -> Sequence[str]:
    return _CREATE_AND_UPDATE_OPERATIONS if info.constant in scheme.SERVING_KINDS else _CREATE_OPERATIONS


def _iterate_webhooks(enabled_groups: Sequence[str], *, mutates: bool) -> Iterator[OperatorWebhook]:
    kinds_by_group = _MUTATED_KINDS if mutates else _VALIDATED_KINDS
    for kind in dict.fromkeys(kind for group in enabled_groups for kind in kinds_by_group.get(group, ())):
        served_kind = kind_info(kind)
        is_created_only = mutates or (kind == scheme.POD and PODS not in enabled_groups)
        operations = _mutated_operations(served_kind) if is_created_only else _CREATE_AND_UPDATE_OPERATIONS
        subresources = ("status",) if kind in _STATUS_VALIDATED_KINDS and not mutates else ()
        name = f"{'m' if mutates else 'v'}{served_kind.singular}.kb.io"
        conditions = _pod_conditions(enabled_groups) if kind == scheme.POD else ()
        if kind in _SERVING_KINDS:
            conditions = _SERVICE_CONDITIONS
        yield OperatorWebhook(name, served_kind, operations, mutates, subresources, conditions)


#: The match conditions of the webhooks of kinds that serve, so that other objects never depend on the operator.
_SERVICE_CONDITIONS: Final[Sequence[Mapping[str, str]]] = (
    {
        "name": "queued",
        "expression": " || ".join(
            f"({prefix}has({obj}.metadata.labels) && '{well_known.QUEUE_NAME}' in {obj}.metadata.labels)"
            for prefix, obj in (("", "object"), ("oldObject != null && ", "oldObject"))
        ),
    },
)


def _pod_conditions(enabled_groups: Sequence[str]) -> Sequence[Mapping[str, str]]:
    """Return the match conditions of the webhooks of pods, so that other pods never depend on the operator."""
    if PODS not in enabled_groups:
        return ()
    labels = [well_known.QUEUE_NAME, well_known.MANAGED, *([JOB_SET_POD_LABEL] if JOBSET in enabled_groups else [])]
    alternatives = [f"'{name}' in object.metadata.labels" for name in labels]
    annotation = f"'{well_known.SUSPENDING_PARENT}' in object.metadata.annotations"
    expression = f"(has(object.metadata.labels) && ({' || '.join(alternatives)}))"
    expression += f" || (has(object.metadata.annotations) && {annotation})"
    return ({"name": "queued", "expression": expression},)


# Lookups of objects for a response. The response is computed from the fetched objects, and computed again after each
# fetch of a missing object.


class ObjectQuery(NamedTuple):
    """A query to the API server: for one object by its key, or for the pods of the Job with the uid `owner_uid`."""

    key: Key
    owner_uid: str = ""


class ObjectNotFetched(Exception):  # noqa: N818 - named after the condition
    """Raised if the response to an AdmissionReview requires an object not yet fetched; `query` describes the object."""

    def __init__(self, object_query: ObjectQuery) -> None:
        super().__init__(str(object_query))
        self.query = object_query


class FetchedObjects:
    """The objects fetched for the response to one AdmissionReview; reading any other object raises ObjectNotFetched."""

    def __init__(self, objects_by_query: Mapping[ObjectQuery, Sequence[Obj]]) -> None:
        self._fetched = objects_by_query

    def get(self, key: Key) -> Obj | None:
        """Return the fetched object with this key; None if the API server does not have it."""
        objects = self._fetched_objects(ObjectQuery(key))
        return objects[0] if objects else None

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the fetched pods of the Job with this uid in a namespace."""
        return self._fetched_objects(ObjectQuery(Key("", namespace, ""), uid))

    def _fetched_objects(self, query: ObjectQuery) -> Sequence[Obj]:
        if query not in self._fetched:
            raise ObjectNotFetched(query)
        return self._fetched[query]


# The difference between two objects as a JSON patch (RFC 6902).


def json_patch_between(old_object: Mapping[str, Any], new_object: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON patch operations that change the old object to the new one; lists are replaced as a whole."""
    return list(_patch_operations(old_object, new_object, ""))


def _patch_operations(
    old_object: Mapping[str, Any], new_object: Mapping[str, Any], path: str
) -> Iterator[dict[str, Any]]:
    for field in old_object:
        if field not in new_object:
            yield {"op": "remove", "path": f"{path}/{_escape_pointer(field)}"}
    for field, value in new_object.items():
        json_pointer = f"{path}/{_escape_pointer(field)}"
        old = old_object.get(field)
        if field not in old_object:
            yield {"op": "add", "path": json_pointer, "value": value}
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            yield from _patch_operations(old, value, json_pointer)
        elif old != value:
            yield {"op": "replace", "path": json_pointer, "value": value}


def _escape_pointer(field: str) -> str:
    return field.replace("~", "~0").replace("/", "~1")


# Responses to an external API server: AdmissionReview and ConversionReview, both v1.
#
# They use the functions of the embedded API server, so defaulting, validation and conversion are the same in both. For
# kinds of Kubernetes itself only the rules of Kueue and JobSet apply: their API server has applied the others.
# Source of the forms: k8s.io/api, admission/v1; k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1.


_ADMISSION_API_VERSION: Final = "admission.k8s.io/v1"
_CONVERSION_API_VERSION: Final = "apiextensions.k8s.io/v1"
_JOB_KINDS: Final = (scheme.JOB, scheme.JOB_SET)
#: The prefix of the embedded API server's webhook errors; here the external API server adds it.
_DENIAL_SEPARATOR: Final = " denied the request: "
_encode_json: Final = msgspec.json.Encoder().encode


class InvalidReview(ValueError):  # noqa: N818 - named after the condition
    """The request body is not a valid AdmissionReview or ConversionReview."""


def review_mutation(
    review: Mapping[str, Any],
    groups: Sequence[str],
    fetched: FetchedObjects,
    managed_jobs: ManagedJobs = ALL_QUEUED_JOBS,
    *,
    rules: DecisionRules = DEFAULT_RULES,
) -> Obj:
    """Return the AdmissionReview response of the mutating webhook: a denial, or a JSON patch if the object changes.

    If the `rules` support elastic jobs, an elastic Job gets the scheduling gate of its pods. Raises InvalidReview if
    the review is malformed, and ObjectNotFetched if the response requires another object.
    """
    request = _read_request(review)
    obj = _read_object(request, "object")
    managed_jobs = _with_requested_kind(managed_jobs, obj, request, fetched)
    try:
        complete_object = _complete_object(_with_namespace(obj, request), groups, fetched, managed_jobs)
        if group_kind(obj) == scheme.POD and PODS in groups:
            gates_topology = rules.gates_topology_pods
            complete_object = queue_pod(complete_object, fetched.get, managed_jobs, gates_topology=gates_topology)
            complete_object = gate_dependent_job(complete_object, fetched.get, managed_jobs)
    except Forbidden as denial:
        return _denial_response(request, str(denial))
    if rules.elastic_jobs and ADMISSION in groups and group_kind(obj) == scheme.JOB and is_elastic(complete_object):
        complete_object = gate_elastic_job(complete_object)
    patch = json_patch_between(obj, _without_added_namespace(complete_object, obj))
    if not patch:
        return _admission_response(request)
    return _admission_response(request, patchType="JSONPatch", patch=base64.b64encode(_encode_json(patch)).decode())


def review_validation(
    review: Mapping[str, Any],
    enabled_groups: Sequence[str],
    fetched_objects: FetchedObjects,
    managed_jobs: ManagedJobs = ALL_QUEUED_JOBS,
    ready_timeout_max: Duration | None = None,
    rules: DecisionRules = DEFAULT_RULES,
) -> Obj:
    """Return the AdmissionReview response of the validating webhook: it allows the object or contains the errors.

    `ready_timeout_max` is the maximum of the timeouts for ready pods in a job's annotation; None: it has no effect.
    `rules` are the decision rules of the version of Kueue.
    Raises InvalidReview if the review is malformed, and ObjectNotFetched if the response requires another object.
    """
    request = _read_request(review)
    new_object = _with_namespace(_read_object(request, "object"), request)
    old = _read_object(request, "oldObject") if request.get("operation") == "UPDATE" else None
    managed_jobs = _with_requested_kind(managed_jobs, new_object, request, fetched_objects)
    if group_kind(new_object) in scheme.SERVING_KINDS:
        return _review_service(request, (old, new_object), enabled_groups, fetched_objects, managed_jobs)
    if group_kind(new_object) == scheme.POD:
        is_checked = PODS in enabled_groups and scheme.POD in managed_jobs.kinds
        errors = list(_queued_pod_errors(new_object, old)) if is_checked else []
    elif not scheme.is_built_in(group_kind(new_object)):
        is_checked = ADMISSION in enabled_groups
        errors = _described_job_errors(new_object, old, managed_jobs, fetched_objects) if is_checked else []
    else:
        errors = list(_validation_errors(new_object, old, request.get("subResource") or "", rules))
    if errors:
        return _error_response(request, errors)
    try:
        kind = group_kind(new_object)
        if kind == scheme.POD:
            if old is None and JOBSET in enabled_groups:
                validate_pod(new_object, fetched_objects)
            if old is not None and PODS in enabled_groups:
                check_queue_removal(new_object, old, fetched_objects.get, managed_jobs)
        elif managed_jobs.has_kind(kind) and ADMISSION in enabled_groups:
            if old is not None:
                check_queue_removal(new_object, old, fetched_objects.get, managed_jobs)
            if ready_timeout_max is not None:
                check_ready_timeouts(new_object, old, ready_timeout_max)
    except Forbidden as denial:
        return _denial_response(request, str(denial))
    warning = managed_jobs.owner_warning(new_object, old) if kind == scheme.POD and PODS in enabled_groups else ""
    return _admission_response(request, warnings=[warning]) if warning else _admission_response(request)


def _review_service(
    request: Mapping[str, Any],
    old_and_new: tuple[Obj | None, Obj],
    groups: Sequence[str],
    fetched: FetchedObjects,
    managed_jobs: ManagedJobs,
) -> Obj:
    old, new = old_and_new
    if PODS not in groups or not managed_jobs.has_kind_of(new):
        return _admission_response(request)
    try:
        errors = service_errors(new, old, fetched.get, managed_jobs)
    except Forbidden as denial:
        return _denial_response(request, str(denial))
    return _error_response(request, errors) if errors else _admission_response(request)


def review_conversion(review: Mapping[str, Any]) -> Obj:
    """Return the response to a ConversionReview: the objects in the requested version, or the error.

    Raises InvalidReview if the review is malformed.
    """
    request = _read_request(review)
    target_version, objects = request.get("desiredAPIVersion"), request.get("objects")
    if not isinstance(target_version, str) or not isinstance(objects, list):
        raise InvalidReview("invalid ConversionReview: request requires desiredAPIVersion and a list of objects")
    response: dict[str, Any] = {"uid": request.get("uid", "")}
    try:
        converted_objects = [conversion.from_storage(conversion.to_storage(obj), target_version) for obj in objects]
    except (ValueError, KeyError, TypeError) as error:
        response |= {"convertedObjects": [], "result": {"status": "Failed", "message": str(error)}}
    else:
        response |= {"convertedObjects": converted_objects, "result": {"status": "Success"}}
    return {"apiVersion": _CONVERSION_API_VERSION, "kind": "ConversionReview", "response": response}


def _complete_object(obj: Obj, groups: Sequence[str], objects: FetchedObjects, managed_jobs: ManagedJobs) -> Obj:
    kind = group_kind(obj)
    if kind == scheme.POD:
        return mutate_pod(obj, objects) if JOBSET in groups else obj
    if kind in scheme.SERVING_KINDS:
        return queue_service(obj, objects.get, managed_jobs) if PODS in groups else obj
    if kind == scheme.JOB_SET and JOBSET in groups:
        obj = jobset_defaults(obj)
    if kind in _JOB_KINDS:
        if ADMISSION not in groups:
            return obj
        return gate_dependent_job(queue_job(obj, objects.get, managed_jobs), objects.get, managed_jobs)
    if scheme.is_built_in(kind):
        return defaults.with_defaults(obj)
    if ADMISSION not in groups or not managed_jobs.has_kind(kind):
        return obj
    from batchyard.jobs.described import controller  # noqa: PLC0415 - CEL takes 0.1 s to load

    queued_job = controller.queue_described_job(obj, objects.get, managed_jobs)
    return gate_dependent_job(queued_job, objects.get, managed_jobs)


def _with_requested_kind(
    managed_jobs: ManagedJobs, obj: Obj, request: Mapping[str, Any], objects: FetchedObjects
) -> ManagedJobs:
    """Return the managed jobs with the kind of the object, if a JobKind that is not known yet describes it."""
    kind = group_kind(obj)
    if scheme.is_built_in(kind) or managed_jobs.has_kind(kind) or kind in scheme.JOB_FRAMEWORKS.values():
        return managed_jobs
    resource = request.get("resource") or {}
    job_kind = objects.get(Key(scheme.JOB_KIND, "", f"{resource.get('resource')}.{resource.get('group')}"))
    if job_kind is None:
        return managed_jobs
    return replace(managed_jobs, job_kinds={**managed_jobs.job_kinds, kind: job_kind})


def _described_job_errors(
    new: Obj, old: Obj | None, managed_jobs: ManagedJobs, objects: FetchedObjects
) -> list[FieldError]:
    if not managed_jobs.has_kind_of(new):
        return []
    from batchyard.jobs.described import controller  # noqa: PLC0415 - CEL takes 0.1 s to load

    return list(controller.described_job_errors(new, old, managed_jobs, objects.get))


def _validation_errors(new: Obj, old: Obj | None, subresource: str, rules: DecisionRules) -> Iterator[FieldError]:
    kind = group_kind(new)
    disabled_gates = rules.disabled_validation_gates
    if subresource:
        yield from validation.validate_status(new, old, disabled_gates) if old is not None else ()
        return
    if old is None:
        errors = validation.validate(new, disabled_gates)
    else:
        errors = validation.validate_update(new, old, disabled_gates)
    if old is not None and kind == scheme.CLUSTER_QUEUE and rules.rejects_unknown_on_flavors:
        errors = list(dict.fromkeys([*errors, *on_flavors_errors(new)]))  # without duplicates
    # The API server validates names itself; a name that is still to be generated is empty.
    webhook_faults = (fault for fault in errors if not fault.path.startswith("metadata.name"))
    yield from (fault for fault in webhook_faults if fault.webhook or kind != scheme.JOB)
    if kind == scheme.JOB_KIND and not errors:
        from batchyard.jobs.described import controller  # noqa: PLC0415 - CEL takes 0.1 s to load

        yield from controller.expression_errors(new)


def _queued_pod_errors(new: Obj, old: Obj | None) -> Iterator[FieldError]:
    return queued_pods.queued_pod_errors(new) if old is None else queued_pods.queued_pod_update_errors(new, old)


def _read_request(review: Mapping[str, Any]) -> Mapping[str, Any]:
    request = review.get("request")
    if not isinstance(request, dict):
        raise InvalidReview("invalid review: the field request is missing or not an object")
    return request


def _read_object(request: Mapping[str, Any], field: str) -> dict[str, Any]:
    obj = request.get(field)
    is_api_object = isinstance(obj, dict) and isinstance(obj.get("metadata"), dict)
    if not isinstance(obj, dict) or not is_api_object or "kind" not in obj or "apiVersion" not in obj:
        raise InvalidReview(f"invalid review: request.{field} must be an object with apiVersion, kind and metadata")
    return obj


def _with_namespace(obj: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    namespace, metadata = request.get("namespace"), obj["metadata"]
    if not namespace or metadata.get("namespace"):
        return obj
    return {**obj, "metadata": {**metadata, "namespace": namespace}}


def _without_added_namespace(complete_object: Obj, sent_object: Obj) -> Obj:
    if "namespace" in sent_object["metadata"]:
        return complete_object
    metadata = {field: value for field, value in complete_object["metadata"].items() if field != "namespace"}
    return {**complete_object, "metadata": metadata}


def _denial_response(request: Mapping[str, Any], reason: str) -> Obj:
    message = reason.partition(_DENIAL_SEPARATOR)[2] or reason
    status = {"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}
    return _admission_response(request, allowed=False, status=status)


def _error_response(request: Mapping[str, Any], errors: Sequence[FieldError]) -> Obj:
    return _denial_response(request, str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]")


def _admission_response(request: Mapping[str, Any], *, allowed: bool = True, **response_fields: Any) -> Obj:
    response = {"uid": request.get("uid", ""), "allowed": allowed, **response_fields}
    return {"apiVersion": _ADMISSION_API_VERSION, "kind": "AdmissionReview", "response": response}
