"""What the autoscaler and the nodes allow: why pods without a node wait, and changes that would give them one."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.api.times import format_second
from batchyard.api.views.node import NodeView, parse_taint, parse_toleration
from batchyard.api.views.pods import PodView, pod_view
from batchyard.autoscaler.cluster_forecast import upcoming_node
from batchyard.autoscaler.controller import Autoscaler
from batchyard.autoscaler.expander import FULL, IN_BACKOFF, Backoff
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Instant
from batchyard.explain.blockers import NodeOccupant
from batchyard.explain.document import ExplanationUser
from batchyard.explain.proposals import END, FLAVOR, NODES, SIZE, merge_patch
from batchyard.explain.searches import Patch, Proposal
from batchyard.interfaces.client import Reader
from batchyard.placement.controller import PlacementController
from batchyard.placement.node_filters import tolerates

STOCK_OUT: Final = "stockOut"
CLOUD_QUOTA: Final = "cloudQuota"
AUTOSCALER_LIMITS: Final = "autoscalerLimits"
BOOTING: Final = "booting"
NODE_CAPACITY: Final = "nodeCapacity"
_SCALE_UP_TRIGGERED: Final = "pod triggered scale-up"
_QUOTA_EXCEEDED_MESSAGE: Final = "exceeded quota"
_QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"
_SHOWN_MAX: Final = 5


class NodeCapacityView:
    """The cluster autoscaler's state and a simulation of pod placement, to explain why pods have no node."""

    def __init__(self, scaling_index: ScalingIndex, autoscaler: Autoscaler, placement: PlacementController) -> None:
        self._scaling_index = scaling_index
        self._autoscaler = autoscaler
        self.has_room_for = placement.has_room_for

    def one_group_per_pool(self) -> Sequence[NodeGroup]:
        """Return one node group for each NodePool, because the groups of a pool differ only by zone."""
        return [groups[0] for groups in self._scaling_index.groups.values() if groups]

    def zone_count_of(self, pool: str) -> int:
        """Return the number of zones in which a NodePool has node groups."""
        return len(self._scaling_index.groups.get(pool, ()))

    def last_message_for(self, pod_uid: str) -> str:
        """Return the cluster autoscaler's last message about a pod; '' if there is none."""
        return self._autoscaler.last_message_for(pod_uid)

    def limit_in_message(self, message: str, now: Instant) -> tuple[str, str]:
        """Return the limit in an autoscaler message (such as STOCK_OUT), and the NodePool's name ('' if unknown)."""
        if message.startswith(_SCALE_UP_TRIGGERED):
            booting_machines = self._scaling_index.machines.upcoming_machines.values()
            return BOOTING, next((machine.group.pool for machine in booting_machines), "")
        if IN_BACKOFF in message:
            backoffs = self._relevant_backoffs(now)
            backoff_codes = {each.code for _, each in backoffs}
            pool = backoffs[0][0].partition("/")[0] if backoffs else ""
            return (CLOUD_QUOTA if backoff_codes == {_QUOTA_EXCEEDED} else STOCK_OUT), pool
        return (AUTOSCALER_LIMITS if _QUOTA_EXCEEDED_MESSAGE in message and FULL not in message else NODE_CAPACITY), ""

    def booting_pool_for(self, pods: Sequence[PodView]) -> str:
        """Return the NodePool of the first booting machine if `pods` fit once all machines are ready, otherwise ''."""
        groups = {group.name: group for pool_groups in self._scaling_index.groups.values() for group in pool_groups}
        machines = [each for each in self._scaling_index.machines.upcoming_machines.values() if each.group in groups]
        nodes = [upcoming_node(machine, groups[machine.group]) for machine in machines]
        return machines[0].group.pool if machines and self.has_room_for(pods, with_nodes=nodes) else ""

    def describe_waits(self, now: Instant) -> list[str]:
        """Return up to five texts about what the autoscaler waits for: booting machines, and node groups in backoff."""
        created_by_zone: dict[str, list[Instant]] = {}
        for machine in self._scaling_index.machines.upcoming_machines.values():
            created_by_zone.setdefault(f"pool {machine.group.pool} in {machine.group.zone}", []).append(
                machine.created_at
            )
        awaited_texts = [
            f"{count_with_noun(len(times), 'machine')} of {zone}, the first requested at {format_second(min(times))}"
            for zone, times in sorted(created_by_zone.items())
        ]
        for location, each in self._relevant_backoffs(now):
            awaited_texts.append(f"pool {location}: {each.code}; {_retry_text(each, now)}")
        return awaited_texts[:_SHOWN_MAX]

    def retry_time(self, now: Instant) -> Instant | None:
        """Return when the first backoff of a node group ends, of those that need no configuration change to end.

        Return None if no such backoff is running.
        """
        ends = [
            each.end
            for _, each in self._relevant_backoffs(now)
            if each.end > now and not each.needs_configuration_change
        ]
        return min(ends, default=None)

    def pools_in_backoff(self, now: Instant) -> frozenset[str]:
        """Return the NodePools with a running backoff; if there is none, those with an ended, recorded backoff."""
        return frozenset(location.partition("/")[0] for location, _ in self._relevant_backoffs(now))

    def _relevant_backoffs(self, now: Instant) -> Sequence[tuple[str, Backoff]]:
        """Return (key, backoff) pairs of the running backoffs, sorted by key; if none runs, of all recorded ones."""
        all_backoffs = sorted(self._scaling_index.backoffs.items())
        return [(location, each) for location, each in all_backoffs if each.end > now] or all_backoffs


