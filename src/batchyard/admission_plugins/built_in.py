"""Admission plugins: priority, default tolerations, Pod Security, queues of jobs, Namespaces.

Each plugin is a pure function. Sources: Kubernetes's
plugin/pkg/admission/{priority,defaulttolerationseconds,extendedresourcetoleration}; their order is that of
pkg/kubeapiserver/options/plugins.go. Webhooks run after them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.defaults import pod_defaults
from batchyard.api.errors import Forbidden, InvalidObject, NamespaceTerminating, NotFound, RefusedForNow
from batchyard.api.meta import (
    Key,
    Obj,
    Selector,
    ancestry,
    controller_of,
    job_above,
    label,
    with_finalizer,
    with_metadata,
    with_path,
    with_status,
)
from batchyard.api.pod_security import (
    PREFIX,
    LevelVersion,
    PodSecurityPolicy,
    evaluate_pod,
    label_faults,
    namespace_policy,
)
from batchyard.api.scheme import find_kind
from batchyard.api.validation.core import SYSTEM_CLASSES
from batchyard.api.validation.rules import is_extended
from batchyard.api.views.node import NAME_LABEL, namespace_labels
from batchyard.interfaces.client import ObjectReader

# --- forbidden ---
#
# The prefix of admission errors.


def forbidden(obj: Obj, *, is_named: bool = True) -> str:
    """Return the prefix of all admission errors of an object.

    Mutating plugins run before generateName is resolved, validating ones after; `is_named` selects the field that is
    shown.
    """
    metadata = obj["metadata"]
    info = find_kind(obj["apiVersion"], obj["kind"])
    plural = info.plural if info else f"{obj['kind'].lower()}s"  # custom plurals are unknown here
    group = obj["apiVersion"].rpartition("/")[0]
    resource = f"{plural}.{group}" if group else plural
    name, prefix = metadata.get("name"), metadata.get("generateName")
    return f'{resource} "{(name or prefix if is_named else prefix or name) or "Unknown"}" is forbidden'


#: Looks up an object; None if it does not exist.
Find: TypeAlias = Callable[[Key], Obj | None]
Toleration: TypeAlias = Mapping[str, Any]

#: Default time in seconds that a pod stays on a lost node.
TOLERATION_SECONDS: Final = 300
_NO_EXECUTE: Final = "NoExecute"
_LOST: Final = (well_known.NOT_READY, well_known.UNREACHABLE)
_STAYING: Final[Mapping[str, Toleration]] = {
    key: {"key": key, "operator": "Exists", "effect": _NO_EXECUTE, "tolerationSeconds": TOLERATION_SECONDS}
    for key in _LOST
}
_PREEMPT: Final = "PreemptLowerPriority"


def admit_pod(pod: Obj, find: Find, default: Obj | None) -> dict[str, Any]:
    """Return a new Pod with defaults and the changes of all plugins. Raises Forbidden if a plugin rejects it.

    `default` is the global default PriorityClass.
    """
    done = priority(pod_defaults(pod), find, default)
    done = extended_resource_toleration(default_toleration_seconds(done))
    return done if isinstance(done, dict) else dict(done)


def default_class(classes: Iterable[Obj]) -> Obj | None:
    """Return the global default PriorityClass: the one with the lowest value of those with globalDefault."""
    defaults = (found for found in classes if found.get("globalDefault"))
    return min(defaults, key=lambda found: (found["value"], found["metadata"]["name"]), default=None)


def priority(pod: Obj, find: Find, default: Obj | None) -> Obj:
    """Return the Pod with the priority and preemption policy of its class or of the default class."""
    spec = pod["spec"]
    name, value, policy = _class_of(pod, find, default)
    fields = {"priority": value, "preemptionPolicy": policy} | ({"priorityClassName": name} if name else {})
    if all(spec.get(field) == wanted for field, wanted in fields.items()):
        return pod
    if spec.get("priority") not in (None, value):
        raise _refused(pod, "integer value of priority", spec["priority"], value)
    if spec.get("preemptionPolicy") not in (None, policy):
        raise _refused(pod, "string value of PreemptionPolicy", spec["preemptionPolicy"], policy)
    return {**pod, "spec": {**spec, **fields}}


def default_toleration_seconds(pod: Obj) -> Obj:
    """Add tolerations for nodes that are not ready or unreachable, unless the Pod has its own."""
    given = pod["spec"].get("tolerations") or ()
    missing = [key for key in _LOST if not any(_speaks_of(toleration, key) for toleration in given)]
    return _tolerating(pod, [_STAYING[key] for key in missing])


def extended_resource_toleration(pod: Obj) -> Obj:
    """Add tolerations for the extended resources that the Pod requests; the taint keys are the resource names."""
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    requested = {
        name: None for each in containers for name in (each.get("resources") or {}).get("requests") or () if "/" in name
    }
    devices = sorted(name for name in requested if is_extended(name))
    return _tolerating(pod, [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in devices])


def _class_of(pod: Obj, find: Find, default: Obj | None) -> tuple[str, int, str]:
    """Return the name, value and preemption policy of a Pod's class; '' as name without a class and a default."""
    name = pod["spec"].get("priorityClassName") or ""
    found = find(Key(scheme.PRIORITY_CLASS, "", name)) if name else default
    if found is not None:
        return found["metadata"]["name"], found.get("value", 0), found.get("preemptionPolicy") or _PREEMPT
    if not name:
        return "", 0, _PREEMPT
    if name not in SYSTEM_CLASSES:
        raise Forbidden(f"{forbidden(pod)}: no PriorityClass with name {name} was found")
    return name, SYSTEM_CLASSES[name], _PREEMPT


