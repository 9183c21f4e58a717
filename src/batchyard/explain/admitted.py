"""Explains finished Workloads and those that hold quota: admission checks, pods without a node, possible preemptors."""

from bisect import bisect_left
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
from batchyard.explain.document import BindingLimit, DocumentPart, ExplanationUser, nonempty_fields, pods_of
from batchyard.explain.proposals import END, NODES, SIZE, merge_patch
from batchyard.explain.searches import Patch, Proposal
from batchyard.interfaces.client import Reader
from batchyard.placement.controller import PlacementController
from batchyard.scheduling.quota import is_within_nominal
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.lifecycle import READY, checks_of

# Node capacity: the autoscaler's messages about pods without a node, and the machines and retries that it waits for.


STOCK_OUT: Final = "stockOut"
CLOUD_QUOTA: Final = "cloudQuota"
AUTOSCALER_LIMITS: Final = "autoscalerLimits"
BOOTING: Final = "booting"
NODE_CAPACITY: Final = "nodeCapacity"
TOPOLOGY: Final = "topology"
TAINT: Final = "taint"
AFFINITY: Final = "affinity"
#: Parts of kube-scheduler's messages from the last filters: the node has enough free resources for the pod.
_FREE_NODE_MESSAGES: Final = (
    "without room for the whole Job",
    "anti-affinity rules",
    "pod affinity rules",
    "topology spread constraints",
)
_FULL_NODE_MESSAGES: Final = ("Insufficient", "Too many pods", FULL)
_SCALE_UP_TRIGGERED: Final = "pod triggered scale-up"
_QUOTA_EXCEEDED_MESSAGE: Final = "exceeded quota"
_QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"
_SHOWN_MAX: Final = 5


def limit_among_nodes(scheduler_text: str, autoscaler_text: str, *, is_selected: bool) -> str:
    """Return why a pod has no node (such as TAINT), read from the messages of kube-scheduler and the autoscaler.

    `is_selected` says whether at least one node matches the pod's node selector.
    """
    if any(phrase in scheduler_text for phrase in _FREE_NODE_MESSAGES):
        return TOPOLOGY
    if any(phrase in text for phrase in _FULL_NODE_MESSAGES for text in (scheduler_text, autoscaler_text)):
        return NODE_CAPACITY
    if "untolerated taint" in scheduler_text and is_selected:
        return TAINT
    return AFFINITY if "node affinity/selector" in scheduler_text else NODE_CAPACITY


class NodeCapacityView:
    """The cluster autoscaler's state and a simulation of pod placement, to explain why pods have no node."""

    def __init__(self, scaling_index: ScalingIndex, autoscaler: Autoscaler, placement: PlacementController) -> None:
        self._scaling_index = scaling_index
        self._autoscaler = autoscaler
        self.has_room_for = placement.has_room_for

    def groups(self) -> Sequence[NodeGroup]:
        """Return one node group for each NodePool, because the groups of a pool differ only by zone."""
        return [groups[0] for groups in self._scaling_index.groups.values() if groups]

    def zones_of(self, pool: str) -> int:
        """Return the number of zones in which a NodePool has node groups."""
        return len(self._scaling_index.groups.get(pool, ()))

    def last_message_for(self, pod: str) -> str:
        """Return the cluster autoscaler's last message about the pod with the given uid; '' if there is none."""
        return self._autoscaler.last_message_for(pod)

    def limit_of(self, message: str, now: Instant) -> tuple[str, str]:
        """Return the cause in an autoscaler message (such as STOCK_OUT) and the NodePool's name; '' if unknown."""
        if message.startswith(_SCALE_UP_TRIGGERED):
            booting_machines = self._scaling_index.machines.upcoming_machines.values()
            return BOOTING, next((machine.group.pool for machine in booting_machines), "")
        if IN_BACKOFF in message:
            backoffs = self._unretried_backoffs(now)
            backoff_codes = {each.code for _, each in backoffs}
            pool = backoffs[0][0].partition("/")[0] if backoffs else ""
            return (CLOUD_QUOTA if backoff_codes == {_QUOTA_EXCEEDED} else STOCK_OUT), pool
        return (AUTOSCALER_LIMITS if _QUOTA_EXCEEDED_MESSAGE in message and FULL not in message else NODE_CAPACITY), ""

    def waits_for(self, now: Instant) -> list[str]:
        """Return texts on booting machines and node groups in backoff, for which the autoscaler waits."""
        created_by_zone: dict[str, list[Instant]] = {}
        for machine in self._scaling_index.machines.upcoming_machines.values():
            created_by_zone.setdefault(f"pool {machine.group.pool} in {machine.group.zone}", []).append(
                machine.created_at
            )
        awaited_texts = [
            f"{len(times)} machine{'s' * (len(times) > 1)} of {zone} requested, the first at {format_time(min(times))}"
            for zone, times in sorted(created_by_zone.items())
        ]
        for location, each in self._unretried_backoffs(now):
            awaited_texts.append(f"pool {location}: {each.code}; retried after {format_time(each.end)}")
        return awaited_texts[:_SHOWN_MAX]

    def _unretried_backoffs(self, now: Instant) -> Sequence[tuple[str, Backoff]]:
        """Return the running backoffs of node groups; if none runs, the ended ones that were not retried yet."""
        all_backoffs = sorted(self._scaling_index.backoffs.items())
        return [(location, each) for location, each in all_backoffs if each.end > now] or all_backoffs


