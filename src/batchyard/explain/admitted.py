"""Explains a Workload that has quota or is finished: its checks, pods and nodes, and possible preemptors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api.meta import Obj, find_condition, is_true
from batchyard.api.times import format_time
from batchyard.api.views import pods
from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import PodView, pod_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.autoscaler.controller import Autoscaler
from batchyard.autoscaler.expander import FULL, IN_BACKOFF, Backoff
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.base.instant import Instant
from batchyard.explain.blockers import NodeOccupant, occupants_of, selected_nodes
from batchyard.explain.document import Binding, ExplanationReader, Part, pods_of, slim
from batchyard.explain.proposals import END, NODES, SIZE, Patch, Proposal, least_between, merge_patch
from batchyard.interfaces.client import Reader
from batchyard.placement.controller import PlacementController
from batchyard.scheduling.quota import is_within_nominal
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.lifecycle import READY, checks_of

# --- capacity ---
#
# Node capacity: what the autoscaler reports about pods without a node, and what it waits for.


STOCK_OUT: Final = "stockOut"
CLOUD_QUOTA: Final = "cloudQuota"
LIMITS: Final = "autoscalerLimits"
BOOTING: Final = "booting"
CAPACITY: Final = "nodeCapacity"
TOPOLOGY: Final = "topology"
TAINT: Final = "taint"
AFFINITY: Final = "affinity"
#: Parts of kube-scheduler's messages: a node that fails one of the last filters has room.
_APART: Final = (
    "without room for the whole Job",
    "anti-affinity rules",
    "pod affinity rules",
    "topology spread constraints",
)
_TAKEN: Final = ("Insufficient", "Too many pods", FULL)
_TRIGGERED: Final = "pod triggered scale-up"
_LIMITED: Final = "exceeded quota"
_QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"
_SHOWN_MAX: Final = 5


def limit_among_nodes(scheduler: str, autoscaler: str, *, is_selected: bool) -> str:
    """Return the limit behind both messages about a pod. `is_selected`: a node has the labels that it selects."""
    if any(words in scheduler for words in _APART):
        return TOPOLOGY
    if any(words in text for words in _TAKEN for text in (scheduler, autoscaler)):
        return CAPACITY
    if "untolerated taint" in scheduler and is_selected:
        return TAINT
    return AFFINITY if "node affinity/selector" in scheduler else CAPACITY


class NodeCapacityView:
    """The autoscaler's state and the simulated placement, for questions about pods without a node."""

    def __init__(self, index: ScalingIndex, autoscaler: Autoscaler, placement: PlacementController) -> None:
        self._index = index
        self._autoscaler = autoscaler
        self.has_room_for = placement.has_room_for

    def groups(self) -> Sequence[NodeGroup]:
        """Return one node group of each pool."""
        return [groups[0] for groups in self._index.groups.values() if groups]

    def zones_of(self, pool: str) -> int:
        """Return the number of zones of a pool."""
        return len(self._index.groups.get(pool, ()))

    def last_message_for(self, pod: str) -> str:
        """Return the autoscaler's last message about a pod, given its uid; '' if it has none."""
        return self._autoscaler.last_message_for(pod)

    def limit_of(self, message: str, now: Instant) -> tuple[str, str]:
        """Return the limit that an autoscaler message refers to, and the pool; '' if the pool is not known."""
        if message.startswith(_TRIGGERED):
            return BOOTING, next((machine.group.pool for machine in self._index.machines.coming.values()), "")
        if IN_BACKOFF in message:
            backoffs = self._backoffs(now)
            codes = {each.code for _, each in backoffs}
            pool = backoffs[0][0].partition("/")[0] if backoffs else ""
            return (CLOUD_QUOTA if codes == {_QUOTA_EXCEEDED} else STOCK_OUT), pool
        return (LIMITS if _LIMITED in message and FULL not in message else CAPACITY), ""

    def waits_for(self, now: Instant) -> list[str]:
        """Return what the autoscaler waits for: machines that boot, and node groups in backoff."""
        coming: dict[str, list[Instant]] = {}
        for machine in self._index.machines.coming.values():
            coming.setdefault(f"pool {machine.group.pool} in {machine.group.zone}", []).append(machine.created)
        texts = [
            f"{len(born)} machine{'s' * (len(born) > 1)} of {where} requested, the first at {format_time(min(born))}"
            for where, born in sorted(coming.items())
        ]
        texts += [
            f"pool {where}: {each.code}; retried after {format_time(each.until)}" for where, each in self._backoffs(now)
        ]
        return texts[:_SHOWN_MAX]

    def _backoffs(self, now: Instant) -> Sequence[tuple[str, Backoff]]:
        """Return the current backoffs. If none is current, return the expired ones: they were not retried yet."""
        every = sorted(self._index.backoffs.items())
        return [(where, each) for where, each in every if each.until > now] or every