def _refused(pod: Obj, what: str, given: object, computed: object) -> Forbidden:
    """Return the error of a Pod whose own priority or policy differs from that of its class."""
    return Forbidden(
        f"{forbidden(pod)}: the {what} ({given}) must not be provided in pod spec; "
        f"priority admission controller computed {computed} from the given PriorityClass name"
    )


def _speaks_of(toleration: Toleration, key: str) -> bool:
    """Report whether a toleration covers NoExecute taints of a key, regardless of the value."""
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", _NO_EXECUTE)


def _tolerating(pod: Obj, added: Sequence[Toleration]) -> Obj:
    """Add tolerations to the Pod; each replaces one that differs only in its seconds."""
    if not added:
        return pod
    tolerations = list(pod["spec"].get("tolerations") or ())
    places = {_identity(each): i for i, each in enumerate(tolerations)}
    for toleration in added:
        at = places.get(_identity(toleration))
        if at is None:
            tolerations.append(toleration)
        else:
            tolerations[at] = toleration
    return {**pod, "spec": {**pod["spec"], "tolerations": tolerations}}


def _identity(toleration: Toleration) -> tuple[str, ...]:
    get = toleration.get
    return get("key") or "", get("operator") or "", get("value") or "", get("effect") or ""


# --- priority classes ---
#
# The validating part of the Priority plugin: at most one PriorityClass is the global default.
#
# Source: Kubernetes's plugin/pkg/admission/priority.


def check_default(priority_class: Obj, default: Obj | None) -> None:
    """Raise Forbidden if a new or changed class sets globalDefault while another class is the default."""
    if not priority_class.get("globalDefault") or default is None:
        return
    name = default["metadata"]["name"]
    if name != priority_class["metadata"]["name"]:
        message = f"PriorityClass {name} is already marked as default. Only one default can exist"
        raise Forbidden(f"{forbidden(priority_class)}: {message}")


# --- pod security ---
#
# The PodSecurity admission plugin: the enforce, warn and audit modes of a namespace's policy.
#
# The admission chain enforces the policy on pods, including those of controllers. The API server adds warnings and
# audit annotations to responses. Source: k8s.io/pod-security-admission, admission/admission.go. As there, JobSets are
# not evaluated, but their Jobs are.


#: Maximum number of existing pods checked against a changed policy.
PODS_MAX: Final = 3000
_TEMPLATE: Final = ("spec", "template")
#: Paths of the pod template in each kind of pod controller.
_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    scheme.POD_TEMPLATE: ("template",),
    scheme.REPLICATION_CONTROLLER: _TEMPLATE,
    scheme.REPLICA_SET: _TEMPLATE,
    scheme.DEPLOYMENT: _TEMPLATE,
    scheme.STATEFUL_SET: _TEMPLATE,
    scheme.DAEMON_SET: _TEMPLATE,
    scheme.JOB: _TEMPLATE,
    scheme.CRON_JOB: ("spec", "jobTemplate", "spec", "template"),
}


