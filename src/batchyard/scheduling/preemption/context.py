"""Preemption context: the preemptor and the quota it requests, with the checks shared by both preemption algorithms."""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Obj, annotated_duration, find_condition, parse_integer
from batchyard.api.times import parse_time
from batchyard.api.views.preemption import (
    ALWAYS,
    INSUFFICIENT_TOPOLOGY,
    TRIGGERS,
    CandidateSelector,
    ConfiguredPreemptionRule,
    NumericLabelRule,
    PreemptionConfigView,
    PriorityClassNames,
    preemption_config_view,
)
from batchyard.api.views.workload import WorkloadView
from batchyard.api.well_known import CHECKPOINT_EVERY, RESTART_TIME
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.quota import Usage, available, has_room, is_borrowing_with
from batchyard.scheduling.snapshot import Snapshot

_PRIORITY_OF_WORKLOAD: Final = attrgetter("priority")


class PreemptionTarget(NamedTuple):
    """A Workload to preempt, and the reason for the Preempted condition."""

    workload: AdmittedWorkload
    reason: str
    #: The rules of a PreemptionConfig that select the Workload, as in Kueue's messages; '' without rules.
    rules: str = ""


class TopologyFit(Protocol):
    """Interface of a check whether pods fit in topology domains."""

    def fits(self) -> bool:
        """Return whether the preemptor's pods fit in topology domains, in the current snapshot."""


