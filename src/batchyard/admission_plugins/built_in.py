"""Built-in admission plugins: priority, default tolerations, Pod Security, Namespaces, and Kueue's job webhooks.

The plugins are functions without side effects. They run in the order of Kubernetes's
pkg/kubeapiserver/options/plugins.go, before webhooks. Sources:
plugin/pkg/admission/{priority,defaulttolerationseconds,extendedresourcetoleration}.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, pod_security, scheme, well_known
from batchyard.api.defaults import pod_defaults
from batchyard.api.errors import Forbidden, InvalidObject, NamespaceTerminating, NotFound, TemporarilyForbidden
from batchyard.api.scheme import find_kind
from batchyard.api.validation.core import SYSTEM_CLASSES
from batchyard.api.validation.rules import is_extended
from batchyard.api.views.node import NAME_LABEL, namespace_labels
from batchyard.interfaces.client import EventType, ObjectReader, WatchEvent


def forbidden_prefix(obj: meta.Obj, *, prefers_name: bool = True) -> str:
    """Return the prefix of all admission errors of an object: `pods "a" is forbidden`.

    If an object has a name and a generateName, `prefers_name` selects the name: validating plugins run after the name
    is generated, mutating plugins before.
    """
    metadata = obj["metadata"]
    served_kind = find_kind(obj["apiVersion"], obj["kind"])
    plural = served_kind.plural if served_kind else f"{obj['kind'].lower()}s"  # custom plurals are unknown here
    group = obj["apiVersion"].rpartition("/")[0]
    resource = f"{plural}.{group}" if group else plural
    name, prefix = metadata.get("name"), metadata.get("generateName")
    return f'{resource} "{(name or prefix if prefers_name else prefix or name) or "Unknown"}" is forbidden'


#: A function that returns an object by key, or None.
FindObject: TypeAlias = Callable[[meta.Key], meta.Obj | None]
Toleration: TypeAlias = Mapping[str, Any]

#: The default time in seconds that a pod stays on a node that is not ready or unreachable.
TOLERATION_SECONDS: Final = 300
_NO_EXECUTE: Final = "NoExecute"
_UNREACHABLE_KEYS: Final = (well_known.NOT_READY, well_known.UNREACHABLE)
_DEFAULT_TOLERATIONS: Final[Mapping[str, Toleration]] = {
    key: {"key": key, "operator": "Exists", "effect": _NO_EXECUTE, "tolerationSeconds": TOLERATION_SECONDS}
    for key in _UNREACHABLE_KEYS
}
_DEFAULT_PREEMPTION_POLICY: Final = "PreemptLowerPriority"


def admit_pod(pod: meta.Obj, find_object: FindObject, global_default_class: meta.Obj | None) -> dict[str, Any]:
    """Return a new Pod with field defaults, the priority of its PriorityClass, and added tolerations.

    The tolerations are the default ones, and one for each requested extended resource. Raises Forbidden as
    `with_priority` does.
    """
    admitted_pod = with_priority(pod_defaults(pod), find_object, global_default_class)
    admitted_pod = with_extended_tolerations(with_default_tolerations(admitted_pod))
    return admitted_pod if isinstance(admitted_pod, dict) else dict(admitted_pod)


def find_global_default(priority_classes: Iterable[meta.Obj]) -> meta.Obj | None:
    """Return the PriorityClass with globalDefault (of several, the one with the lowest value); None without one."""
    default_classes = (priority_class for priority_class in priority_classes if priority_class.get("globalDefault"))
    return min(default_classes, key=lambda each: (each["value"], each["metadata"]["name"]), default=None)


def with_priority(pod: meta.Obj, find_object: FindObject, global_default_class: meta.Obj | None) -> meta.Obj:
    """Return the Pod with the priority and preemption policy of its PriorityClass, or of the global default class.

    Raises Forbidden if the PriorityClass does not exist, or if the Pod already has other values.
    """
    spec = pod["spec"]
    name, value, preemption_policy = _priority_class_of(pod, find_object, global_default_class)
    fields = {"priority": value, "preemptionPolicy": preemption_policy} | ({"priorityClassName": name} if name else {})
    if all(spec.get(field) == expected for field, expected in fields.items()):
        return pod
    if spec.get("priority") not in (None, value):
        raise _mismatch_error(pod, "integer value of priority", spec["priority"], value)
    if spec.get("preemptionPolicy") not in (None, preemption_policy):
        raise _mismatch_error(pod, "string value of PreemptionPolicy", spec["preemptionPolicy"], preemption_policy)
    return {**pod, "spec": {**spec, **fields}}


def with_default_tolerations(pod: meta.Obj) -> meta.Obj:
    """Return the Pod with tolerations for not-ready and unreachable nodes, unless its own tolerations cover them."""
    tolerations = pod["spec"].get("tolerations") or ()
    new_keys = [key for key in _UNREACHABLE_KEYS if not any(_covers_key(toleration, key) for toleration in tolerations)]
    return _with_tolerations(pod, [_DEFAULT_TOLERATIONS[key] for key in new_keys])


def with_extended_tolerations(pod: meta.Obj) -> meta.Obj:
    """Return the Pod with tolerations for taints whose keys are the extended resources that it requests."""
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    names = {name: None for c in containers for name in (c.get("resources") or {}).get("requests") or () if "/" in name}
    resources = sorted(name for name in names if is_extended(name))
    return _with_tolerations(pod, [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in resources])


def _priority_class_of(
    pod: meta.Obj, find_object: FindObject, global_default_class: meta.Obj | None
) -> tuple[str, int, str]:
    """Return the name, value and preemption policy of a pod's PriorityClass; name '' and value 0 without one.

    Raises Forbidden if the class does not exist.
    """
    name = pod["spec"].get("priorityClassName") or ""
    priority_class = find_object(meta.Key(scheme.PRIORITY_CLASS, "", name)) if name else global_default_class
    if priority_class is not None:
        return (
            priority_class["metadata"]["name"],
            priority_class.get("value", 0),
            priority_class.get("preemptionPolicy") or _DEFAULT_PREEMPTION_POLICY,
        )
    if not name:
        return "", 0, _DEFAULT_PREEMPTION_POLICY
    if name not in SYSTEM_CLASSES:
        raise Forbidden(f"{forbidden_prefix(pod)}: no PriorityClass with name {name} was found")
    return name, SYSTEM_CLASSES[name], _DEFAULT_PREEMPTION_POLICY


def _mismatch_error(pod: meta.Obj, field_text: str, spec_value: object, computed_value: object) -> Forbidden:
    return Forbidden(
        f"{forbidden_prefix(pod)}: the {field_text} ({spec_value}) must not be provided in pod spec; "
        f"priority admission controller computed {computed_value} from the given PriorityClass name"
    )


def _covers_key(toleration: Toleration, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", _NO_EXECUTE)


def _with_tolerations(pod: meta.Obj, new_tolerations: Sequence[Toleration]) -> meta.Obj:
    """Return the Pod with more tolerations; each replaces a toleration that differs only in its seconds."""
    if not new_tolerations:
        return pod
    tolerations = list(pod["spec"].get("tolerations") or ())
    positions_by_identity = {_toleration_identity(each): i for i, each in enumerate(tolerations)}
    for toleration in new_tolerations:
        position = positions_by_identity.get(_toleration_identity(toleration))
        if position is None:
            tolerations.append(toleration)
        else:
            tolerations[position] = toleration
    return {**pod, "spec": {**pod["spec"], "tolerations": tolerations}}


def _toleration_identity(toleration: Toleration) -> tuple[str, ...]:
    get = toleration.get
    return get("key") or "", get("operator") or "", get("value") or "", get("effect") or ""


# The validating part of the Priority plugin: at most one PriorityClass is the global default.
#
# Source: Kubernetes's plugin/pkg/admission/priority.


def check_global_default(priority_class: meta.Obj, global_default_class: meta.Obj | None) -> None:
    """Raise Forbidden if a PriorityClass sets globalDefault although another class is the default."""
    if not priority_class.get("globalDefault") or global_default_class is None:
        return
    name = global_default_class["metadata"]["name"]
    if name != priority_class["metadata"]["name"]:
        message = f"PriorityClass {name} is already marked as default. Only one default can exist"
        raise Forbidden(f"{forbidden_prefix(priority_class)}: {message}")


def check_only_cluster(cluster: meta.Obj, stored_clusters: Sequence[meta.Obj]) -> None:
    """Raise Forbidden if the platform already has a Cluster, because the controllers read only one."""
    if stored_clusters:
        name = stored_clusters[0]["metadata"]["name"]
        raise Forbidden(f"{forbidden_prefix(cluster)}: the platform already has Cluster {name}; change that one")


# The PodSecurity admission plugin, with the enforce, warn and audit modes of a namespace's policy.
#
# The admission chain enforces the policy on pods, including those of controllers. The API server adds warnings and
# audit annotations to responses. Source: k8s.io/pod-security-admission, admission/admission.go. As there, JobSets are
# not evaluated, but their Jobs are.


_TEMPLATE_PATH: Final = ("spec", "template")
#: By kind: the path of the pod template.
_TEMPLATE_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    scheme.POD_TEMPLATE: ("template",),
    **dict.fromkeys((*scheme.SCALABLE_KINDS, scheme.DAEMON_SET, scheme.JOB), _TEMPLATE_PATH),
    scheme.CRON_JOB: ("spec", "jobTemplate", "spec", "template"),
}


class PodSecurityReview(NamedTuple):
    """The result of a Pod Security review: warnings for the client, and annotations of the audit event."""

    warnings: tuple[str, ...] = ()
    #: The annotations of the audit event.
    annotations: Mapping[str, str] = {}


_EMPTY_REVIEW: Final = PodSecurityReview()
_PRIVILEGED_REVIEW: Final = PodSecurityReview(
    (), {f"{pod_security.LABEL_PREFIX}enforce-policy": str(pod_security.LevelVersion())}
)


def check_pod(pod: meta.Obj, find_object: FindObject) -> None:
    """Raise TemporarilyForbidden if a pod violates the Pod Security level that its namespace enforces."""
    policy = pod_security.namespace_policy(_labels_of_namespace(pod, find_object))
    result = pod_security.evaluate_pod(policy.enforce, pod["metadata"], pod["spec"])
    if result.violations:
        raise TemporarilyForbidden(f"{forbidden_prefix(pod)}: violates {result}")


def check_pod_change(new: meta.Obj, old: meta.Obj, find_object: FindObject) -> None:
    """Raise TemporarilyForbidden if an update of containers or images violates the enforced Pod Security level."""
    if _is_significant_change(new, old):
        check_pod(new, find_object)


def check_pod_security_labels(namespace: meta.Obj, old: meta.Obj | None = None) -> None:
    """Raise InvalidObject if a Namespace has invalid Pod Security labels, unless `old` has the same errors."""
    errors = pod_security.label_errors(namespace["metadata"].get("labels") or {})
    if errors and (old is None or errors != pod_security.label_errors(old["metadata"].get("labels") or {})):
        raise InvalidObject(errors)


def review_security(kind: str, new: meta.Obj, old: meta.Obj | None, objects: ObjectReader) -> PodSecurityReview:
    """Return the warnings and the Pod Security audit annotations for a new or changed object.

    They are empty for kinds other than Namespace, Pod and Kubernetes's own kinds with a pod template.
    """
    if kind == scheme.NAMESPACE:
        if old is None:
            return _EMPTY_REVIEW
        existing_pods = objects.list(scheme.POD, new["metadata"]["name"])
        return PodSecurityReview(pod_security.namespace_warnings(new, old, existing_pods))
    if kind == scheme.POD:
        review = _review_pod(new, old, objects.get)
        warning = ALL_QUEUED_JOBS.owner_warning(new, old)
        return review._replace(warnings=(*review.warnings, warning)) if warning else review
    if kind not in _TEMPLATE_PATHS:
        return _EMPTY_REVIEW
    labels = _labels_of_namespace(new, objects.get)
    policy, errors = pod_security.namespace_policy(labels), pod_security.label_errors(labels)
    template = _value_at(new, _TEMPLATE_PATHS[kind])
    if template is None or (policy.audit.strictness == policy.warn.strictness == 0 and not errors):
        return _EMPTY_REVIEW
    return _evaluate_modes(template, policy, labels, is_enforced=False)


def _review_pod(pod: meta.Obj, old: meta.Obj | None, find_object: FindObject) -> PodSecurityReview:
    labels = _labels_of_namespace(pod, find_object)
    policy = pod_security.namespace_policy(labels)
    if policy.is_privileged and not pod_security.label_errors(labels):
        return _PRIVILEGED_REVIEW
    if old is not None and not _is_significant_change(pod, old):
        return _EMPTY_REVIEW
    return _evaluate_modes(pod, policy, labels, is_enforced=True)


def _evaluate_modes(
    pod_or_template: meta.Obj, policy: pod_security.PodSecurityPolicy, labels: Mapping[str, str], *, is_enforced: bool
) -> PodSecurityReview:
    annotations: dict[str, str] = {}
    if errors := pod_security.label_errors(labels):
        fault_text = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
        annotations["error"] = f"Failed to parse policy: {fault_text}"
    metadata, spec = pod_or_template.get("metadata") or {}, pod_or_template.get("spec") or {}
    enforce_result, audit_result, warn_result = (pod_security.evaluate_pod(mode, metadata, spec) for mode in policy)
    if is_enforced:
        annotations["enforce-policy"] = str(policy.enforce)
    if audit_result.violations:
        annotations["audit-violations"] = f"would violate {audit_result}"
    is_pod_denied = is_enforced and enforce_result.violations
    warnings = (f"would violate {warn_result}",) if warn_result.violations and not is_pod_denied else ()
    return PodSecurityReview(warnings, {pod_security.LABEL_PREFIX + name: text for name, text in annotations.items()})


def _is_significant_change(new: meta.Obj, old: meta.Obj) -> bool:
    container_fields = ("containers", "initContainers", "ephemeralContainers")
    return any(_container_images(new, field) != _container_images(old, field) for field in container_fields)


def _container_images(pod: meta.Obj, field: str) -> list[tuple[str, str]]:
    return [(container["name"], container.get("image", "")) for container in pod["spec"].get(field) or ()]


def _value_at(obj: meta.Obj, path: Sequence[str]) -> Any:
    value: Any = obj
    for step in path:
        value = (value or {}).get(step)
    return value


def _labels_of_namespace(obj: meta.Obj, find_object: FindObject) -> Mapping[str, str]:
    namespace = find_object(meta.Key(scheme.NAMESPACE, "", obj["metadata"].get("namespace", "")))
    return {} if namespace is None else namespace["metadata"].get("labels") or {}


# The jobs that Kueue manages, and its job webhooks: default queue, default priority class, and suspension of new jobs.
#
# Sources: Kueue's pkg/controller/jobframework: defaults.go, utils.go (WorkloadShouldBeSuspended), integrationmanager.go
# (isKnownOwner) and reconciler.go (FindAncestorJobManagedByKueue).


#: The name of the default LocalQueue and of the default WorkloadPriorityClass.
DEFAULT_NAME: Final = "default"
#: The number of owners above a job from which Kueue ends the search for a managed one with an error.
_OWNER_CHAIN_LENGTH_MAX: Final = 10
#: The most JobKinds of users that are obeyed.
JOB_KINDS_MAX: Final = 100
_NESTED_TOO_DEEP: Final = "managed owner chain limit reached"
_APP_OWNERS: Final = (scheme.REPLICA_SET, scheme.DEPLOYMENT, scheme.STATEFUL_SET)
_KNOWN_OWNERS: Final = (*meta.JOB_KINDS, scheme.POD, *_APP_OWNERS)


class PriorityClassDefaulting(StrEnum):
    """The Namespaces in which jobs without a priority class get the WorkloadPriorityClass `default`, if it exists."""

    NONE = "None"
    #: As in Kueue 0.19.
    ALL = "All"
    #: Only the Namespaces that Kueue manages, as in Kueue 0.20.
    MANAGED = "Managed"


@dataclass(frozen=True, slots=True)
class ManagedJobs:
    """Which jobs Kueue manages, from its Configuration: kinds, Namespaces, and whether a job needs a queue name."""

    #: `managedJobsNamespaceSelector`; None selects all Namespaces.
    namespaces: meta.Selector | None = None
    #: `manageJobsWithoutQueueName`: whether a job without a queue name is managed.
    without_queue_name: bool = False
    #: The kinds in `integrations.frameworks` that batchyard supports, as `Kind.group`.
    kinds: tuple[str, ...] = tuple(scheme.JOB_FRAMEWORKS.values())
    #: `integrations.externalFrameworks`, as apiVersion and kind: other controllers manage these jobs in queues.
    external_kinds: tuple[tuple[str, str], ...] = ()
    #: Whether pods are enabled only because a kind that serves is: then no other pods are managed.
    implies_pods: bool = False
    #: The Namespaces in which the WorkloadPriorityClass `default` applies.
    class_defaulting: PriorityClassDefaulting = PriorityClassDefaulting.ALL
    #: The JobKinds of users, by the kind that they describe. `observe_job_kind` changes them.
    job_kinds: dict[str, meta.Obj] = field(default_factory=dict, compare=False)

    def observe_job_kind(self, event: WatchEvent) -> None:
        """Enable the kind that a new JobKind describes, or disable that of a deleted one."""
        spec = event.obj["spec"]
        kind = f"{spec['kind']}.{spec['group']}"
        if event.type is EventType.DELETED:
            self.job_kinds.pop(kind, None)
        elif kind in self.job_kinds or len(self.job_kinds) < JOB_KINDS_MAX:
            self.job_kinds[kind] = event.obj

    def has_kind(self, kind: str) -> bool:
        """Return whether a kind, such as `Job.batch`, is enabled."""
        return kind in self.kinds or kind in self.job_kinds

    def has_kind_of(self, job: meta.Obj) -> bool:
        """Return whether the kind of a job is enabled."""
        return self.has_kind(meta.group_kind(job))

    def names(self, job: meta.Obj) -> bool:
        """Return whether a job has a queue name, or needs none."""
        return self.without_queue_name or bool(meta.label(job, well_known.QUEUE_NAME))

    def has_kind_of_owner(self, owner: Mapping[str, Any]) -> bool:
        """Return whether the kind in an owner reference is enabled, or managed by another controller."""
        if (owner["apiVersion"], owner["kind"]) in self.external_kinds:
            return True
        return self.has_kind(meta.owner_key(owner, "").kind)

    def owner_warning(self, pod: meta.Obj, old: meta.Obj | None) -> str:
        """Return the warning about a pod with the label of pods in queues and an owner of an enabled kind; else ''."""
        # Pods that another controller queues have both; they cause a warning only when they are created.
        owner = meta.controller_of(pod) if meta.label(pod, well_known.MANAGED) == "true" else None
        is_queued_elsewhere = old is not None and meta.annotation(pod, well_known.SUSPENDING_PARENT) is not None
        if owner is None or is_queued_elsewhere or not self.has_kind_of_owner(owner):
            return ""
        return f"pod owner is managed by kueue, label '{well_known.MANAGED}=true' might lead to unexpected behaviour"


#: Every job with a queue name is managed.
ALL_QUEUED_JOBS: Final = ManagedJobs()


class AncestorSearch(NamedTuple):
    """The result of searching the owners of a job for the topmost one that Kueue manages."""

    #: The topmost ancestor that Kueue manages; None if there is none.
    managed_key: meta.Key | None
    #: The reason for which the search could not be completed, such as a missing owner; '' if it was.
    problem: str = ""

    @property
    def is_too_deep(self) -> bool:
        """Whether the search ended because the job has too many owners."""
        return self.problem == _NESTED_TOO_DEEP


def find_managed_ancestor(
    job: meta.Obj, find_object: FindObject, managed_jobs: ManagedJobs = ALL_QUEUED_JOBS
) -> AncestorSearch:
    """Find the topmost owner of a job that Kueue manages: Kueue manages it in place of the job.

    The search follows controllers of known kinds while their uid matches. Built-in kinds of jobs and ReplicaSets are
    known, even if their kind is not enabled, and the external kinds are known. The search fails if an owner is missing,
    owns itself, or is the eleventh. It ends at a ReplicaSet, Deployment or StatefulSet that the caller cannot read.
    """
    managed_key, obj = None, job
    uids = {job["metadata"].get("uid", "")}
    while (owner := meta.controller_of(obj)) is not None:
        is_enabled = managed_jobs.has_kind_of_owner(owner)
        key = meta.owner_key(owner, obj["metadata"].get("namespace") or "")
        if not is_enabled and key.kind not in _KNOWN_OWNERS:
            break
        parent = find_object(key)
        if parent is None and key.kind in _APP_OWNERS:
            break
        if parent is None:
            return AncestorSearch(None, f'{key.kind} "{key.name}" not found')
        uid = parent["metadata"].get("uid")
        if uid != owner["uid"]:
            break
        if is_enabled and managed_jobs.names(parent):
            managed_key = key
        if len(uids) > _OWNER_CHAIN_LENGTH_MAX:
            return AncestorSearch(None, _NESTED_TOO_DEEP)
        if uid in uids:
            return AncestorSearch(None, "cyclic ownership")
        uids.add(uid)
        obj = parent
    return AncestorSearch(managed_key)


def is_managed_namespace(name: str, namespace_selector: meta.Selector | None, find_object: FindObject) -> bool:
    """Return whether Kueue's `managedJobsNamespaceSelector` selects a Namespace; True if no selector is set.

    A Namespace that does not exist is not selected.
    """
    if namespace_selector is None:
        return True
    namespace = find_object(meta.Key(scheme.NAMESPACE, "", name))
    return namespace is not None and namespace_selector.matches(namespace_labels(namespace))


def queue_job(
    job: meta.Obj,
    find_object: FindObject,
    managed_jobs: ManagedJobs = ALL_QUEUED_JOBS,
    suspend_path: Sequence[str] = ("spec", "suspend"),
) -> meta.Obj:
    """Return a new job with the default queue and priority class, suspended at `suspend_path` if Kueue manages it.

    The defaults apply if a LocalQueue or WorkloadPriorityClass `default` exists. In a Namespace that Kueue does not
    manage, only the default priority class applies, depending on `class_defaulting`. A job whose controller has an
    enabled kind gets no defaults. A job is not suspended if Kueue manages an ancestor, or if its kind is not enabled.
    Raises Forbidden if the search for ancestors fails, for example because one is missing.
    """
    if not managed_jobs.has_kind_of(job):
        return job
    owner = meta.controller_of(job)
    if owner is None or not managed_jobs.has_kind_of_owner(owner):
        job = with_default_labels(job, find_object, managed_jobs)
    if owner is not None and _has_managed_ancestor(job, find_object, managed_jobs):
        return job
    return _suspend_managed_job(job, find_object, managed_jobs, suspend_path)


def may_be_queued(pod: meta.Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> bool:
    """Return whether a pod names a queue or needs none, has a default queue, or another controller queues it."""
    if managed_jobs.names(pod) or meta.annotation(pod, well_known.SUSPENDING_PARENT) is not None:
        return True
    return find_object(meta.Key(scheme.LOCAL_QUEUE, pod["metadata"].get("namespace", ""), DEFAULT_NAME)) is not None


def with_default_labels(job: meta.Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> meta.Obj:
    """Return a job with the default queue and the default priority class, if they exist and the job names none."""
    namespace = job["metadata"].get("namespace", "")
    queued_job = _set_default_label(
        job, well_known.QUEUE_NAME, meta.Key(scheme.LOCAL_QUEUE, namespace, DEFAULT_NAME), find_object
    )
    if queued_job is not job and not is_managed_namespace(namespace, managed_jobs.namespaces, find_object):
        queued_job = job
    class_key = meta.Key(scheme.WORKLOAD_PRIORITY_CLASS, "", DEFAULT_NAME)
    prioritized_job = _set_default_label(queued_job, well_known.PRIORITY_CLASS, class_key, find_object)
    class_defaulting = managed_jobs.class_defaulting
    if prioritized_job is not queued_job and class_defaulting is not PriorityClassDefaulting.ALL:
        is_managed = is_managed_namespace(namespace, managed_jobs.namespaces, find_object)
        if class_defaulting is PriorityClassDefaulting.NONE or not is_managed:
            return queued_job
    return prioritized_job


def _has_managed_ancestor(job: meta.Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> bool:
    ancestor_search = find_managed_ancestor(job, find_object, managed_jobs)
    if ancestor_search.problem:
        webhook_name = f"m{job['kind'].lower()}.kb.io"
        raise Forbidden(f'admission webhook "{webhook_name}" denied the request: {ancestor_search.problem}')
    return ancestor_search.managed_key is not None


def _suspend_managed_job(
    job: meta.Obj, find_object: FindObject, managed_jobs: ManagedJobs, suspend_path: Sequence[str]
) -> meta.Obj:
    if _value_at(job, suspend_path) or not managed_jobs.names(job):
        return job
    if not meta.label(job, well_known.QUEUE_NAME) and not is_managed_namespace(
        job["metadata"].get("namespace", ""), managed_jobs.namespaces, find_object
    ):
        return job
    return meta.with_path(job, suspend_path, True)


def _set_default_label(job: meta.Obj, name: str, default_key: meta.Key, find_object: FindObject) -> meta.Obj:
    if meta.label(job, name) or find_object(default_key) is None:
        return job
    return meta.with_path(job, ("metadata", "labels", name), default_key.name)


# Updates of jobs in queues.
#
# Source: Kueue's pkg/controller/jobframework/validation.go (validateUpdateForQueueName).


def check_queue_removal(
    new: meta.Obj, old: meta.Obj, find_object: FindObject, managed_jobs: ManagedJobs = ALL_QUEUED_JOBS
) -> None:
    """Raise Forbidden if an update removes a job's queue label in a Namespace with a default LocalQueue.

    Jobs of kinds that are not enabled are not checked.
    """
    name = well_known.QUEUE_NAME
    if meta.label(new, name) or not meta.label(old, name) or not managed_jobs.has_kind_of(new):
        return
    if find_object(meta.Key(scheme.LOCAL_QUEUE, new["metadata"].get("namespace", ""), DEFAULT_NAME)) is not None:
        path, reason = f"metadata.labels[{name}]", "queue-name must not be empty in namespace with default queue"
        webhook_name = validating_webhook(new)
        raise Forbidden(f'admission webhook "{webhook_name}" denied the request: {path}: Invalid value: "": {reason}')


def validating_webhook(job: meta.Obj) -> str:
    """Return the name of the validating webhook for the kind of a job."""
    return f"v{job['kind'].lower()}.kb.io"


# The NamespaceLifecycle admission plugin, and the system Namespaces.
#
# Sources: Kubernetes's NamespaceLifecycle (apiserver/pkg/admission/plugin/namespace/lifecycle), and
# pkg/controlplane/controller/systemnamespaces for the system Namespaces.


#: The Namespaces that every cluster has. The last may be deleted and is recreated; the others cannot be deleted.
SYSTEM_NAMESPACES: Final = ("default", "kube-public", "kube-system", "kube-node-lease")
#: The finalizer that keeps a Namespace until it is empty.
FINALIZER: Final = "kubernetes"
_UNDELETABLE_NAMESPACES: Final = SYSTEM_NAMESPACES[:-1]


def new_namespace(name: str) -> meta.Obj:
    """Return a new Namespace object with its name label."""
    return with_name_label({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def activated_namespace(namespace: meta.Obj) -> meta.Obj:
    """Return a new Namespace with its name label, its `kubernetes` finalizer and the phase Active."""
    return meta.with_status(with_namespace_finalizer(namespace), {"phase": "Active"})


def with_namespace_finalizer(namespace: meta.Obj) -> meta.Obj:
    """Return the Namespace with its name label and finalizer; the same object if it has both."""
    return meta.with_finalizer(with_name_label(namespace), FINALIZER)


def with_name_label(namespace: meta.Obj) -> meta.Obj:
    """Return the Namespace with its name as a label; unchanged if it has no name yet."""
    metadata = namespace["metadata"]
    name, labels = metadata.get("name"), metadata.get("labels") or {}
    if not name or labels.get(NAME_LABEL) == name:
        return namespace
    return meta.with_metadata(namespace, labels={**labels, NAME_LABEL: name})


def check_namespace(obj: meta.Obj, find_object: FindObject) -> None:
    """Raise NotFound if an object's Namespace is missing, NamespaceTerminating if the Namespace is being deleted."""
    name = obj["metadata"].get("namespace", "")
    namespace = find_object(meta.Key(scheme.NAMESPACE, "", name))
    if namespace is None:
        raise NotFound(f'namespaces "{name}" not found')
    if "deletionTimestamp" in namespace["metadata"]:
        reason = f"unable to create new content in namespace {name} because it is being terminated"
        raise NamespaceTerminating(f"{forbidden_prefix(obj)}: {reason}")


def check_deletion(namespace: meta.Obj) -> None:
    """Raise Forbidden if the Namespace is one that Kubernetes never deletes, such as `default`."""
    if namespace["metadata"]["name"] in _UNDELETABLE_NAMESPACES:
        raise Forbidden(f"{forbidden_prefix(namespace)}: this namespace may not be deleted")