def _retry_text(backoff: Backoff, now: Instant) -> str:
    if backoff.needs_configuration_change:
        return "it is retried after a change of the NodePool or the Cluster"
    if backoff.end > now:
        return f"it is not retried before {format_second(backoff.end)}"
    return f"its backoff ended at {format_second(backoff.end)}, and it is retried when the cloud may have the machines"


# Changes that give nodes to pods without one: more machines, fewer pods, or ending other Workloads. All are simulated.


_ENDED_WORKLOADS_MAX: Final = 4
_OCCUPANTS_CHECKED_MAX: Final = 16


def propose_node_changes(
    pods: Sequence[PodView],
    occupants: Sequence[NodeOccupant],
    node_capacity: NodeCapacityView,
    user: ExplanationUser,
    unavailable_pools: frozenset[str] = frozenset(),
) -> Iterator[Proposal]:
    """Yield changes that would give nodes to `pods`: more machines, fewer pods, or the end of other Workloads.

    No machines are added to the `unavailable_pools`.
    """
    yield from _machine_proposals(pods, node_capacity, unavailable_pools)
    yield from _pod_count_proposals(pods, node_capacity)
    yield from _workload_end_proposals(pods, occupants, node_capacity, user)


def _machine_proposals(
    pods: Sequence[PodView], node_capacity: NodeCapacityView, unavailable_pools: frozenset[str]
) -> Iterator[Proposal]:
    for group in node_capacity.one_group_per_pool():
        if group.name.pool in unavailable_pools:
            continue
        if group.hosts > 1 or not node_capacity.has_room_for(pods[:1], with_nodes=_hypothetical_nodes(group, 1)):
            continue
        count = _minimum_number(partial(_are_nodes_enough, pods, node_capacity, group), len(pods))
        if count:
            text = f"add {count_with_noun(count, 'machine')} to pool {group.name.pool} ({group.machine.name})"
            yield Proposal(NODES, text, _growth_patches(group, count, node_capacity))


def _are_nodes_enough(
    pods: Sequence[PodView], node_capacity: NodeCapacityView, group: NodeGroup, node_count: int
) -> bool:
    return node_capacity.has_room_for(pods, with_nodes=_hypothetical_nodes(group, node_count))


def _growth_patches(group: NodeGroup, node_count: int, node_capacity: NodeCapacityView) -> Sequence[Patch]:
    name, spec = group.name.pool, group.pool["spec"]
    if group.is_autoscaled:
        limit_field = "totalMax" if "totalMax" in (spec.get("autoscaling") or {}) else "max"
        current_maximum = group.total.maximum if limit_field == "totalMax" else group.size.maximum
        spec_fields: dict[str, Any] = {"autoscaling": {limit_field: current_maximum + node_count}}
    elif node_capacity.zone_count_of(name) == 1:
        spec_fields = {"nodeCount": int(spec.get("nodeCount", 0)) + node_count}
    else:
        return ()
    return (merge_patch("NodePool", name, {"spec": spec_fields}),)