class PreemptionContext(NamedTuple):
    """The input of a search for victims: the preemptor, its ClusterQueue, its requested and missing quota."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot
    #: The requested quota.
    usage: Usage
    #: The flavor-resources of which quota is missing.
    contested_frs: tuple[int, ...]
    #: Checks the topology domains; None without topology-aware scheduling.
    topology: TopologyFit | None = None

    def fits(self, *, may_borrow: bool) -> bool:
        """Return whether the requested quota is free in the snapshot; unless `may_borrow`, without borrowing.

        With topology-aware scheduling, the pods must also fit in topology domains.
        """
        node = self.queue.node
        if not may_borrow and any(is_borrowing_with(node, fr, amount) for fr, amount in self.usage):
            return False
        return has_room(node, self.usage) and (self.topology is None or self.topology.fits())

    def could_ever_fit(self, *candidates: Sequence[AdmittedWorkload]) -> bool:
        """Return whether the candidates together use at least the missing quota; if not, no search is needed.

        The result is False without candidates. Limits in the cohort tree may still prevent the use of the freed quota.
        """
        node = self.queue.node
        missing_amounts = {fr: amount - available(node, fr) for fr, amount in self.usage if amount > 0}
        missing_amounts = {fr: amount for fr, amount in missing_amounts.items() if amount > 0}
        for candidate in chain(*candidates):
            for fr, amount in candidate.usage:
                missing_amounts[fr] = missing_amounts.get(fr, 0) - amount
            if max(missing_amounts.values(), default=0) <= 0:
                return True
        return False

    def eligible_workloads(self, queue: ClusterQueue, policy: str) -> list[AdmittedWorkload]:
        """Return a queue's Workloads that `policy` allows to preempt and that are assigned a contested flavor-resource.

        They are in preemption order. An inactive ClusterQueue has none: Kueue's snapshot omits the queue, but its usage
        counts in the Cohorts.
        """
        if policy == "Never" or not queue.workloads or not queue.active:
            return []
        workloads = queue.ranked_workloads()
        if policy != "Any":
            # `workloads` is sorted by priority first, so eligible Workloads are at the front.
            priority, lowest_priority = self.workload.priority, workloads[0].priority
            includes_equal_priority = policy == "LowerOrNewerEqualPriority"
            if lowest_priority > priority or (lowest_priority == priority and not includes_equal_priority):
                return []
            equal_start = bisect_left(workloads, priority, key=_PRIORITY_OF_WORKLOAD)
            candidates = workloads[:equal_start]
            if includes_equal_priority:
                equal_candidates = workloads[equal_start : bisect_right(workloads, priority, key=_PRIORITY_OF_WORKLOAD)]
                candidates += [candidate for candidate in equal_candidates if self.workload.queued < candidate.queued]
            workloads = candidates
        contested_frs = self.contested_frs
        if len(contested_frs) == 1:
            (fr,) = contested_frs
            workloads = [candidate for candidate in workloads if fr in candidate.flavor_resources]
        else:
            workloads = [each for each in workloads if not each.flavor_resources.isdisjoint(contested_frs)]
        return self.without_protected(queue, workloads) if self.snapshot.preemption.has_min_runtimes else workloads

    def without_protected(self, queue: ClusterQueue, workloads: list[AdmittedWorkload]) -> list[AdmittedWorkload]:
        """Return a queue's Workloads that no minimal run time protects; record when the first protection ends."""
        snapshot, preemptor_queue = self.snapshot, self.queue
        min_runtime = min_runtime_of(snapshot, queue, preemptor_queue)
        if min_runtime == 0:
            return workloads
        unprotected: list[AdmittedWorkload] = []
        for workload in workloads:
            end = protection_end(workload, min_runtime)
            if end <= snapshot.preemption.now:
                unprotected.append(workload)
            else:
                earliest_end = snapshot.preemption.protection_ends.get(preemptor_queue.name, end)
                snapshot.preemption.protection_ends[preemptor_queue.name] = min(end, earliest_end)
        return unprotected

    def fits_in_quota(self, *, may_borrow: bool = True) -> bool:
        """Return whether the requested quota is free in the snapshot, regardless of topology domains."""
        return self._replace(topology=None).fits(may_borrow=may_borrow)

    @property
    def prefers_cheap_victims(self) -> bool:
        """Whether the victims whose restart costs least come first among those of equal priority."""
        settings = self.queue.view.preemption_settings
        return settings is not None and settings.prefers_cheap_victims

    def order_key(self, candidate: AdmittedWorkload) -> tuple[bool, bool, int, float, int, str]:
        """Return a candidate's sort key: evicted first, then from other queues, low priority, late reservation, uid.

        If the ClusterQueue prefers cheap victims, the cost of a restart comes directly after the priority.
        """
        cost = restart_cost(candidate, self.snapshot) if self.prefers_cheap_victims else 0.0
        is_own = candidate.queue is self.queue
        return not candidate.evicted, is_own, candidate.priority, cost, -candidate.reserved_at, candidate.uid


# Protection of running Workloads by a minimal run time.


_NOT_PROTECTED: Final[Instant] = 0
_NO_WORKLOAD: Final[Obj] = {}


def min_runtime_of(snapshot: Snapshot, queue: ClusterQueue, preemptor_queue: ClusterQueue) -> Duration:
    """Return how long Workloads of `queue` run before those of `preemptor_queue` may preempt them; 0 by default.

    A ClusterQueue without a value inherits that of the nearest Cohort above it.
    """
    is_within_queue = queue is preemptor_queue
    views = snapshot.forest.views
    ancestors = [views[node.name] for node in queue.node.path[-2::-1] if node.name in views]
    for settings in (queue.view.preemption_settings, *[view.preemption_settings for view in ancestors]):
        if settings is not None:
            min_runtimes = settings.min_runtimes
            value = min_runtimes.within_queue if is_within_queue else min_runtimes.from_other_queues
            if value is not None:
                return value
    return 0


def protection_end(workload: AdmittedWorkload, min_runtime: Duration) -> Instant:
    """Return when a Workload's protection by a minimal run time ends; 0 if it is not protected.

    The time counts from the transition of the condition Admitted. A Workload that is not admitted yet, or that is being
    evicted, is not protected.
    """
    if not workload.is_admitted or workload.evicted:
        return _NOT_PROTECTED
    return admission_time(workload) + min_runtime