# --- node changes ---
#
# Changes that would give nodes to pods without one: more machines, fewer pods, or ending others. Each is simulated.


_ENDED_MAX: Final = 4
_PLAIN_LOOKED_AT: Final = 16


def node_changes(
    pods: Sequence[PodView], occupants: Sequence[NodeOccupant], capacity: NodeCapacityView, asker: ExplanationReader
) -> Iterator[Proposal]:
    """Yield all proposals. `pods` are those without a node."""
    yield from _more_machines(pods, capacity)
    yield from _fewer_pods(pods, capacity)
    yield from _ends(pods, occupants, capacity, asker)


def _more_machines(pods: Sequence[PodView], capacity: NodeCapacityView) -> Iterator[Proposal]:
    """Propose the smallest number of additional machines of one pool that gives all pods a node."""
    for group in capacity.groups():
        if group.hosts > 1 or not capacity.has_room_for(pods[:1], with_nodes=_hypothetical_nodes(group, 1)):
            continue
        count = _least(partial(_would_do, pods, capacity, group), len(pods))
        if count:
            text = f"{count} more machine{'s' * (count > 1)} of pool {group.name.pool} ({group.machine.name})"
            yield Proposal(NODES, text, _grown(group, count, capacity))


def _would_do(pods: Sequence[PodView], capacity: NodeCapacityView, group: NodeGroup, count: int) -> bool:
    return capacity.has_room_for(pods, with_nodes=_hypothetical_nodes(group, count))


def _grown(group: NodeGroup, count: int, capacity: NodeCapacityView) -> Sequence[Patch]:
    """Return the patches that grow a pool by `count` machines; none if it spans several zones."""
    name, spec = group.name.pool, group.pool["spec"]
    if group.is_autoscaled:
        field = "totalMax" if "totalMax" in (spec.get("autoscaling") or {}) else "max"
        most = group.total.maximum if field == "totalMax" else group.size.maximum
        fields: dict[str, Any] = {"autoscaling": {field: most + count}}
    elif capacity.zones_of(name) == 1:
        fields = {"nodeCount": int(spec.get("nodeCount", 0)) + count}
    else:
        return ()
    return (merge_patch("NodePool", name, {"spec": fields}),)


def _fewer_pods(pods: Sequence[PodView], capacity: NodeCapacityView) -> Iterator[Proposal]:
    """Propose the number of pods that would get nodes together."""
    count = _least(lambda fewer: capacity.has_room_for(pods[fewer:]), len(pods) - 1)
    if count:
        yield Proposal(SIZE, f"with {count} pods fewer the other {len(pods) - count} would have nodes", ())