def _pod_count_proposals(pods: Sequence[PodView], node_capacity: NodeCapacityView) -> Iterator[Proposal]:
    count = _minimum_number(lambda omitted_count: node_capacity.has_room_for(pods[omitted_count:]), len(pods) - 1)
    if count:
        others = f"the other {count_with_noun(len(pods) - count, 'pod')}"
        yield Proposal(SIZE, f"with {count_with_noun(count, 'pod')} fewer, {others} would have nodes", ())


def _workload_end_proposals(
    pods: Sequence[PodView], occupants: Sequence[NodeOccupant], capacity: NodeCapacityView, user: ExplanationUser
) -> Iterator[Proposal]:
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
    return [group.new_node(f"{group.id}-imagined-{number}") for number in range(node_count)]


def _minimum_number(is_satisfied: Callable[[int], bool], highest_number: int) -> int:
    """Return the smallest number from 1 to `highest_number` that satisfies a monotonic predicate, or else 0."""
    if highest_number < 1 or not is_satisfied(highest_number):
        return 0
    return 1 + bisect_left(range(1, highest_number), True, key=is_satisfied)


# Changes of the pods' own constraints: tolerations and node selectors, which only a new job can have.


_CONSTRAINTS_TRIED_MAX: Final = 16
_CONSTRAINTS_SHOWN_MAX: Final = 2
#: Taints with this prefix describe the state of a node, such as not ready.
_STATE_TAINT_PREFIX: Final = "node.kubernetes.io/"
_NEW_JOB: Final = "submit the job again with this change"


def propose_pod_constraints(pods: Sequence[Obj], node_capacity: NodeCapacityView, reader: Reader) -> Iterator[Proposal]:
    """Yield at most two changes of tolerations and node selectors with which all pods would fit on existing nodes."""
    spec_changes = dict(islice(_spec_changes(pods[0]["spec"], reader.list(scheme.NODE)), _CONSTRAINTS_TRIED_MAX))
    fitting_texts = [
        text
        for text, spec in spec_changes.items()
        if node_capacity.has_room_for([pod_view(with_path(pod, ("spec",), {**pod["spec"], **spec})) for pod in pods])
    ]
    for text in fitting_texts[:_CONSTRAINTS_SHOWN_MAX]:
        yield Proposal(FLAVOR, f"let its pods use other nodes: {text}; {_NEW_JOB}", ())


def _spec_changes(spec: Mapping[str, Any], nodes: Sequence[Obj]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    node_selector, yielded_texts = dict(spec.get("nodeSelector") or {}), dict[str, None]()
    old_tolerations = list(spec.get("tolerations") or ())
    parsed_tolerations = tuple(map(parse_toleration, old_tolerations))
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        taints = [
            taint
            for taint in map(parse_taint, (node.get("spec") or {}).get("taints") or ())
            if taint.effect != "PreferNoSchedule" and not taint.key.startswith(_STATE_TAINT_PREFIX)
        ]
        new_selector = {key: labels[key] for key in node_selector if key in labels}
        tolerations = [
            {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
            for taint in taints
            if not tolerates(parsed_tolerations, taint)
        ]
        selection_texts = [f"{key}={value}" for key, value in new_selector.items() if value != node_selector[key]]
        removed_keys = [key for key in node_selector if key not in labels]
        toleration_texts = [f"{each['key']}={each['value']}:{each['effect']}" for each in tolerations]
        parts = [("select", selection_texts), ("no longer select", removed_keys), ("tolerate", toleration_texts)]
        text = ", ".join(f"{verb} {', '.join(items)}" for verb, items in parts if items)
        if text and text not in yielded_texts:
            yielded_texts[text] = None
            yield text, {"nodeSelector": new_selector, "tolerations": [*old_tolerations, *tolerations]}