def admission_time(workload: AdmittedWorkload) -> Instant:
    """Return when an admitted Workload was admitted; before that write is confirmed, when its quota was reserved."""
    condition = None if workload.obj is None else find_condition(workload.obj, "Admitted")
    is_confirmed = condition is not None and condition["status"] == "True"
    return parse_time(condition["lastTransitionTime"]) if is_confirmed and condition else workload.reserved_at


# The cost of the restart of a victim.


class RestartCost(NamedTuple):
    """What the preemption of a running Workload wastes: the time that it has to repeat, and its share of the quota."""

    #: The time since the last checkpoint, plus the time of the restart.
    lost_time: Duration
    #: The largest fraction that the Workload uses of a quota of its cohort tree, times the price of the flavor.
    share: float

    @property
    def amount(self) -> float:
        """The product of lost time and share, which orders victims."""
        return self.lost_time * self.share


def restart_cost(workload: AdmittedWorkload, snapshot: Snapshot) -> float:
    """Return the cost of preempting an admitted Workload now; 0 if it does not run yet."""
    return restart_cost_of(workload, snapshot).amount


def restart_cost_of(workload: AdmittedWorkload, snapshot: Snapshot) -> RestartCost:
    """Return what the preemption of an admitted Workload at the time of the current cycle wastes.

    A Workload that never saves its work loses all of it. The smallest checkpoint interval counts that the Workload or
    the templates of its pods have as annotation.
    """
    lost_time: Duration = 0
    if workload.is_admitted:
        lost_time = max(0, snapshot.preemption.now - admission_time(workload))
        obj = workload.obj or _NO_WORKLOAD
        templates = [each.get("template") or {} for each in obj.get("spec", {}).get("podSets") or ()]
        sources = [source for source in (obj, *templates) if source.get("metadata")]
        intervals = [annotated_duration(source, CHECKPOINT_EVERY) for source in sources]
        checkpoint_interval = min((interval for interval in intervals if interval), default=0)
        if checkpoint_interval:
            lost_time %= checkpoint_interval
        lost_time += max([annotated_duration(source, RESTART_TIME) or 0 for source in sources], default=0)
    quotas, names = workload.queue.node.path[0].subtree_quota, snapshot.flavor_resource_names
    views = {fr: snapshot.flavors.get(names[fr][0]) for fr, _ in workload.usage}
    prices = {fr: 1.0 if view is None else view.price for fr, view in views.items()}  # a flavor may be deleted
    shares = [amount / quotas[fr] * prices[fr] for fr, amount in workload.usage if quotas[fr]]
    return RestartCost(lost_time, max(shares, default=0.0))


# The rules of a PreemptionConfig, which add victims when those of the ClusterQueue's policies are not enough.
#
# Source: pkg/scheduler/preemption/config (evaluator, filters) of Kueue 0.20.


def config_of(snapshot: Snapshot, queue: ClusterQueue) -> PreemptionConfigView | None:
    """Return the PreemptionConfig that a ClusterQueue names; None without one, or with the feature gate off."""
    if not snapshot.preemption.configs or queue.view.preemption_settings is None:
        return None
    return snapshot.preemption.configs.get(queue.view.preemption_settings.config_name)


def queues_after_config_event(event: WatchEvent, snapshot: Snapshot) -> list[str]:
    """Record a PreemptionConfig or the labels of a ClusterQueue; return the ClusterQueues to try again after a change.

    To be called only with the feature gate on.
    """
    name, configs, queue_labels = event.key.name, snapshot.preemption.configs, snapshot.preemption.queue_labels
    if event.key.kind == scheme.CLUSTER_QUEUE:
        if event.type is EventType.DELETED:
            queue_labels.pop(name, None)
            return []
        old_labels, queue_labels[name] = queue_labels.get(name), _labels(event.obj)
        return [] if old_labels == queue_labels[name] else [name]
    configs.pop(name, None)
    if event.type is not EventType.DELETED:
        configs[name] = preemption_config_view(event.obj)
    settings = [(queue.name, queue.view.preemption_settings) for queue in snapshot.queues.values()]
    return [queue for queue, each in settings if each is not None and each.config_name == name]