def _ends(
    pods: Sequence[PodView], occupants: Sequence[NodeOccupant], capacity: NodeCapacityView, asker: ExplanationReader
) -> Iterator[Proposal]:
    """Propose the Workloads to end: a minimal set, chosen from the largest."""

    def will_do(chosen: Sequence[NodeOccupant]) -> bool:
        return capacity.has_room_for(pods, without=[uid for each in chosen for uid in each.pods])

    chosen: list[NodeOccupant] = []
    for occupant in [each for each in occupants[:_PLAIN_LOOKED_AT] if each.key][:_ENDED_MAX]:
        chosen.append(occupant)
        if will_do(chosen):
            break
    else:
        return
    for occupant in list(chosen):
        spared = [each for each in chosen if each is not occupant]
        if spared and will_do(spared):
            chosen = spared
    names = [asker.name_of(each.key) for each in chosen]
    keys = [each.key.partition("/") for each in chosen]
    patches = [merge_patch("Workload", name, {"spec": {"active": False}}, namespace) for namespace, _, name in keys]
    is_visible = names == [each.key for each in chosen]
    yield Proposal(END, f"end or suspend {', '.join(dict.fromkeys(names))}", patches if is_visible else ())


def _hypothetical_nodes(group: NodeGroup, count: int) -> list[NodeView]:
    return [group.node(f"{group.id}-imagined-{number}") for number in range(count)]


def _least(will_do: Callable[[int], bool], most: int) -> int:
    """Return the least number from 1 for which `will_do` holds; 0 if it does not hold for `most`."""
    if most < 1 or not will_do(most):
        return 0
    return least_between(will_do, 1, most)


QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
RUNNING: Final = "Running"
EVICTED: Final = "Evicted"
FINISHED: Final = "Finished"
CHECK: Final = "admissionCheck"
STARTING: Final = "starting"