class Review(NamedTuple):
    """The warnings and audit annotations of a response."""

    warnings: tuple[str, ...] = ()
    #: Annotations of the audit event.
    annotations: Mapping[str, str] = {}


_NOTHING: Final = Review()
_PRIVILEGED: Final = Review((), {f"{PREFIX}enforce-policy": str(LevelVersion())})


def check_pod(pod: Obj, find: Find) -> None:
    """Raise Forbidden if a new pod violates the policy that its namespace enforces."""
    policy = namespace_policy(_labels_of(pod, find))
    violations = evaluate_pod(policy.enforce, pod["metadata"], pod["spec"])
    if violations.found:
        raise RefusedForNow(f"{forbidden(pod)}: violates {violations}")


def check_pod_change(new: Obj, old: Obj, find: Find) -> None:
    """Raise Forbidden if a pod with changed containers violates the policy."""
    if _is_significant(new, old):
        check_pod(new, find)


def check_labels(namespace: Obj, old: Obj | None = None) -> None:
    """Raise InvalidObject if the policy labels are invalid, unless they had the same errors before."""
    faults = label_faults(namespace["metadata"].get("labels") or {})
    if faults and (old is None or faults != label_faults(old["metadata"].get("labels") or {})):
        raise InvalidObject(faults)


def review(kind: str, new: Obj, old: Obj | None, objects: ObjectReader) -> Review:
    """Review a new object, or a change of one."""
    if kind == scheme.NAMESPACE:
        return _NOTHING if old is None else Review(_namespace_warnings(new, old, objects))
    if kind == scheme.POD:
        return _pod_review(new, old, objects.get)
    if kind not in _TEMPLATES:
        return _NOTHING
    labels = _labels_of(new, objects.get)
    policy, faults = namespace_policy(labels), label_faults(labels)
    template = _template(new, _TEMPLATES[kind])
    if template is None or (policy.audit.strictness == policy.warn.strictness == 0 and not faults):
        return _NOTHING
    return _evaluated(template, policy, labels, is_enforced=False)


def _pod_review(pod: Obj, old: Obj | None, find: Find) -> Review:
    labels = _labels_of(pod, find)
    policy = namespace_policy(labels)
    if policy.is_privileged and not label_faults(labels):
        return _PRIVILEGED
    if old is not None and not _is_significant(pod, old):
        return _NOTHING
    return _evaluated(pod, policy, labels, is_enforced=True)


def _evaluated(part: Obj, policy: PodSecurityPolicy, labels: Mapping[str, str], *, is_enforced: bool) -> Review:
    """Evaluate a pod or a template against each mode."""
    annotations: dict[str, str] = {}
    if faults := label_faults(labels):
        listed = str(faults[0]) if len(faults) == 1 else f"[{', '.join(map(str, faults))}]"
        annotations["error"] = f"Failed to parse policy: {listed}"
    metadata, spec = part.get("metadata") or {}, part.get("spec") or {}
    enforced, audited, warned = (evaluate_pod(mode, metadata, spec) for mode in policy)
    if is_enforced:
        annotations["enforce-policy"] = str(policy.enforce)
    if audited.found:
        annotations["audit-violations"] = f"would violate {audited}"
    is_denied = is_enforced and enforced.found
    warnings = (f"would violate {warned}",) if warned.found and not is_denied else ()
    return Review(warnings, {PREFIX + name: text for name, text in annotations.items()})