# Changes that give nodes to pods without one: more machines, fewer pods, or ending other Workloads. All are simulated.


_ENDED_WORKLOADS_MAX: Final = 4
_OCCUPANTS_CHECKED_MAX: Final = 16


def propose_node_changes(
    pods: Sequence[PodView], occupants: Sequence[NodeOccupant], node_capacity: NodeCapacityView, user: ExplanationUser
) -> Iterator[Proposal]:
    """Yield changes that would give nodes to all of `pods`: more machines, fewer pods, or ending other Workloads."""
    yield from _machine_proposals(pods, node_capacity)
    yield from _pod_count_proposals(pods, node_capacity)
    yield from _workload_end_proposals(pods, occupants, node_capacity, user)


def _machine_proposals(pods: Sequence[PodView], node_capacity: NodeCapacityView) -> Iterator[Proposal]:
    """Yield for each NodePool the smallest number of additional machines that gives all pods a node."""
    for group in node_capacity.groups():
        if group.hosts > 1 or not node_capacity.has_room_for(pods[:1], with_nodes=_hypothetical_nodes(group, 1)):
            continue
        count = _minimum_number(partial(_is_enough, pods, node_capacity, group), len(pods))
        if count:
            text = f"{count} more machine{'s' * (count > 1)} of pool {group.name.pool} ({group.machine.name})"
            yield Proposal(NODES, text, _growth_patches(group, count, node_capacity))


def _is_enough(pods: Sequence[PodView], node_capacity: NodeCapacityView, group: NodeGroup, node_count: int) -> bool:
    return node_capacity.has_room_for(pods, with_nodes=_hypothetical_nodes(group, node_count))


def _growth_patches(group: NodeGroup, node_count: int, node_capacity: NodeCapacityView) -> Sequence[Patch]:
    """Return the patches that let a NodePool grow by `node_count` machines; () for a fixed pool in several zones."""
    name, spec = group.name.pool, group.pool["spec"]
    if group.is_autoscaled:
        limit_field = "totalMax" if "totalMax" in (spec.get("autoscaling") or {}) else "max"
        current_maximum = group.total.maximum if limit_field == "totalMax" else group.size.maximum
        spec_fields: dict[str, Any] = {"autoscaling": {limit_field: current_maximum + node_count}}
    elif node_capacity.zones_of(name) == 1:
        spec_fields = {"nodeCount": int(spec.get("nodeCount", 0)) + node_count}
    else:
        return ()
    return (merge_patch("NodePool", name, {"spec": spec_fields}),)


def _pod_count_proposals(pods: Sequence[PodView], node_capacity: NodeCapacityView) -> Iterator[Proposal]:
    """Yield how many pods must be left out so that all the other pods get nodes."""
    count = _minimum_number(lambda omitted_count: node_capacity.has_room_for(pods[omitted_count:]), len(pods) - 1)
    if count:
        yield Proposal(SIZE, f"with {count} pods fewer, the other {len(pods) - count} pods would have nodes", ())


