"""The PodSecurity admission plugin: the enforce, warn and audit modes of a namespace's policy.

The admission chain enforces the policy on pods, including those of controllers. The API server adds warnings and audit
annotations to responses. Source: k8s.io/pod-security-admission, admission/admission.go. As there, JobSets are not
evaluated, but their Jobs are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from batchyard.admission_plugins.pods import Find, forbidden
from batchyard.api import scheme
from batchyard.api.errors import InvalidObject, RefusedForNow
from batchyard.api.meta import Key, Obj, controller_of
from batchyard.api.pod_security import (
    PREFIX,
    LevelVersion,
    PodSecurityPolicy,
    evaluate_pod,
    label_faults,
    namespace_policy,
)

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


class ObjectReader(Protocol):
    """Read access to the current objects."""

    def get(self, key: Key) -> Obj | None:
        """Return an object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""


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