def _namespace_warnings(new: Obj, old: Obj, objects: ObjectReader) -> tuple[str, ...]:
    """Warn about the existing pods that violate a stricter policy."""
    wanted, before = (namespace_policy(obj["metadata"].get("labels") or {}).enforce for obj in (new, old))
    is_relaxed = wanted.minor == before.minor and wanted.strictness <= before.strictness
    if is_relaxed or not wanted.strictness:
        return ()
    name = new["metadata"]["name"]
    pods = _prioritized(objects.list(scheme.POD, name))
    by_reasons: dict[str, list[str]] = {}
    for pod in pods[:PODS_MAX]:
        violations = evaluate_pod(wanted, pod["metadata"], pod["spec"])
        if violations.found:
            by_reasons.setdefault(violations.reasons, []).append(pod["metadata"]["name"])
    warnings = []
    if len(pods) > PODS_MAX:
        checked = f"first {PODS_MAX} of {len(pods)} existing pods"
        warnings.append(f"new PodSecurity enforce level only checked against the {checked}")
    if by_reasons:
        warnings.append(f'existing pods in namespace "{name}" violate the new PodSecurity enforce level "{wanted}"')
    return (*warnings, *sorted(_pods_text(names, reasons) for reasons, names in by_reasons.items()))


def _prioritized(pods: Sequence[Obj]) -> list[Obj]:
    """Order pods: the first pod of each controller and pods without one, then the others."""
    first: list[Obj] = []
    others: list[Obj] = []
    seen: set[str] = set()
    for pod in pods:
        owner = controller_of(pod)
        uid = "" if owner is None else owner["uid"]
        (others if uid in seen else first).append(pod)
        if uid:
            seen.add(uid)
    return first + others


def _pods_text(names: Sequence[str], reasons: str) -> str:
    others = len(names) - 1
    more = f" (and {others} other {'pod' if others == 1 else 'pods'})" if others else ""
    return f"{min(names)}{more}: {reasons}"


def _is_significant(new: Obj, old: Obj) -> bool:
    """Report whether containers or images changed."""
    fields = ("containers", "initContainers", "ephemeralContainers")
    return any(_images(new, field) != _images(old, field) for field in fields)


def _images(pod: Obj, field: str) -> list[tuple[str, str]]:
    return [(container["name"], container.get("image", "")) for container in pod["spec"].get(field) or ()]


def _template(obj: Obj, path: Sequence[str]) -> Any:
    found: Any = obj
    for step in path:
        found = (found or {}).get(step)
    return found


def _labels_of(obj: Obj, find: Find) -> Mapping[str, str]:
    """Return the labels of an object's namespace."""
    namespace = find(Key(scheme.NAMESPACE, "", obj["metadata"].get("namespace", "")))
    return {} if namespace is None else namespace["metadata"].get("labels") or {}


# --- queued jobs ---
#
# Kueue's job webhooks: default queue, default priority class, and suspension of new Jobs and JobSets.
#
# Source: Kueue's pkg/controller/jobframework/defaults.go, with manageJobsWithoutQueueName off.


#: The name of the default LocalQueue and of the default WorkloadPriorityClass.
_DEFAULT: Final = "default"
_WEBHOOKS: Final = {"Job": "mjob.kb.io", "JobSet": "mjobset.kb.io"}


def is_managed_namespace(name: str, managed: Selector | None, find: Find) -> bool:
    """Report whether `managedJobsNamespaceSelector` selects a Namespace; false if the Namespace is gone."""
    if managed is None:
        return True
    namespace = find(Key(scheme.NAMESPACE, "", name))
    return namespace is not None and managed.matches(namespace_labels(namespace))


def queue_job(job: Obj, find: Find, managed: Selector | None = None) -> Obj:
    """Return the Job or JobSet with its defaults; a child job is suspended only if no ancestor is managed.

    In Namespaces that are not managed, a job without a queue does not get the default one.
    """
    if job_above(job) is not None:
        return job if _is_managed_above(job, find) else _waiting(job)
    namespace = job["metadata"].get("namespace", "")
    queued = _labelled(job, well_known.QUEUE_NAME, Key(scheme.LOCAL_QUEUE, namespace, _DEFAULT), find)
    if queued is not job and not is_managed_namespace(namespace, managed, find):
        queued = job
    return _waiting(
        _labelled(queued, well_known.PRIORITY_CLASS, Key(scheme.WORKLOAD_PRIORITY_CLASS, "", _DEFAULT), find)
    )