def _workload_end_proposals(
    pods: Sequence[PodView], occupants: Sequence[NodeOccupant], capacity: NodeCapacityView, user: ExplanationUser
) -> Iterator[Proposal]:
    """Yield a minimal set of Workloads whose end makes room for all pods, chosen from the first (largest) occupants."""

    def is_satisfied(selected_occupants: Sequence[NodeOccupant]) -> bool:
        return capacity.has_room_for(pods, without_uids=[uid for each in selected_occupants for uid in each.pod_uids])

    selected_occupants: list[NodeOccupant] = []
    for occupant in [each for each in occupants[:_OCCUPANTS_CHECKED_MAX] if each.key][:_ENDED_WORKLOADS_MAX]:
        selected_occupants.append(occupant)
        if is_satisfied(selected_occupants):
            break
    else:
        return
    for occupant in list(selected_occupants):
        remaining_occupants = [each for each in selected_occupants if each is not occupant]
        if remaining_occupants and is_satisfied(remaining_occupants):
            selected_occupants = remaining_occupants
    names = [user.name_of(each.key) for each in selected_occupants]
    keys = [each.key.partition("/") for each in selected_occupants]
    patches = [merge_patch("Workload", name, {"spec": {"active": False}}, namespace) for namespace, _, name in keys]
    is_visible = names == [each.key for each in selected_occupants]
    yield Proposal(END, f"end or suspend {', '.join(dict.fromkeys(names))}", patches if is_visible else ())


def _hypothetical_nodes(group: NodeGroup, node_count: int) -> list[NodeView]:
    return [group.node(f"{group.id}-imagined-{number}") for number in range(node_count)]


def _minimum_number(is_satisfied: Callable[[int], bool], highest_number: int) -> int:
    """Return the smallest number from 1 to `highest_number` that satisfies a monotonic predicate, or else 0."""
    if highest_number < 1 or not is_satisfied(highest_number):
        return 0
    return 1 + bisect_left(range(1, highest_number), True, key=is_satisfied)


QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
RUNNING: Final = "Running"
EVICTED: Final = "Evicted"
FINISHED: Final = "Finished"
ADMISSION_CHECK: Final = "admissionCheck"
STARTING: Final = "starting"


