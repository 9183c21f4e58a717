"""The view of a Pod: its scheduling constraints and its state.

Pods with equal content share the constraints (PodShape), as the pods of one Job do. Sources: kube-scheduler's
framework/types.go (PodInfo, AffinityTerm) and its plugins; k8s.io/component-helpers nodeaffinity; Kubernetes'
pkg/registry/core/pod for matchLabelKeys.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import times, well_known
from batchyard.api.meta import (
    Obj,
    Requirement,
    Selector,
    annotation,
    duration,
    find_condition,
    is_true,
    label,
    selector,
    with_metadata,
    with_status,
)
from batchyard.api.times import format_time, parse_time
from batchyard.api.views import node
from batchyard.api.views.node import Requests, Toleration, pod_template, taint, toleration
from batchyard.base.instant import SECOND, Duration, Instant, duration_text, parse_duration

PODS: Final = "pods"
"""The resource of which each pod uses one."""

_NOTHING: Final[Mapping[str, Any]] = {}
_LABELS_NONE: Final[Mapping[str, str]] = {}
_TERMINAL: Final = ("Succeeded", "Failed")
#: The requests that scoring assumes for a container without any: 100m cpu and 200 MiB.
_CPU_ASSUMED: Final = "100m"
_MEMORY_ASSUMED: Final = "200Mi"
_MEMO_MAX: Final = 16384
_VIEWS_MAX: Final = 262144
_encode = msgspec.json.Encoder(order="sorted").encode


class NodeTerm(NamedTuple):
    """A term of a node selector: all its expressions on labels and on fields must hold."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


class Preference(NamedTuple):
    """A preferred term of node affinity."""

    weight: int
    term: NodeTerm