def may_preempt(snapshot: Snapshot, queue: ClusterQueue) -> bool:
    """Return whether the policies of a ClusterQueue, or the rules of a PreemptionConfig, allow preemption at all."""
    return queue.view.preemption.is_allowed or config_of(snapshot, queue) is not None


def add_rule_targets(
    context: PreemptionContext,
    targets: list[PreemptionTarget],
    fits: Callable[[], bool],
    fits_in_quota: Callable[[], bool],
) -> bool:
    """Add the victims that the rules of a PreemptionConfig select, until the preemptor fits; return whether it does.

    The snapshot must exclude the usage of `targets`; then it excludes that of the added ones too. Rules with the
    trigger InsufficientQuota apply if quota is missing after the rules that always apply, those with the trigger
    QuotaFeasibleAndInsufficientTopology if only topology domains are missing then.
    """
    config = config_of(context.snapshot, context.queue)
    if config is None:
        return False
    for trigger in TRIGGERS:
        if trigger != ALWAYS and fits_in_quota() is not (trigger == INSUFFICIENT_TOPOLOGY):
            continue
        # In the second pass, the preemptor has quota too.
        taken_keys = {context.workload.key, *(target.workload.key for target in targets)}
        for candidate, rules in rule_candidates(context, config, trigger):
            if candidate.key not in taken_keys:
                context.snapshot.release(candidate)
                targets.append(PreemptionTarget(candidate, PreemptionReason.CONFIGURABLE, rules))
                if fits():
                    return True
    return False


def rule_candidates(
    context: PreemptionContext, config: PreemptionConfigView, trigger: str
) -> list[tuple[AdmittedWorkload, str]]:
    """Return the Workloads that rules with a trigger select, in preemption order, each with the names of these rules.

    They are assigned a contested flavor-resource, and no minimal run time protects them.
    """
    rules = [rule for rule in config.rules if rule.trigger == trigger and _concerns_preemptor(rule, context.workload)]
    if not any(rule.candidate_selectors for rule in rules):
        return []
    matches: list[tuple[AdmittedWorkload, str]] = []
    for queue in context.snapshot.queues.values():
        if not queue.active:
            continue
        workloads = [w for w in queue.workloads.values() if not w.flavor_resources.isdisjoint(context.contested_frs)]
        selected = [(workload, text) for workload in workloads if (text := _matching_rules(rules, context, workload))]
        if selected and context.snapshot.preemption.has_min_runtimes:
            unprotected = context.without_protected(queue, [workload for workload, _ in selected])
            selected = [(workload, text) for workload, text in selected if workload in unprotected]
        matches += [(workload, f"{config.name} rule {text}") for workload, text in selected]
    return sorted(matches, key=lambda match: context.order_key(match[0]))


def selecting_rules(config: PreemptionConfigView, context: PreemptionContext, candidate: AdmittedWorkload) -> str:
    """Return the rules by which the preemptor of a context may preempt a candidate, as in messages; '' without any."""
    rules = [rule for rule in config.rules if _concerns_preemptor(rule, context.workload)]
    return _matching_rules(rules, context, candidate)


def _concerns_preemptor(rule: ConfiguredPreemptionRule, preemptor: WorkloadView) -> bool:
    selector = rule.preemptor_selector
    return (selector is None or selector.matches(_labels(preemptor.obj))) and _has_matching_class(
        preemptor.obj, rule.preemptor_class_names
    )