class AdmittedExplainer:
    """Explains Workloads that hold quota: which admission check, pod or node they wait for, or where they run."""

    def __init__(self, scheduler_cache: SchedulerCache, reader: Reader, node_capacity: NodeCapacityView | None) -> None:
        self._scheduler_cache = scheduler_cache
        self._reader = reader
        self._capacity = node_capacity

    def explain(self, workload: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        """Return the Explanation document's fields of a Workload that holds quota: state, summary, limit, facts."""
        admission = (workload.get("status") or {}).get("admission") or {}
        queue = admission.get("clusterQueue", "")
        part: DocumentPart = nonempty_fields(clusterQueue=queue, admission=_assignment_parts(admission))
        view = workload_view(workload)
        part["priority"] = view.priority
        eviction, admitted_condition = find_condition(workload, "Evicted"), find_condition(workload, "Admitted")
        if eviction is not None and eviction["status"] == "True":
            summary = f"it is being evicted ({eviction['reason']}): {eviction['message']}"
            return {**part, "state": EVICTED, "summary": summary, "facts": {"since": eviction["lastTransitionTime"]}}
        if admitted_condition is None or admitted_condition["status"] != "True":
            return {**part, "state": QUOTA_RESERVED, **self._explain_checks(workload)}
        preemptors = self._describe_possible_preemptors(view)
        part["facts"] = nonempty_fields(since=admitted_condition["lastTransitionTime"], preemptible=preemptors)
        return {**part, **self._explain_pods(workload, admitted_condition, now, user)}

    # --- admission checks ---

    def _explain_checks(self, workload: Obj) -> DocumentPart:
        check_states = checks_of(workload)
        checks = [nonempty_fields(name=c["name"], state=c["state"], message=c.get("message", "")) for c in check_states]
        request_parts = [
            nonempty_fields(kind=each["kind"], name=_name_of(each), told=_conditions_text(each))
            for each in self._provisioning_requests(workload)
        ]
        document_part = nonempty_fields(checks=checks, requests=request_parts)
        waiting_checks = [check for check in checks_of(workload) if check["state"] != READY]
        if not waiting_checks:
            return {**document_part, "summary": "it has quota, and is admitted next"}
        first_check = waiting_checks[0]
        suffix = f": {first_check['message']}" if first_check.get("message") else ""
        text = f"it has quota, and waits for AdmissionCheck {first_check['name']} ({first_check['state']}){suffix}"
        binding_limit = BindingLimit(ADMISSION_CHECK, text, "AdmissionCheck", first_check["name"])
        return {**document_part, "summary": text, "binding": binding_limit.document()}

    def _provisioning_requests(self, workload: Obj) -> list[Obj]:
        metadata = workload["metadata"]
        owned_objects = self._reader.owned_by(metadata.get("uid", ""), metadata.get("namespace", ""))
        return [each for each in owned_objects if each["kind"] == "ProvisioningRequest"]

    # --- pods and nodes ---

    def _explain_pods(self, workload: Obj, admission: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        job_pods = pods_of(workload, self._reader)
        admitted_at = admission["lastTransitionTime"]
        if not job_pods:
            if is_true(workload, "PodsReady") or not _has_owner(workload):
                return {"state": RUNNING, "summary": f"it runs since {admitted_at}"}
            return {
                "state": ADMITTED,
                "summary": f"admitted at {admitted_at}; its pods are not created yet, or have ended",
            }
        if self._capacity is not None and not all(map(pods.bound_node, job_pods)):
            return self._unplaced_part(workload, job_pods, now, user)
        starting_pods = [pod for pod in job_pods if not pods.is_ready(pod)]
        nodes = sorted({node: None for pod in job_pods if (node := pods.bound_node(pod))})
        location_suffix = f" on {_shorten_names(nodes)}" if nodes else ""
        if starting_pods:
            start_reason = _waiting_containers_text(starting_pods[0]) or "its containers start"
            text = f"{len(starting_pods)} of {len(job_pods)} pods are not ready{location_suffix}: {start_reason}"
            binding_limit = BindingLimit(STARTING, text, "Pod", _name_of(starting_pods[0]))
            return {"state": ADMITTED, "summary": text, "binding": binding_limit.document()}
        expected_count = sum(holding.pods for holding in workload_view(workload).holdings)
        expected_suffix = f" of {expected_count}" if expected_count > len(job_pods) else ""
        summary = f"it runs since {admitted_at}: {len(job_pods)}{expected_suffix} pods{location_suffix}"
        return {"state": RUNNING, "summary": summary}

    def _unplaced_part(
        self, workload: Obj, job_pods: Sequence[Obj], now: Instant, user: ExplanationUser
    ) -> DocumentPart:
        unplaced_pods = [pod for pod in job_pods if not pods.bound_node(pod)]
        scheduler_texts = _count_texts(map(_scheduler_text, unplaced_pods))
        autoscaler_texts = _count_texts(map(self._autoscaler_text, unplaced_pods))
        autoscaler_message = next(iter(autoscaler_texts), "")
        assert self._capacity is not None, "pods without nodes are explained only if the node capacity is known"
        waits_for, (limit_kind, pool) = self._capacity.waits_for(now), self._capacity.limit_of(autoscaler_message, now)
        scheduler_message = next(iter(scheduler_texts), "not processed by the scheduler yet")
        if limit_kind == NODE_CAPACITY:
            is_selected = bool(selected_nodes(pod_view(unplaced_pods[0]), self._reader))
            limit_kind = limit_among_nodes(scheduler_message, autoscaler_message, is_selected=is_selected)
        text = f"admitted, but {len(unplaced_pods)} of {len(job_pods)} pods have no node: {scheduler_message}"
        details = [f"scheduler, {count} pods: {each}" for each, count in scheduler_texts.items()]
        details += [f"autoscaler, {count} pods: {each}" for each, count in autoscaler_texts.items()]
        details += [f"autoscaler waits for: {each}" for each in waits_for]
        nodes = nonempty_fields(unplaced_pods=len(unplaced_pods), pods=len(job_pods), text=details, waitsFor=waits_for)
        flavor = _flavor_of(workload)
        kind, object_name = ("NodePool", pool) if pool else ("ResourceFlavor", flavor)
        binding_limit = BindingLimit(limit_kind, autoscaler_message or scheduler_message, kind, object_name, flavor)
        document_part = {"state": ADMITTED, "summary": text, "binding": binding_limit.document(), "nodes": nodes}
        occupants = occupants_of(workload, unplaced_pods, self._scheduler_cache.snapshot, self._reader)
        holder_parts = [each._replace(flavor=flavor).document(user) for each in occupants[:_SHOWN_MAX]]
        document_part |= nonempty_fields(holders=holder_parts, holdersMore=max(0, len(occupants) - _SHOWN_MAX) or None)
        if limit_kind in {NODE_CAPACITY, AUTOSCALER_LIMITS, TOPOLOGY}:
            proposals = propose_node_changes([pod_view(p) for p in unplaced_pods], occupants, self._capacity, user)
            document_part |= nonempty_fields(changes=[each.document() for each in proposals])
        return document_part

    def _autoscaler_text(self, pod: Obj) -> str:
        return "" if self._capacity is None else self._capacity.last_message_for(pod["metadata"].get("uid", ""))

    # --- possible preemptors ---

    def _describe_possible_preemptors(self, view: WorkloadView) -> str:
        """Return a text that says which Workloads could preempt the given Workload, by ClusterQueue and priority."""
        quota_holder = self._scheduler_cache.snapshot.holder(view.key)
        if quota_holder is None:
            return ""
        queue = quota_holder.queue
        policy = queue.view.preemption.within_cluster_queue
        preemptor_texts = []
        if policy != "Never":
            priority = f"priority above {view.priority}" + (" or an older one of the same" if "Equal" in policy else "")
            preemptor_texts.append(f"in {queue.name} by {priority}")
        if queue.node.parent is not None:
            frs = [fr for fr, _ in quota_holder.usage]
            is_borrowing = not is_within_nominal(queue.node, frs)
            other_queues = [
                each.name
                for each in self._scheduler_cache.snapshot.queues_below(queue.node.path[0])
                if each is not queue and each.view.preemption.reclaim_within_cohort != "Never"
            ]
            if is_borrowing and other_queues:
                preemptor_texts.append(f"by {', '.join(other_queues[:_SHOWN_MAX])} for quota that {queue.name} borrows")
        return "; ".join(preemptor_texts) or "by none at present"


def explain_finished(workload: Obj) -> DocumentPart:
    """Return the fields `state` and `summary` of a finished Workload's Explanation document."""
    condition = find_condition(workload, "Finished")
    assert condition is not None
    summary = (
        f"it finished at {condition['lastTransitionTime']} ({condition['reason']}): {condition.get('message', '')}"
    )
    return {"state": FINISHED, "summary": summary.rstrip(": ")}


def _assignment_parts(admission: Mapping[str, Any]) -> list[DocumentPart]:
    return [
        nonempty_fields(
            name=each["name"], count=each.get("count"), flavors=each.get("flavors"), uses=each.get("resourceUsage")
        )
        for each in admission.get("podSetAssignments") or ()
    ]


def _conditions_text(request: Obj) -> str:
    """Return the status conditions of a ProvisioningRequest in one line."""
    conditions = (request.get("status") or {}).get("conditions") or ()
    condition_texts = [f"{each['type']}={each['status']} {each.get('message', '')}".strip() for each in conditions]
    return "; ".join(condition_texts) or "not accepted yet"


def _waiting_containers_text(pod: Obj) -> str:
    """Return why the first waiting or terminated container of a pod does not run; '' if none has a reason."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        state = status.get("state") or {}
        for kind in ("waiting", "terminated"):
            if kind in state:
                details = [state[kind][field] for field in ("reason", "message") if state[kind].get(field)]
                return f"container {status['name']} {kind}: {': '.join(details)}" if details else ""
    return ""


def pod_part(pod: Obj, node_capacity: NodeCapacityView | None) -> DocumentPart:
    """Return the document field `pod`: phase, node, scheduling gates, and messages about why the pod does not run."""
    message = "" if node_capacity is None else node_capacity.last_message_for(pod["metadata"].get("uid", ""))
    return nonempty_fields(
        phase=(pod.get("status") or {}).get("phase", "Pending"),
        node=pods.bound_node(pod),
        gates=", ".join(each["name"] for each in (pod.get("spec") or {}).get("schedulingGates") or ()),
        scheduler=_scheduler_text(pod),
        autoscaler=message,
        containers=_waiting_containers_text(pod),
    )


def _scheduler_text(pod: Obj) -> str:
    """Return kube-scheduler's message in a pod's PodScheduled condition; '' if the pod is scheduled."""
    condition = find_condition(pod, "PodScheduled")
    return str(condition.get("message", "")) if condition is not None and condition["status"] != "True" else ""


def _count_texts(texts: Iterable[str]) -> dict[str, int]:
    """Return how often each nonempty text occurs, most frequent text first."""
    count_by_text: dict[str, int] = {}
    for text in filter(None, texts):
        count_by_text[text] = count_by_text.get(text, 0) + 1
    return dict(sorted(count_by_text.items(), key=lambda each: -each[1]))


def _shorten_names(names: Sequence[str]) -> str:
    """Return the first five names joined by commas, and how many more there are."""
    omitted_suffix = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"{', '.join(names[:_SHOWN_MAX])}{omitted_suffix}"


def _flavor_of(workload: Obj) -> str:
    """Return the first ResourceFlavor in a Workload's status.admission; '' if there is none."""
    pod_set_assignments = _assignment_parts((workload.get("status") or {}).get("admission") or {})
    return next((str(flavor) for each in pod_set_assignments for flavor in (each.get("flavors") or {}).values()), "")


def _has_owner(workload: Obj) -> bool:
    return bool(workload["metadata"].get("ownerReferences"))


def _name_of(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name