class AdmittedExplainer:
    """Explains Workloads with a quota reservation, from the scheduler cache and the objects."""

    def __init__(self, index: SchedulerCache, reader: Reader, capacity: NodeCapacityView | None) -> None:
        self._index = index
        self._reader = reader
        self._capacity = capacity

    def explain(self, workload: Obj, now: Instant, asker: ExplanationReader) -> Part:
        """Return the parts of the document."""
        admission = (workload.get("status") or {}).get("admission") or {}
        part: Part = slim(clusterQueue=admission.get("clusterQueue", ""), admission=_assigned(admission))
        view = workload_view(workload)
        part["priority"] = view.priority
        evicted, admitted = find_condition(workload, "Evicted"), find_condition(workload, "Admitted")
        if evicted is not None and evicted["status"] == "True":
            summary = f"it is being evicted ({evicted['reason']}): {evicted['message']}"
            return {**part, "state": EVICTED, "summary": summary, "facts": {"since": evicted["lastTransitionTime"]}}
        if admitted is None or admitted["status"] != "True":
            return {**part, "state": QUOTA_RESERVED, **self._checked(workload)}
        part["facts"] = slim(since=admitted["lastTransitionTime"], preemptible=self._preemptible(view))
        return {**part, **self._placed(workload, admitted, now, asker)}

    # --- admission checks ---

    def _checked(self, workload: Obj) -> Part:
        checks = [slim(name=c["name"], state=c["state"], message=c.get("message", "")) for c in checks_of(workload)]
        requests = [
            slim(kind=each["kind"], name=_name(each), told=_conditions_text(each)) for each in self._requests(workload)
        ]
        part = slim(checks=checks, requests=requests)
        waiting = [check for check in checks_of(workload) if check["state"] != READY]
        if not waiting:
            return {**part, "summary": "it has quota, and is admitted next"}
        first = waiting[0]
        detail = f": {first['message']}" if first.get("message") else ""
        text = f"it has quota, and waits for AdmissionCheck {first['name']} ({first['state']}){detail}"
        return {**part, "summary": text, "binding": Binding(CHECK, text, "AdmissionCheck", first["name"]).document()}

    def _requests(self, workload: Obj) -> list[Obj]:
        metadata = workload["metadata"]
        owned = self._reader.owned_by(metadata.get("uid", ""), metadata.get("namespace", ""))
        return [each for each in owned if each["kind"] == "ProvisioningRequest"]

    # --- pods and nodes ---

    def _placed(self, workload: Obj, admitted: Mapping[str, Any], now: Instant, asker: ExplanationReader) -> Part:
        found = pods_of(workload, self._reader)
        since = admitted["lastTransitionTime"]
        if not found:
            if is_true(workload, "PodsReady") or not _has_owner(workload):
                return {"state": RUNNING, "summary": f"it runs since {since}"}
            return {"state": ADMITTED, "summary": f"admitted at {since}; its pods are not created yet, or have ended"}
        if self._capacity is not None and not all(map(pods.node_of, found)):
            return self._without_nodes(workload, found, now, asker)
        starting = [pod for pod in found if not pods.is_ready(pod)]
        nodes = sorted({node: None for pod in found if (node := pods.node_of(pod))})
        where = f" on {_some(nodes)}" if nodes else ""
        if starting:
            reason = _container_text(starting[0]) or "its containers start"
            text = f"{len(starting)} of {len(found)} pods are not ready{where}: {reason}"
            binding = Binding(STARTING, text, "Pod", _name(starting[0]))
            return {"state": ADMITTED, "summary": text, "binding": binding.document()}
        wanted = sum(holding.pods for holding in workload_view(workload).holdings)
        missing = f" of {wanted}" if wanted > len(found) else ""
        return {"state": RUNNING, "summary": f"it runs since {since}: {len(found)}{missing} pods{where}"}

    def _without_nodes(self, workload: Obj, found: Sequence[Obj], now: Instant, asker: ExplanationReader) -> Part:
        unplaced = [pod for pod in found if not pods.node_of(pod)]
        scheduler, autoscaler = _counted(map(_scheduler_text, unplaced)), _counted(map(self._autoscaler_text, unplaced))
        word = next(iter(autoscaler), "")
        assert self._capacity is not None, "called only if node capacity is known"
        waits_for, (limit, pool) = self._capacity.waits_for(now), self._capacity.limit_of(word, now)
        why = next(iter(scheduler), "not processed by the scheduler yet")
        if limit == CAPACITY:
            is_selected = bool(selected_nodes(pod_view(unplaced[0]), self._reader))
            limit = limit_among_nodes(why, word, is_selected=is_selected)
        text = f"admitted, but {len(unplaced)} of {len(found)} pods have no node: {why}"
        texts = [f"scheduler, {count} pods: {each}" for each, count in scheduler.items()]
        texts += [f"autoscaler, {count} pods: {each}" for each, count in autoscaler.items()]
        texts += [f"autoscaler waits for: {each}" for each in waits_for]
        nodes = slim(unplaced=len(unplaced), pods=len(found), text=texts, waitsFor=waits_for)
        flavor = _flavor_of(workload)
        kind, where = ("NodePool", pool) if pool else ("ResourceFlavor", flavor)
        binding = Binding(limit, word or why, kind, where, flavor)
        result = {"state": ADMITTED, "summary": text, "binding": binding.document(), "nodes": nodes}
        holders = occupants_of(workload, unplaced, self._index.snapshot, self._reader)
        shown = [each._replace(flavor=flavor).document(asker) for each in holders[:_SHOWN_MAX]]
        result |= slim(holders=shown, holdersMore=max(0, len(holders) - _SHOWN_MAX) or None)
        if limit in {CAPACITY, LIMITS, TOPOLOGY}:
            asked = node_changes([pod_view(each) for each in unplaced], holders, self._capacity, asker)
            result |= slim(changes=[each.document() for each in asked])
        return result

    def _autoscaler_text(self, pod: Obj) -> str:
        return "" if self._capacity is None else self._capacity.last_message_for(pod["metadata"].get("uid", ""))

    # --- who could preempt it ---

    def _preemptible(self, view: WorkloadView) -> str:
        """Describe in one line which Workloads could preempt it."""
        held = self._index.snapshot.holder(view.key)
        if held is None:
            return ""
        queue = held.queue
        own = queue.view.preemption.within_cluster_queue
        parts = []
        if own != "Never":
            above = f"priority above {view.priority}" + (" or an older one of the same" if "Equal" in own else "")
            parts.append(f"in {queue.name} by {above}")
        if queue.node.parent is not None:
            frs = [fr for fr, _ in held.usage]
            borrows = not is_within_nominal(queue.node, frs)
            others = [
                each.name
                for each in self._index.snapshot.queues_below(queue.node.path[0])
                if each is not queue and each.view.preemption.reclaim_within_cohort != "Never"
            ]
            if borrows and others:
                parts.append(f"by {', '.join(others[:_SHOWN_MAX])} for quota that {queue.name} borrows")
        return "; ".join(parts) or "by none at present"