def _is_managed_above(job: Obj, find: Find) -> bool:
    """Report whether an ancestor job is managed by a queue. Raises Forbidden if an ancestor is missing."""
    above = ancestry(job, find)
    if above.missing is not None:
        message = f'{above.missing.kind} "{above.missing.name}" not found'
        raise Forbidden(f'admission webhook "{_WEBHOOKS[job["kind"]]}" denied the request: {message}')
    return above.managed is not None


def _waiting(job: Obj) -> Obj:
    """Return the Job, suspended if it has a queue."""
    if not label(job, well_known.QUEUE_NAME) or job["spec"].get("suspend"):
        return job
    return with_path(job, ("spec", "suspend"), True)


def _labelled(job: Obj, name: str, default: Key, find: Find) -> Obj:
    """Return the Job with a label set to the default, if that exists and the job does not have the label."""
    if label(job, name) or find(default) is None:
        return job
    return with_path(job, ("metadata", "labels", name), default.name)


# --- default queues ---
#
# The validating part of Kueue's job webhooks for updates.
#
# Source: Kueue's pkg/controller/jobframework/validation.go (validateUpdateForQueueName).


_DEFAULT_QUEUES_WEBHOOKS: Final = {"Job": "vjob.kb.io", "JobSet": "vjobset.kb.io"}


def check_queue_kept(new: Obj, old: Obj, find: Find) -> None:
    """Raise Forbidden if the queue label is removed in a Namespace with a default LocalQueue."""
    name = well_known.QUEUE_NAME
    if label(new, name) or not label(old, name):
        return
    if find(Key(scheme.LOCAL_QUEUE, new["metadata"].get("namespace", ""), _DEFAULT)) is not None:
        path, why = f"metadata.labels[{name}]", "queue-name must not be empty in namespace with default queue"
        webhook = _DEFAULT_QUEUES_WEBHOOKS[new["kind"]]
        raise Forbidden(f'admission webhook "{webhook}" denied the request: {path}: Invalid value: "": {why}')


# --- namespaces ---
#
# The NamespaceLifecycle admission plugin, and the system Namespaces.
#
# Sources: Kubernetes's NamespaceLifecycle (apiserver/pkg/admission/plugin/namespace/lifecycle), and
# pkg/controlplane/controller/systemnamespaces for the system Namespaces.


#: The Namespaces that every cluster has. All but the last are undeletable; the last is recreated.
SYSTEM_NAMESPACES: Final = ("default", "kube-public", "kube-system", "kube-node-lease")
#: The finalizer that keeps a Namespace until it is empty.
FINALIZER: Final = "kubernetes"
_IMMORTAL: Final = SYSTEM_NAMESPACES[:-1]


def new_namespace(name: str) -> Obj:
    """Return a Namespace to create."""
    return labelled({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def taken_up(namespace: Obj) -> Obj:
    """Return a new Namespace with its label, its finalizer and the phase Active."""
    return with_status(held(namespace), {"phase": "Active"})


def held(namespace: Obj) -> Obj:
    """Return the Namespace with its label and its finalizer; itself if it has both."""
    return with_finalizer(labelled(namespace), FINALIZER)


def labelled(namespace: Obj) -> Obj:
    """Return the Namespace with its name as a label, replacing another value; unchanged without a name."""
    metadata = namespace["metadata"]
    name, labels = metadata.get("name"), metadata.get("labels") or {}
    if not name or labels.get(NAME_LABEL) == name:
        return namespace
    return with_metadata(namespace, labels={**labels, NAME_LABEL: name})


def check_namespace(obj: Obj, find: Find) -> None:
    """Raise NotFound if the Namespace of a new object is missing, NamespaceTerminating if it is being deleted."""
    name = obj["metadata"].get("namespace", "")
    namespace = find(Key(scheme.NAMESPACE, "", name))
    if namespace is None:
        raise NotFound(f'namespaces "{name}" not found')
    if "deletionTimestamp" in namespace["metadata"]:
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise NamespaceTerminating(f"{forbidden(obj)}: {why}")


def check_deletion(namespace: Obj) -> None:
    """Raise Forbidden if the Namespace is undeletable."""
    if namespace["metadata"]["name"] in _IMMORTAL:
        raise Forbidden(f"{forbidden(namespace)}: this namespace may not be deleted")