def _matching_rules(
    rules: Sequence[ConfiguredPreemptionRule], context: PreemptionContext, candidate: AdmittedWorkload
) -> str:
    """Return the rules that select a candidate, with the indices of their selectors: `hero/0,2; defrag/1`; or ''."""
    indices_by_rule = {
        rule.name: [str(i) for i, each in enumerate(rule.candidate_selectors) if _is_selected(each, context, candidate)]
        for rule in rules
    }
    return "; ".join([f"{name}/{','.join(indices)}" for name, indices in indices_by_rule.items() if indices])


def _is_selected(selector: CandidateSelector, context: PreemptionContext, candidate: AdmittedWorkload) -> bool:
    obj, preemptor = candidate.obj or _NO_WORKLOAD, context.workload
    queue_labels = context.snapshot.preemption.queue_labels.get(candidate.queue.name, {})
    if not _is_in_scope(selector.scope, context, candidate):
        return False
    if selector.queue_selector is not None and not selector.queue_selector.matches(queue_labels):
        return False
    if selector.label_selector is not None and not selector.label_selector.matches(_labels(obj)):
        return False
    if not all(_has_matching_number(rule, obj, preemptor.obj) for rule in selector.numeric_labels):
        return False
    if not _has_matching_class(obj, selector.class_names):
        return False
    boosts = (0, 0) if selector.is_priority_boosted else (candidate.boost, preemptor.boost)
    priorities = candidate.priority - boosts[0], preemptor.priority - boosts[1]
    return not selector.priority_comparison or _COMPARISONS[selector.priority_comparison](*priorities)


#: The comparisons of a candidate's value with the preemptor's.
_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}


def _is_in_scope(scope: str, context: PreemptionContext, candidate: AdmittedWorkload) -> bool:
    queue, own_queue = candidate.queue, context.queue
    match scope:
        case "WithinLocalQueue":
            return candidate.local_queue == context.workload.queue
        case "WithinClusterQueue":
            return queue is own_queue
        case "WithinParentCohort":
            return queue is own_queue or (
                own_queue.node.parent is not None and queue.node.parent is own_queue.node.parent
            )
        case "WithinCohortTree":
            return queue.node.path[0] is own_queue.node.path[0]
        case _:
            return True


def _has_matching_class(obj: Obj, names: PriorityClassNames) -> bool:
    class_name = ((obj.get("spec") or {}).get("priorityClassRef") or {}).get("name", "")
    return (not names.matching or class_name in names.matching) and class_name not in names.not_matching


def _has_matching_number(rule: NumericLabelRule, candidate: Obj, preemptor: Obj) -> bool:
    value = _numeric_label(rule, _labels(candidate))
    if value is None or (rule.min_value is not None and value < rule.min_value):
        return False
    if rule.max_value is not None and value > rule.max_value:
        return False
    if not rule.comparison:
        return True
    preemptor_value = _numeric_label(rule, _labels(preemptor))
    return preemptor_value is not None and _COMPARISONS[rule.comparison](value, preemptor_value)


def _numeric_label(rule: NumericLabelRule, labels: Mapping[str, str]) -> int | None:
    value = parse_integer(labels.get(rule.key, ""), bits=32)
    return rule.fallback_value if value is None else value


def _labels(obj: Obj) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def fill_back_workloads(
    context: PreemptionContext, targets: list[PreemptionTarget], *, may_borrow: bool
) -> list[PreemptionTarget]:
    """Remove unneeded preemption targets from `targets`, and return it; all but the last are checked, in reverse order.

    Before the call, the snapshot excludes the usage of all targets; afterwards, only the usage of the returned ones.
    The last target takes the position of a removed one, as in Kueue.
    """
    for index in range(len(targets) - 2, -1, -1):
        candidate = targets[index].workload
        context.snapshot.release(candidate, 1)
        if context.fits(may_borrow=may_borrow):
            targets[index] = targets[-1]
            targets.pop()
        else:
            context.snapshot.release(candidate)
    return targets