def ended(workload: Obj) -> Part:
    """Explain a finished Workload."""
    finished = find_condition(workload, "Finished")
    assert finished is not None
    summary = f"it finished at {finished['lastTransitionTime']} ({finished['reason']}): {finished.get('message', '')}"
    return {"state": FINISHED, "summary": summary.rstrip(": ")}


def _assigned(admission: Mapping[str, Any]) -> list[Part]:
    return [
        slim(name=each["name"], count=each.get("count"), flavors=each.get("flavors"), uses=each.get("resourceUsage"))
        for each in admission.get("podSetAssignments") or ()
    ]


def _conditions_text(request: Obj) -> str:
    """Return the conditions of a ProvisioningRequest in one line."""
    conditions = (request.get("status") or {}).get("conditions") or ()
    texts = [f"{each['type']}={each['status']} {each.get('message', '')}".strip() for each in conditions]
    return "; ".join(texts) or "not accepted yet"


def _container_text(pod: Obj) -> str:
    """Return the reason why a container is waiting or terminated."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        state = status.get("state") or {}
        for kind in ("waiting", "terminated"):
            if kind in state:
                details = [state[kind][field] for field in ("reason", "message") if state[kind].get(field)]
                return f"container {status['name']} {kind}: {': '.join(details)}" if details else ""
    return ""


def pod_part(pod: Obj, capacity: NodeCapacityView | None) -> Part:
    """Describe a pod: its phase, node and scheduling gates, and why it does not run."""
    message = "" if capacity is None else capacity.last_message_for(pod["metadata"].get("uid", ""))
    return slim(
        phase=(pod.get("status") or {}).get("phase", "Pending"),
        node=pods.node_of(pod),
        gates=", ".join(each["name"] for each in (pod.get("spec") or {}).get("schedulingGates") or ()),
        scheduler=_scheduler_text(pod),
        autoscaler=message,
        containers=_container_text(pod),
    )


def _scheduler_text(pod: Obj) -> str:
    """Return kube-scheduler's message about an unscheduled pod."""
    scheduled = find_condition(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled is not None and scheduled["status"] != "True" else ""


def _counted(texts: Iterable[str]) -> dict[str, int]:
    """Count the nonempty texts, most frequent first."""
    counts: dict[str, int] = {}
    for text in filter(None, texts):
        counts[text] = counts.get(text, 0) + 1
    return dict(sorted(counts.items(), key=lambda each: -each[1]))


def _some(names: Sequence[str]) -> str:
    """List the first few names and the number of the others."""
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"{', '.join(names[:_SHOWN_MAX])}{more}"


def _flavor_of(workload: Obj) -> str:
    """Return the flavor assigned to the first pod set."""
    assigned = _assigned((workload.get("status") or {}).get("admission") or {})
    return next((str(flavor) for each in assigned for flavor in (each.get("flavors") or {}).values()), "")


def _has_owner(workload: Obj) -> bool:
    return bool(workload["metadata"].get("ownerReferences"))


def _name(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name