class PodTerm(NamedTuple):
    """A term of pod affinity or anti-affinity: the pods, their namespaces, and the topology key."""

    topology_key: str
    #: None selects no pod.
    selector: Selector | None
    namespaces: tuple[str, ...]
    #: Additional namespaces by their labels; None: none.
    namespace_selector: Selector | None

    def selects(self, namespace: str, labels: Mapping[str, str], namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Report whether the term selects a pod. `namespaces` are the labels of the namespaces."""
        if namespace not in self.namespaces and (
            self.namespace_selector is None
            or not self.namespace_selector.matches(namespaces.get(namespace, _LABELS_NONE))
        ):
            return False
        return self.selector is not None and self.selector.matches(labels)


class WeightedTerm(NamedTuple):
    """A preferred term of pod affinity; of anti-affinity if the weight is negative."""

    weight: int
    term: PodTerm


class SpreadRule(NamedTuple):
    """A topology spread constraint."""

    topology_key: str
    max_skew: int
    #: DoNotSchedule; else ScheduleAnyway.
    is_hard: bool
    selector: Selector | None
    min_domains: int
    honors_affinity: bool
    honors_taints: bool


class HostPort(NamedTuple):
    """A host port of a pod."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeRules:
    """The node constraints of a pod, independent of other pods."""

    node_selector: tuple[tuple[str, str], ...]
    #: Terms, which are ORed; None: no restriction.
    affinity: tuple[NodeTerm, ...] | None
    preferences: tuple[Preference, ...]
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """The scheduling constraints of a pod; pods with equal content share one."""

    #: Whole numbers by resource, without zeros, `pods` first.
    requests: Requests
    cpu: int
    memory: int
    #: Thousandths of shared GPUs.
    gpu_milli: int
    #: cpu (thousandths) and memory for scoring: containers without requests count with a default.
    scored_cpu: int
    scored_memory: int
    rules: NodeRules
    host_ports: tuple[HostPort, ...]
    affinity: tuple[PodTerm, ...]
    anti_affinity: tuple[PodTerm, ...]
    preferred: tuple[WeightedTerm, ...]
    spread: tuple[SpreadRule, ...]
    #: Whether its own terms make its placement depend on other pods.
    minds_pods: bool


@dataclass(slots=True, init=False, eq=False)
class PodView:
    """A parsed Pod."""

    key: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    shape: PodShape
    #: The requests of the shape.
    requests: Requests
    #: The node that it is bound to, or ''.
    node_name: str
    #: The indices of its GPUs on the node, if it requested thousandths.
    gpus: tuple[int, ...]
    #: The nominated node, where victims still have to leave, or ''.
    nominated: str
    phase: str
    priority: int
    may_preempt: bool
    #: It has scheduling gates, so it must not be scheduled yet.
    gated: bool
    #: The pods of a gang are placed together; '' if it is in none.
    gang: str
    deleting: bool
    #: It is terminating to make room for a pod of higher priority.
    preempted: bool
    created: Instant
    #: When the kubelet first saw it; None if it has not.
    started: Instant | None
    #: The reason of its condition PodScheduled=False, or ''.
    unscheduled: str
    #: The message of the last failed scheduling attempt, or ''.
    unplaced: str
    scheduler: str

    def __init__(self, obj: Obj, before: "PodView | None" = None) -> None:
        """Parse an object. `before` is the view of another revision of the same pod with equal labels and spec."""
        metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or _NOTHING
        self.labels = metadata.get("labels") or _LABELS_NONE
        if before is None:
            self._read_spec(metadata, spec)
        else:
            self._copy_spec(before)
        self.requests = self.shape.requests
        self.node_name = spec.get("nodeName") or ""
        self.gpus = _gpus(metadata) if self.shape.gpu_milli else ()
        self.gated = bool(spec.get("schedulingGates"))
        self.gang = _gang(metadata, self.namespace, self.labels)
        self.deleting = "deletionTimestamp" in metadata
        self.nominated = status.get("nominatedNodeName") or ""
        self.phase = status.get("phase") or "Pending"
        started = status.get("startTime")
        self.started = times.parse_time(started) if started else None
        self.preempted = self.deleting and _is_preempted(status)
        self.unscheduled, self.unplaced = _unscheduled(status)

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended, and uses no resources of its node."""
        return self.phase in _TERMINAL

    @property
    def awaits_node(self) -> bool:
        """Whether it waits for a scheduler, unless it is gated."""
        return not self.node_name and not self.deleting and self.phase not in _TERMINAL

    @property
    def node_selector(self) -> tuple[tuple[str, str], ...]:
        """The labels that its node must have."""
        return self.shape.rules.node_selector

    @property
    def affinity(self) -> tuple[NodeTerm, ...] | None:
        """Its required node affinity: terms are ORed; None: no restriction."""
        return self.shape.rules.affinity

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """Its tolerations."""
        return self.shape.rules.tolerations

    def _read_spec(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.namespace, self.name = metadata.get("namespace", ""), metadata["name"]
        self.key = f"{self.namespace}/{self.name}"
        self.uid = metadata.get("uid", "")
        self.created = times.parse_time(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0
        self.priority = spec.get("priority") or 0
        self.may_preempt = spec.get("preemptionPolicy") != "Never"
        self.scheduler = spec.get("schedulerName") or "default-scheduler"
        self.shape = _shape_of(spec, self.namespace, self.labels)

    def _copy_spec(self, before: "PodView") -> None:
        self.namespace, self.name, self.key, self.uid = before.namespace, before.name, before.key, before.uid
        self.created, self.priority, self.may_preempt = before.created, before.priority, before.may_preempt
        self.scheduler, self.shape = before.scheduler, before.shape


_shapes: dict[bytes, PodShape] = {}
_rules: dict[bytes, NodeRules] = {}
_views: dict[str, tuple[Obj, PodView]] = {}


def pod_view(obj: Obj) -> PodView:
    """Return the view of a Pod, parsed once per object; the last revision of each is cached."""
    uid = obj["metadata"].get("uid", "")
    known = _views.get(uid)
    if known is not None and known[0] is obj:
        return known[1]
    before = known[1] if known is not None and uid and _asks_the_same(obj, known[0]) else None
    if known is None and len(_views) >= _VIEWS_MAX:
        _views.clear()
    view = PodView(obj, before)
    _views[uid] = obj, view
    return view


def forget_pod_view(uid: str) -> None:
    """Drop the view of a deleted Pod."""
    _views.pop(uid, None)


def _asks_the_same(new: Obj, old: Obj) -> bool:
    """Report whether two revisions share the objects that determine the shape."""
    if new["spec"] is not old["spec"]:
        return False
    labels: object = new["metadata"].get("labels")
    return labels is old["metadata"].get("labels")


def _gang(metadata: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> str:
    """Return the gang of a pod: the pods of its Workload, identified by the uid of their JobSet or Job."""
    workload = (metadata.get("annotations") or _LABELS_NONE).get(well_known.WORKLOAD)
    if not workload:
        return ""
    return labels.get(well_known.JOB_SET_UID) or labels.get(well_known.CONTROLLER_UID) or f"{namespace}/{workload}"


def _gpus(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse the GPU index annotation; empty if it is malformed."""
    parts = (metadata.get("annotations") or _LABELS_NONE).get(well_known.GPU_INDEX, "").split(",")
    return tuple(map(int, parts)) if all(part.isdecimal() and part.isascii() for part in parts) else ()


def _unscheduled(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reason of PodScheduled=False, and its message if the reason is Unschedulable."""
    condition = find_condition(status, "PodScheduled")
    if condition is None or condition["status"] != "False":
        return "", ""
    reason = condition.get("reason") or "Unschedulable"
    return reason, (condition.get("message") or reason) if reason == "Unschedulable" else ""


def _is_preempted(status: Mapping[str, Any]) -> bool:
    condition = find_condition(status, "DisruptionTarget")
    return condition is not None and condition["status"] == "True" and condition["reason"] == "PreemptionByScheduler"


def _shape_of(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodShape:
    """Return the shape of a pod, shared by all pods with equal content."""
    content = _encode(_content(spec, namespace, labels))
    known = _shapes.get(content)
    if known is None:
        if len(_shapes) >= _MEMO_MAX:
            _shapes.clear()
        known = _shapes[content] = _read_shape(spec, namespace, labels)
    return known


def _content(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> list[Any]:
    """Return the fields that determine the shape; of the labels only those named by matchLabelKeys."""
    affinity, spread = spec.get("affinity") or _NOTHING, spec.get("topologySpreadConstraints") or ()
    content = [
        [spec.get(field) for field in ("nodeSelector", "tolerations", "overhead", "resources", "hostNetwork")],
        [[_container_content(c) for c in spec.get(kind) or ()] for kind in ("initContainers", "containers")],
    ]
    if affinity or spread:
        terms = [*_pod_terms(affinity, "podAffinity"), *_pod_terms(affinity, "podAntiAffinity"), *spread]
        named = [labels.get(key) for term in terms for key in _keys_merged(term)]
        content += [[affinity, spread, namespace, named]]
    return content


def _container_content(container: Mapping[str, Any]) -> list[Any]:
    return [container.get("resources"), container.get("ports"), container.get("restartPolicy")]


def _pod_terms(affinity: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """Return all terms of pod affinity or anti-affinity, required and preferred."""
    part = affinity.get(kind) or _NOTHING
    return [
        *(part.get(well_known.REQUIRED) or ()),
        *[p["podAffinityTerm"] for p in part.get(well_known.PREFERRED) or ()],
    ]


def _keys_merged(term: Mapping[str, Any]) -> Iterable[str]:
    return [*(term.get("matchLabelKeys") or ()), *(term.get("mismatchLabelKeys") or ())]


def _read_shape(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodShape:
    template = pod_template(spec)
    affinity = spec.get("affinity") or _NOTHING
    near, far = affinity.get("podAffinity") or _NOTHING, affinity.get("podAntiAffinity") or _NOTHING
    amounts = dict(template.requests)
    scored = dict(pod_template(_with_assumed_requests(spec)).requests)
    anti_affinity = tuple(_pod_term(t, namespace, labels) for t in far.get(well_known.REQUIRED) or ())
    spread = tuple(_spread_rule(c, labels) for c in spec.get("topologySpreadConstraints") or ())
    return PodShape(
        requests=((PODS, 1), *[(resource, amounts[resource]) for resource in sorted(amounts) if amounts[resource]]),
        cpu=amounts.get("cpu", 0),
        memory=amounts.get("memory", 0),
        gpu_milli=amounts.get(well_known.GPU_MILLI, 0),
        scored_cpu=scored.get("cpu", 0),
        scored_memory=scored.get("memory", 0),
        rules=_rules_of(spec, template.node_selector, template.tolerations),
        host_ports=tuple(_host_ports(spec)),
        affinity=tuple(_pod_term(t, namespace, labels) for t in near.get(well_known.REQUIRED) or ()),
        anti_affinity=anti_affinity,
        preferred=(*_weighted(near, 1, namespace, labels), *_weighted(far, -1, namespace, labels)),
        spread=spread,
        minds_pods=bool(near.get(well_known.REQUIRED) or anti_affinity or any(rule.is_hard for rule in spread)),
    )


def _with_assumed_requests(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec with the requests that scoring assumes for containers without any."""
    filled = {
        kind: [_with_assumed(c) for c in spec.get(kind) or ()]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }
    return {**spec, **filled}


def _with_assumed(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources") or _NOTHING
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    requests = {"cpu": _CPU_ASSUMED, "memory": _MEMORY_ASSUMED, **asked}
    return {**container, "resources": {"requests": requests}}


def _rules_of(
    spec: Mapping[str, Any], node_selector: tuple[tuple[str, str], ...], tolerations: tuple[Toleration, ...]
) -> NodeRules:
    node_affinity = (spec.get("affinity") or _NOTHING).get("nodeAffinity") or _NOTHING
    content = _encode([spec.get("nodeSelector"), spec.get("tolerations"), node_affinity])
    known = _rules.get(content)
    if known is None:
        if len(_rules) >= _MEMO_MAX:
            _rules.clear()
        required = node_affinity.get(well_known.REQUIRED)
        known = _rules[content] = NodeRules(
            node_selector=node_selector,
            affinity=tuple(map(_node_term, required.get("nodeSelectorTerms") or ())) if required else None,
            preferences=tuple(
                Preference(p["weight"], _node_term(p.get("preference") or _NOTHING))
                for p in node_affinity.get(well_known.PREFERRED) or ()
            ),
            tolerations=tolerations,
        )
    return known


def _node_term(obj: Mapping[str, Any]) -> NodeTerm:
    return NodeTerm(_requirements(obj.get("matchExpressions") or ()), _requirements(obj.get("matchFields") or ()))


def _requirements(expressions: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    return tuple(Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in expressions)


def _pod_term(obj: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodTerm:
    """Return a term; without namespaces it applies to the pod's own."""
    listed, selected = tuple(obj.get("namespaces") or ()), selector(obj.get("namespaceSelector"))
    if not listed and selected is None:
        listed = (namespace,)
    return PodTerm(obj.get("topologyKey") or "", _merged_selector(obj, labels), listed, selected)


def _merged_selector(obj: Mapping[str, Any], labels: Mapping[str, str]) -> Selector | None:
    """Return the label selector, with the pod's own values of matchLabelKeys and mismatchLabelKeys."""
    own = selector(obj.get("labelSelector"))
    if own is None:
        return None
    equal = [Requirement(k, "In", (labels[k],)) for k in obj.get("matchLabelKeys") or () if k in labels]
    unequal = [Requirement(k, "NotIn", (labels[k],)) for k in obj.get("mismatchLabelKeys") or () if k in labels]
    return Selector((*own.requirements, *equal, *unequal))


def _weighted(part: Mapping[str, Any], sign: int, namespace: str, labels: Mapping[str, str]) -> list[WeightedTerm]:
    return [
        WeightedTerm(sign * p["weight"], _pod_term(p["podAffinityTerm"], namespace, labels))
        for p in part.get(well_known.PREFERRED) or ()
    ]


def _spread_rule(obj: Mapping[str, Any], labels: Mapping[str, str]) -> SpreadRule:
    return SpreadRule(
        topology_key=obj["topologyKey"],
        max_skew=obj["maxSkew"],
        is_hard=obj.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule",
        selector=_merged_selector(obj, labels),
        min_domains=obj.get("minDomains") or 1,
        honors_affinity=obj.get("nodeAffinityPolicy", "Honor") == "Honor",
        honors_taints=obj.get("nodeTaintsPolicy", "Ignore") == "Honor",
    )


def _host_ports(spec: Mapping[str, Any]) -> Iterable[HostPort]:
    """Yield the host ports of containers; on the host network each port is a host port."""
    on_host = bool(spec.get("hostNetwork"))
    restartable = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    for container in (*restartable, *(spec.get("containers") or ())):
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if on_host else 0)
            if number:
                yield HostPort(port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", number)  # noqa: S104


# --- pod lifecycle ---
#
# The lifecycle of a Pod: its status, and changes of the status by components other than its kubelet.
#
# Source: k8s.io/kubernetes pkg/api/v1/pod (conditions) and k8s.io/api core/v1 (phases, DisruptionTarget and its
# reasons).


PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

READY: Final = "Ready"
SCHEDULED: Final = "PodScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"

#: The minimum priority of system-critical pods.
SYSTEM_CRITICAL: Final = 2_000_000_000

#: The time in seconds until eviction if no toleration covers the taint.
_NOT_TOLERATED: Final = 0


class Disruption(NamedTuple):
    """The cause of a disruption: reason and message of the condition DisruptionTarget."""

    reason: str
    message: str


BY_TAINT: Final = Disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
BY_POD_GC: Final = Disruption("DeletionByPodGC", "PodGC: node no longer exists")
BY_EVICTION: Final = Disruption("EvictionByEvictionAPI", "Eviction API: evicting")
BY_KUBELET: Final = Disruption("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")


def phase(pod: Obj) -> str:
    """Return the phase of a pod; Pending if it has none yet."""
    return (pod.get("status") or {}).get("phase") or PENDING


def is_terminal(pod: Obj) -> bool:
    """Report whether a pod has Succeeded or Failed."""
    return phase(pod) in {SUCCEEDED, FAILED}


def is_terminating(pod: Obj) -> bool:
    """Report whether a pod was deleted and still exists."""
    return "deletionTimestamp" in pod["metadata"]


def awaits_deletion(pod: Obj) -> bool:
    """Whether a terminating pod with a grace period has ended: its kubelet then deletes it."""
    return is_terminating(pod) and is_terminal(pod) and bool(pod["metadata"].get("deletionGracePeriodSeconds"))


def is_gone_but_for_finalizers(pod: Obj) -> bool:
    """Report whether only finalizers keep a pod: it has ended, was deleted and has no grace period left."""
    return is_terminal(pod) and is_terminating(pod) and not pod["metadata"].get("deletionGracePeriodSeconds")


def is_ready(pod: Obj) -> bool:
    """Report whether the condition Ready is true."""
    return is_true(pod, READY)


def node_of(pod: Obj) -> str:
    """Return the node that a pod is bound to, or ''."""
    return pod["spec"].get("nodeName") or ""


def priority(pod: Obj) -> int:
    """Return the priority of a pod; zero if it has none."""
    return pod["spec"].get("priority") or 0


def grace_period(pod: Obj) -> int:
    """Return the grace period of a pod in seconds."""
    return node.grace_period(pod["spec"])


def deleted_at(pod: Obj) -> Instant | None:
    """Return the time of the deletion request, one grace period before its deletionTimestamp; None if not deleted."""
    metadata = pod["metadata"]
    until = metadata.get("deletionTimestamp")
    if until is None:
        return None
    grace: int = metadata.get("deletionGracePeriodSeconds") or 0
    return parse_time(until) - grace * SECOND


def scheduled_at(pod: Obj) -> Instant:
    """Return the time when a pod was bound to its node, as far as its status shows."""
    scheduled = find_condition(pod, SCHEDULED)
    if scheduled is not None and scheduled["status"] == "True":
        return parse_time(scheduled["lastTransitionTime"])
    return parse_time((pod.get("status") or {}).get("startTime") or pod["metadata"]["creationTimestamp"])


def driven_out_at(pod: Obj, taints: Sequence[Mapping[str, Any]]) -> Instant | None:
    """Return the time when NoExecute taints of its node evict a pod; None if it tolerates all of them forever.

    The shortest toleration counts, from the first taint or from the time of binding. A time in the past means now.
    Source: pkg/controller/tainteviction.
    """
    seconds: list[int] = []
    tolerations = [(toleration(obj), obj.get("tolerationSeconds")) for obj in pod["spec"].get("tolerations") or ()]
    for obj in taints:
        view = taint(obj)
        used = next((limit for tolerates, limit in tolerations if tolerates.tolerates(view)), _NOT_TOLERATED)
        if used is not None:
            seconds.append(max(0, used))
    if not seconds:
        return None
    added = [parse_time(obj["timeAdded"]) for obj in taints if "timeAdded" in obj]
    return max(min(added, default=0), scheduled_at(pod)) + min(seconds) * SECOND


def with_condition(pod: Obj, kind: str, holds: bool, why: tuple[str, str], now: Instant) -> Obj:
    """Return the pod with this condition, reason and message; the pod itself if nothing changes."""
    status = pod.get("status") or {}
    conditions: list[Mapping[str, Any]] = status.get("conditions") or []
    old = next((c for c in conditions if c["type"] == kind), None)
    new = condition(kind, holds, why, old, now)
    if new == old:
        return pod
    changed = [*conditions, new] if old is None else [new if c is old else c for c in conditions]
    return with_status(pod, {**status, "conditions": changed})


def condition(
    kind: str, holds: bool, why: tuple[str, str], old: Mapping[str, Any] | None, now: Instant
) -> dict[str, Any]:
    """Return a condition of a pod: empty texts are omitted, and the time is that of the last change of its status."""
    status = "True" if holds else "False"
    since = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    new: dict[str, Any] = {"type": kind, "status": status, "lastTransitionTime": since}
    reason, message = why
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    return new


def disrupted(pod: Obj, by: Disruption, now: Instant) -> Obj:
    """Return the pod with the condition DisruptionTarget, which the podFailurePolicy of its Job may ignore."""
    return with_condition(pod, DISRUPTION_TARGET, True, by, now)


def not_ready(pod: Obj, now: Instant) -> Obj:
    """Return the pod with Ready set to False, as for an unreachable node; reason and message stay unchanged."""
    ready = find_condition(pod, READY)
    if ready is None:
        return pod
    return with_condition(pod, READY, False, (ready.get("reason", ""), ready.get("message", "")), now)


def failed(pod: Obj, by: Disruption | None, now: Instant) -> Obj:
    """Return the pod marked as failed by another component than its kubelet; an ended pod stays unchanged."""
    if is_terminal(pod):
        return pod
    marked = pod if by is None else disrupted(pod, by, now)
    return with_status(marked, {**(marked.get("status") or {}), "phase": FAILED})


# --- checkpoints ---
#
# Simulated checkpoints: the work that stopped pods lose, and the work that their successors resume with.
#
# A job saves its work periodically if its annotation `batchyard.dev/checkpoint-every` is set. The saved work is stored
# by place on the Job, or on its JobSet. A pod that resumes saved work has the condition Resumed.


#: The condition of a pod that resumes the work of an earlier pod, or its own after its containers failed.
RESUMED: Final = "batchyard.dev/Resumed"
_REASON: Final = "FromCheckpoint"
_BETWEEN: Final = " of work were done at "
_CHECKPOINTS_NOTHING: Final[Mapping[str, str]] = {}


class Resumption(NamedTuple):
    """The work that a pod resumes with, and its place."""

    place: str
    work: Duration


def checkpoint_interval(objects: Iterable[Obj | None]) -> Duration | None:
    """Return the checkpoint interval from the first object that has one: the pod, its Job, its JobSet."""
    intervals = (duration(obj, well_known.CHECKPOINT_EVERY) for obj in objects if obj is not None)
    return next((interval for interval in intervals if interval), None)


def running_since(pod: Obj) -> Instant | None:
    """Return the time since when the containers of a pod run; None if they do not."""
    if phase(pod) != RUNNING:
        return None
    for container in pod["status"].get("containerStatuses") or ():
        started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        if started is not None:
            return parse_time(started)
    return None


def lost_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the work that a running pod would lose: the time since its last checkpoint, or since its start."""
    done = 0 if started is None else max(0, now - started)
    return done % interval if interval else done


def kept_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the work that a running pod would keep: the time up to its last checkpoint."""
    done = 0 if started is None else max(0, now - started)
    return done - lost_work(started, interval, now)


# --- places ---


def is_interchangeable(pod: Obj) -> bool:
    """Report whether any other pod of the Job could do its work: it has no completion index."""
    return annotation(pod, well_known.COMPLETION_INDEX) is None


def place_of(pod: Obj) -> str:
    """Return the place of a pod: that of a predecessor, its completion index, or its name.

    In a JobSet, whose Jobs are recreated, the place includes the replicated job and the index of the Job.
    """
    resumed = resumption(pod)
    if resumed is not None:
        return resumed.place
    own = annotation(pod, well_known.COMPLETION_INDEX) or pod["metadata"]["name"]
    replicated, job = label(pod, well_known.REPLICATED_JOB_NAME), label(pod, well_known.JOB_INDEX)
    return own if replicated is None or job is None else f"{replicated}/{job}/{own}"


def resumption(pod: Obj) -> Resumption | None:
    """Return the work that a pod resumes with; None if it starts from the beginning."""
    found = find_condition(pod, RESUMED)
    if found is None:
        return None
    work, _, place = found["message"].partition(_BETWEEN)
    return Resumption(place, parse_duration(work))


def resumed_work(pod: Obj) -> Duration:
    """Return the work that was done before the containers of a pod started."""
    resumed = resumption(pod)
    return 0 if resumed is None else resumed.work


def with_resumption(pod: Obj, resumed: Resumption | None, now: Instant) -> Obj:
    """Return the pod with this resumption, or without one; the pod itself if nothing changes."""
    if resumption(pod) == resumed:
        return pod
    conditions = [c for c in pod["status"].get("conditions") or () if c["type"] != RESUMED]
    if resumed is not None and resumed.work:
        why = (_REASON, f"{duration_text(resumed.work)}{_BETWEEN}{resumed.place}")
        conditions.insert(0, condition(RESUMED, True, why, None, now))
    return with_status(pod, {**pod["status"], "conditions": conditions})


# --- saved work ---


def saved_work(job: Obj, place: str) -> Duration:
    """Return the work that a Job or JobSet has saved for a place."""
    return _read(saved_places(job).get(place))


def most_saved(job: Obj, places: Iterable[str]) -> Resumption | None:
    """Return the most work saved for any of these places; None if there is none."""
    saved = saved_places(job)
    found = [Resumption(place, work) for place in places if (work := _read(saved.get(place)))]
    return min(found, key=lambda each: (-each.work, each.place), default=None)


def saved_places(job: Obj) -> Mapping[str, str]:
    """Return the saved work of a Job or JobSet by place, from its annotation."""
    text = annotation(job, well_known.WORK_DONE)
    return _CHECKPOINTS_NOTHING if text is None else _decoded(text)


def with_saved_work(job: Obj, place: str, work: Duration) -> Obj:
    """Return the Job or JobSet with this work saved for a place; itself if nothing changes."""
    saved = saved_places(job)
    if _read(saved.get(place)) == work:
        return job
    kept = dict(saved)
    if work:
        kept[place] = duration_text(work)
    else:
        del kept[place]
    annotations = dict(job["metadata"].get("annotations") or ())
    if kept:
        annotations[well_known.WORK_DONE] = msgspec.json.encode(kept).decode()
    else:
        del annotations[well_known.WORK_DONE]
    return with_metadata(job, annotations=annotations)


@lru_cache(maxsize=64)
def _decoded(text: str) -> Mapping[str, str]:
    """Parse the annotation; cached, because many pods of a job need it at the same time."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        return _CHECKPOINTS_NOTHING  # another client wrote it


def _read(text: str | None) -> Duration:
    try:
        return 0 if text is None else parse_duration(text)
    except ValueError:
        return 0
