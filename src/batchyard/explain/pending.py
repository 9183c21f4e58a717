"""Explanation of a Workload without quota: the binding limit, holders of the missing quota, and admitting changes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_of, find_condition, format_amount, is_unlimited
from batchyard.api.views.workload import (
    ClusterQueueView,
    CohortView,
    FlavorResourceQuota,
    ResourceGroup,
    WorkloadView,
    workload_view,
)
from batchyard.base.instant import Instant
from batchyard.explain import blockers
from batchyard.explain.blockers import BORROWING, LENDING, MAXIMUM, NOMINAL, Shortage, shortage_of, unlent_quota
from batchyard.explain.document import (
    Binding,
    ExplanationReader,
    FlavorVerdict,
    Part,
    PodSetVerdicts,
    flavor_verdicts,
    holder_part,
    kind_of,
    pod_sets_part,
    slim,
)
from batchyard.explain.fork import DecisionLimitReached, Fork, HypotheticalChange, TrialOutcome
from batchyard.explain.proposals import (
    QUOTA,
    Proposal,
    ProposalCase,
    end_changes,
    flavor_changes,
    json_patch,
    priority_changes,
    propose_fixes,
    size_changes,
    smallest,
    strategy_changes,
)
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cluster_queue import PODS, ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Decision, Preempt
from batchyard.scheduling.preemption import alternatives
from batchyard.scheduling.preemption.alternatives import MissingQuotaHolder, holders_of, protection_reason
from batchyard.scheduling.preemption.context import PreemptionContext
from batchyard.scheduling.quota import QuotaNode, share_of
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle

# --- quota changes ---
#
# Quota raises that would admit a Workload: nominal quota, a borrowing limit, or the lending limit of a lender.


_NOMINAL: Final = "nominalQuota"
_BORROWING: Final = "borrowingLimit"
_LENDING: Final = "lendingLimit"
_FIELDS: Final = {_NOMINAL: "nominal", _BORROWING: "borrowing_limit", _LENDING: "lending_limit"}
#: Limits on the flavor combinations and on the lenders that are considered.
_CHOICES_MAX: Final = 3
_LENDERS_MAX: Final = 2

#: By flavor and resource: the requested amount, and the missing part of it.
Wants: TypeAlias = dict[tuple[str, str], tuple[int, int]]


class _QuotaField(NamedTuple):
    """A quota field of a ClusterQueue or Cohort that could be raised."""

    view: ClusterQueueView | CohortView
    node: QuotaNode
    field: str

    @property
    def kind(self) -> str:
        return "ClusterQueue" if isinstance(self.view, ClusterQueueView) else "Cohort"

    def quota(self, pair: tuple[str, str]) -> FlavorResourceQuota | None:
        """Return its quota for a flavor and resource."""
        found = (quota for group in self.view.groups for quota in group.quotas)
        return next((quota for quota in found if (quota.flavor, quota.resource) == pair), None)

    def value(self, pair: tuple[str, str]) -> int | None:
        """Return the value of the field; None if it is unset or unlimited."""
        quota = self.quota(pair)
        found: int | None = None if quota is None else getattr(quota, _FIELDS[self.field])
        return None if found is None or is_unlimited(found) else found

    def raised(self, amounts: Mapping[tuple[str, str], int]) -> HypotheticalChange:
        """Return the change that raises the field by these amounts."""
        groups = tuple([self._raised(group, amounts) for group in self.view.groups])
        if isinstance(self.view, ClusterQueueView):
            return HypotheticalChange(queues={self.view.name: replace(self.view, groups=groups)})
        return HypotheticalChange(cohorts={self.view.name: replace(self.view, groups=groups)})

    def _raised(self, group: ResourceGroup, amounts: Mapping[tuple[str, str], int]) -> ResourceGroup:
        quotas = []
        for quota in group.quotas:
            more = amounts.get((quota.flavor, quota.resource), 0)
            field = _FIELDS[self.field]
            quotas.append(quota._replace(**{field: getattr(quota, field) + more}) if more else quota)
        return replace(group, quotas=tuple(quotas))


def quota_changes(case: ProposalCase) -> Iterator[Proposal]:
    """Propose the smallest raises: for the flavor with the smallest shortage anywhere, else in its own queue."""
    for number, wants in enumerate(islice(_choices(case), _CHOICES_MAX)):
        lacking = {pair: missing for pair, (_, missing) in wants.items() if missing}
        if not lacking:
            continue
        case.fork.restore()
        places = list(_places(case.fork, list(lacking), case.limit))
        for place in places if number == 0 else [each for each in places if each.node is case.fork.queue.node][:1]:
            found = _tried(case, place, lacking)
            if found is None and place.node is case.fork.queue.node and len(wants) > len(lacking):
                # The currently missing amount may not suffice after Workloads ahead of it have taken quota.
                asked = {pair: missing for pair, (amount, missing) in wants.items() if amount}
                found = _tried(case, place, asked) if all(place.value(pair) is not None for pair in asked) else None
            if found is not None:
                yield found


def _choices(case: ProposalCase) -> Iterator[Wants]:
    """Yield the combinations of one usable flavor for each resource group, smallest shortage first."""
    groups: dict[int, dict[str, list[FlavorVerdict]]] = {}
    for pod_set in case.looks:
        for look in pod_set.looks:
            groups.setdefault(look.group, {}).setdefault(look.flavor, []).append(look)
    usable = []
    for flavors in groups.values():
        free = [_wants(looks) for looks in flavors.values() if not any(look.obstacle for look in looks)]
        usable.append(sorted(free, key=_lack))
    for chosen in product(*usable):
        merged: Wants = {}
        for wants in chosen:
            merged.update(wants)
        yield merged


def _wants(looks: Sequence[FlavorVerdict]) -> Wants:
    """Return what all pod sets together request of one flavor."""
    asked: dict[tuple[str, str], int] = {}
    free: dict[tuple[str, str], int] = {}
    for look in looks:
        for ask in look.asks:
            pair = look.flavor, ask.resource
            asked[pair] = asked.get(pair, 0) + ask.amount
            free[pair] = ask.free
    return {pair: (amount, max(0, amount - free[pair]) if amount else 0) for pair, amount in asked.items()}


def _lack(wants: Wants) -> tuple[bool, float]:
    """Return the distance from fitting: the largest missing share of a request."""
    shares = [missing / asked for asked, missing in wants.values() if asked]
    return max(shares, default=0.0) > 0, max(shares, default=0.0)


def _places(fork: Fork, pairs: Sequence[tuple[str, str]], limit: str) -> Iterator[_QuotaField]:
    snapshot, queue = fork.snapshot, fork.queue
    node, views = queue.node, snapshot.forest.views
    wanted = [_QuotaField(queue.view, node, _NOMINAL), _QuotaField(queue.view, node, _BORROWING)]
    for above in node.path[-2::-1]:
        if above.name in views:
            wanted.append(_QuotaField(views[above.name], above, _BORROWING))  # noqa: PERF401 - consistent with the other cases
    first = snapshot.id_of(*pairs[0])
    for kept in unlent_quota(node, first)[:_LENDERS_MAX]:
        lender = snapshot.queue_of.get(kept.node)
        view = lender.view if lender is not None else views[kept.node.name]
        wanted.append(_QuotaField(view, kept.node, _LENDING))
    if node.parent is not None and node.parent.name in views:
        wanted.append(_QuotaField(views[node.parent.name], node.parent, _NOMINAL))
    binding = {BORROWING: _BORROWING, LENDING: _LENDING}.get(limit, _NOMINAL)
    fitting = [place for place in wanted if all(place.value(pair) is not None for pair in pairs)]
    yield from sorted(fitting, key=lambda place: place.field != binding)


def _tried(case: ProposalCase, place: _QuotaField, lacking: Mapping[tuple[str, str], int]) -> Proposal | None:
    """Return the smallest raise of this field that admits the Workload, if any."""
    pairs = list(lacking)
    steps = _steps(case, pairs, [lacking[pair] for pair in pairs])

    def will_do(amounts: Sequence[int]) -> bool:
        return case.fork.admits(place.raised(dict(zip(pairs, amounts, strict=True))))

    found = smallest(will_do, steps)
    if found is None or not any(found):
        return None
    raised = {pair: more for pair, more in zip(pairs, found, strict=True) if more}
    return Proposal(QUOTA, _describe_raise(place, raised), (_patch(place, raised),))


def _steps(case: ProposalCase, pairs: Sequence[tuple[str, str]], missing: list[int]) -> list[list[int]]:
    """Return increasing guesses: the shortage, plus the requests of competing Workloads one by one."""
    steps, total = [missing], list(missing)
    for view in case.fork.others():
        asked = {PODS: sum(view.counts)}
        for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
            for resource, amount in pod_set.template.requests:
                asked[resource] = asked.get(resource, 0) + amount * count
        more = [asked.get(resource, 0) for _, resource in pairs]
        if any(more):
            total = [one + other for one, other in zip(total, more, strict=True)]
            steps.append(total)
    return steps


def _describe_raise(place: _QuotaField, raised: Mapping[tuple[str, str], int]) -> str:
    parts = []
    for (flavor, resource), more in raised.items():
        now = place.value((flavor, resource)) or 0
        figures = [format_amount(resource, each) for each in (now, now + more, more)]
        parts.append(
            f"{place.field} of {resource} in flavor {flavor} from {figures[0]} to {figures[1]} (+{figures[2]})"
        )
    return f"{place.kind} {place.view.name}: raise {' and '.join(parts)}"


def _patch(place: _QuotaField, raised: Mapping[tuple[str, str], int]) -> Mapping[str, Any]:
    operations = []
    for g, group in enumerate(place.view.groups):
        width = len(group.resources)
        for q, quota in enumerate(group.quotas):
            more = raised.get((quota.flavor, quota.resource))
            if more:
                value = format_amount(quota.resource, getattr(quota, _FIELDS[place.field]) + more)
                path = f"/spec/resourceGroups/{g}/flavors/{q // width}/resources/{q % width}/{place.field}"
                operations.append({"op": "replace", "path": path, "value": value})
    return json_patch(place.kind, place.view.name, operations)


PRIORITY: Final = "priority"
HEAD_OF_LINE: Final = "headOfLine"
PREEMPTION: Final = "waitingForPreemption"
TURN: Final = "turn"
HOLDERS_SHOWN: Final = 5
AHEAD_SHOWN: Final = 5
_HOLDERS_WEIGHED: Final = 200


@dataclass(slots=True)
class PendingSituation:
    """A pending Workload in a ClusterQueue, with the decision of a cycle and the verdicts on every flavor."""

    workload: Obj
    view: WorkloadView
    queue: ClusterQueue
    decision: Decision
    looks: Sequence[PodSetVerdicts]
    shortage: Shortage | None
    holders: Sequence[MissingQuotaHolder]
    request: PreemptionContext


class PendingExplainer:
    """Explains Workloads without a quota reservation, from the scheduler cache and the objects."""

    def __init__(self, index: SchedulerCache, policy: SchedulingPolicy, reader: Reader) -> None:
        self._index = index
        self._policy = policy
        self._reader = reader

    def explain(self, workload: Obj, now: Instant, asker: ExplanationReader) -> Part:
        """Return the parts of the document that explain why the Workload is pending."""
        queues = blockers.queues_of(workload, self._reader)
        blocker = blockers.blocker_of(workload, queues, self._index)
        if blocker is not None:
            return {"binding": blocker.document(), **self._remedies(workload, queues.cluster_queue_name)}
        queue = self._index.snapshot.queues.get(queues.cluster_queue_name)
        view = self._view(workload, queues.cluster_queue_name)
        if queue is None:
            message = f"ClusterQueue {queues.cluster_queue_name} doesn't exist"
            return {"binding": Binding(blockers.MISCONFIGURED, message, "LocalQueue", view.queue).document()}
        return self._of_queue(workload, view, queue, now, asker)

    def binding_in_line(self, key: str, queue: ClusterQueue, asker: ExplanationReader) -> Binding | None:
        """Return the shortage of a pending Workload, regardless of queue order; None if it fits."""
        namespace, _, name = key.partition("/")
        workload = self._reader.get(Key(scheme.WORKLOAD, namespace, name))
        if workload is None:
            return None
        situation = self._situation(workload, self._view(workload, queue.name), queue)
        return blockers.refusal_of(situation.decision, self._index) or self._limit(situation, asker)

    def _view(self, workload: Obj, queue: str) -> WorkloadView:
        """Return the Workload as the scheduler sees it."""
        view = workload_view(workload)
        waiting = self._index.queue_manager.pending.get(queue)
        found = None if waiting is None else waiting.get(view.key)
        return self._index.imagined(workload, view) if found is None else found.view

    def _of_queue(
        self, workload: Obj, view: WorkloadView, queue: ClusterQueue, now: Instant, asker: ExplanationReader
    ) -> Part:
        self._index.snapshot.settle()
        situation = self._situation(workload, view, queue)
        part: Part = {"clusterQueue": queue.name, "cohort": queue.view.cohort, "priority": view.priority}
        part["podSets"] = pod_sets_part(self._index.snapshot, queue.node, situation.looks)
        part["line"] = self._line(view.key, queue, asker)
        if self._policy.fair_sharing:
            part["shares"] = self._shares(queue, situation.holders)
        first = blockers.refusal_of(situation.decision, self._index) or blockers.failed_check(workload)
        first = first or blockers.held_back(view, now) or self._gate(workload)
        if first is not None:
            return {**part, "binding": first.document(), **self._remedies(workload, queue.name)}
        fork = Fork(self._index, self._policy, view, queue)
        try:
            return {**part, **self._weighed(situation, fork, asker)}
        finally:
            fork.close()

    def _weighed(self, situation: PendingSituation, fork: Fork, asker: ExplanationReader) -> Part:
        """Return the binding limit, the quota holders and the admitting changes, simulated in a fork."""
        baseline = _baseline(fork)
        binding = self._head_of_line(situation, asker) or self._waits_for_others(situation, baseline, asker)
        binding = binding or self._limit(situation, asker) or self._turn(situation, baseline, asker)
        part: Part = {"binding": binding.document(), **self._holders(situation, binding, asker)}
        if binding.limit != PREEMPTION and not baseline.is_admitted:
            part |= self._changes(situation, fork, asker)
        return part

    def _situation(self, workload: Obj, view: WorkloadView, queue: ClusterQueue) -> PendingSituation:
        index = self._index
        decision = blockers.decision_about(view, queue.name, index, self._policy)
        looks = flavor_verdicts(index.snapshot, queue, view, self._policy)
        shortage = shortage_of(looks, queue)
        request = PreemptionContext(view, queue, index.snapshot, (), ())
        holders: Sequence[MissingQuotaHolder] = ()
        if shortage is not None and shortage.look is not None and shortage.bound is not None:
            asks = [ask for ask in shortage.look.asks if ask.missing]
            contested = tuple([ask.fr for ask in asks])
            request = request._replace(usage=tuple([(ask.fr, ask.total) for ask in asks]), contested=contested)
            scope = shortage.bound.node if shortage.limit == BORROWING else queue.node.path[0]
            holders = holders_of(index.snapshot, scope, queue, contested)
        return PendingSituation(workload, view, queue, decision, looks, shortage, holders, request)

    # --- what binds ---

    def _gate(self, workload: Obj) -> Binding | None:
        reserved = find_condition(workload, lifecycle.QUOTA_RESERVED)
        if reserved is None or reserved["reason"] != lifecycle.WAITING_FOR_PODS_READY:
            return None
        return Binding(blockers.PODS_READY, str(reserved.get("message", "")))

    def _head_of_line(self, situation: PendingSituation, asker: ExplanationReader) -> Binding | None:
        """Return the head that blocks a StrictFIFO queue, and why that one is pending."""
        queue, waiting = situation.queue, self._index.queue_manager.pending[situation.queue.name]
        if waiting.get(situation.view.key) is None:
            return None
        if not queue.view.strict_fifo:
            return self._behind_preemptor(situation, waiting.preemptor, asker)
        front = waiting.front(1)
        if not front or front[0].key == situation.view.key:
            return None
        head = front[0].key
        name = asker.name_of(head)
        waits_for = self.binding_in_line(head, queue, asker)
        suffix = f"; that Workload waits: {waits_for.message}" if waits_for is not None else ""
        text = f"ClusterQueue {queue.name} is StrictFIFO, and {name} is ahead of it{suffix}"
        return Binding(HEAD_OF_LINE, text, "Workload", name)

    def _behind_preemptor(
        self, situation: PendingSituation, preemptor: str, asker: ExplanationReader
    ) -> Binding | None:
        """Return the preemptor that stays at the head of the queue, although this Workload would fit."""
        if not preemptor or preemptor == situation.view.key or not isinstance(situation.decision, Admit):
            return None
        name = asker.name_of(preemptor)
        text = f"{name} stays at the head of ClusterQueue {situation.queue.name} until its victims are gone"
        return Binding(HEAD_OF_LINE, text, "Workload", name)

    def _turn(self, situation: PendingSituation, baseline: TrialOutcome, asker: ExplanationReader) -> Binding:
        """Return the binding for a Workload that fits: at most the queue order keeps it pending."""
        queue = situation.queue.name
        if baseline.is_admitted:
            blocked = blockers.blocked_entry(self._index, asker)
            return blocked or Binding(TURN, "it fits and is admitted next", "ClusterQueue", queue)
        pending = self._index.queue_manager.pending
        fronts = [view.key for each in self._tree(situation) for view in pending[each.name].front(1)]
        names = list(dict.fromkeys([asker.name_of(key) for key in fronts if key != situation.view.key]))
        text = f"it would fit, but others are ahead and take or reserve the quota: {', '.join(names[:AHEAD_SHOWN])}"
        return Binding(TURN, text, "ClusterQueue", queue)

    def _waits_for_others(
        self, situation: PendingSituation, outcome: TrialOutcome, asker: ExplanationReader
    ) -> Binding | None:
        """Return a binding if the Workload is admitted without intervention, once preempted Workloads are gone."""
        decision = situation.decision
        going = [held.key for queue in self._tree(situation) for held in queue.workloads.values() if held.evicted]
        if isinstance(decision, Preempt):
            going += [target.workload.key for target in decision.targets if not target.workload.evicted]
        if not outcome.is_admitted or not (going or outcome.preempted):
            return None
        names = list(dict.fromkeys(map(asker.name_of, going or outcome.preempted)))
        shown = ", ".join(names[:HOLDERS_SHOWN])
        more = f" and {len(names) - HOLDERS_SHOWN} more" if len(names) > HOLDERS_SHOWN else ""
        return Binding(PREEMPTION, f"it waits for {shown}{more} to release quota", "ClusterQueue", situation.queue.name)

    def _tree(self, situation: PendingSituation) -> list[ClusterQueue]:
        return self._index.snapshot.queues_below(situation.queue.node.path[0])

    def _limit(self, situation: PendingSituation, asker: ExplanationReader) -> Binding | None:
        """Return the shortage of the Workload as a binding."""
        shortage, queue = situation.shortage, situation.queue
        if shortage is None:
            return None
        if shortage.unavailable:
            text = f"resource {shortage.unavailable} is in no resource group of ClusterQueue {queue.name}"
            return Binding(shortage.limit, text, "ClusterQueue", queue.name, resource=shortage.unavailable)
        look, ask, bound = shortage.look, shortage.ask, shortage.bound
        assert look is not None
        if ask is None or bound is None:
            return Binding(shortage.limit, _every_obstacle(situation), "ResourceFlavor", look.flavor, look.flavor)
        limit = self._with_priority(situation, bound.limit)
        kind, missing = kind_of(self._index.snapshot, bound.node), format_amount(ask.resource, bound.missing)
        text = _describe_shortage(situation, limit, f"{kind} {bound.node.name}", missing)
        return Binding(limit, text, kind, bound.node.name, look.flavor, ask.resource, missing)

    def _with_priority(self, situation: PendingSituation, limit: str) -> str:
        """Return `priority` if lower priorities of some quota holders would allow their preemption, else the limit."""
        if limit != NOMINAL or not situation.queue.view.preemption.is_allowed:
            return limit
        found = [self._stays(situation, holder) for holder in situation.holders[:_HOLDERS_WEIGHED]]
        return (
            PRIORITY if any(reason is not None and reason.rule == alternatives.PRIORITY for reason in found) else limit
        )

    def _stays(self, situation: PendingSituation, holder: MissingQuotaHolder) -> alternatives.ProtectionReason | None:
        return protection_reason(situation.request, holder.workload, fair_sharing=self._policy.fair_sharing)

    # --- the rest ---

    def _holders(self, situation: PendingSituation, binding: Binding, asker: ExplanationReader) -> Part:
        if binding.limit in {MAXIMUM, HEAD_OF_LINE, TURN}:
            return {}
        decision = situation.decision
        targets = {t.workload.key for t in decision.targets} if isinstance(decision, Preempt) else set[str]()
        parts = []
        for holder in situation.holders[:HOLDERS_SHOWN]:
            if holder.workload.evicted or holder.workload.key in targets:
                fate: Mapping[str, Any] = {"preempted": True}
            else:
                reason = self._stays(situation, holder)
                fate = slim(stays="" if reason is None else reason.text)
            parts.append(holder_part(self._index.snapshot, holder, asker, fate))
        return slim(holders=parts, holdersMore=max(0, len(situation.holders) - HOLDERS_SHOWN) or None)

    def _line(self, key: str, queue: ClusterQueue, asker: ExplanationReader) -> Part:
        waiting = self._index.queue_manager.pending[queue.name]
        if waiting.get(key) is None:
            return {"of": len(waiting)}
        place = waiting.place_of(key)
        ahead = [view.key for view in waiting.front(min(place, AHEAD_SHOWN) + 1) if view.key != key]
        names = [asker.name_of(each) for each in ahead[: min(place, AHEAD_SHOWN)]]
        return slim(position=place + 1, of=len(waiting), ahead=names, strategy=_strategy(queue))

    def _shares(self, queue: ClusterQueue, holders: Iterable[MissingQuotaHolder]) -> list[Part]:
        """Return the weighted shares under fair sharing: of its own queue, and of the queues of the holders."""
        queues = dict.fromkeys([queue, *[holder.workload.queue for holder in holders]])
        parts = []
        for each in list(queues)[: HOLDERS_SHOWN + 1]:
            share = share_of(each.node, self._index.snapshot.names)
            parts.append(
                slim(clusterQueue=each.name, weight=share.weight, share=share.rounded, resource=share.resource)
            )
        return parts

    def _changes(self, situation: PendingSituation, fork: Fork, asker: ExplanationReader) -> Part:
        """Return the changes that would admit the Workload, each simulated in the fork."""
        owner, shortage = self._owner(situation.workload), situation.shortage
        limit = shortage.limit if shortage is not None else ""
        case = ProposalCase(situation.workload, situation.view, situation.looks, fork, owner, limit)
        imagine = self._index.imagined
        classes = {c["metadata"]["name"]: c.get("value", 0) for c in self._reader.list(scheme.WORKLOAD_PRIORITY_CLASS)}
        searches: list[Callable[[], Iterator[Proposal]]] = [
            lambda: strategy_changes(case),
            lambda: flavor_changes(case, imagine),
            lambda: quota_changes(case),
            lambda: priority_changes(case, imagine, classes),
            lambda: size_changes(case, imagine),
            lambda: end_changes(case, situation.holders, asker.name_of),
        ]
        found: list[Part] = []
        is_cut = False
        for search in searches:
            fork.begin()
            try:
                found.extend(_change(proposal, fork) for proposal in search())
            except DecisionLimitReached:
                is_cut = True
        return slim(changes=found, changesEnd="the limit of simulated decisions was reached" if is_cut else "")

    def _remedies(self, workload: Obj, name: str) -> Part:
        """Return the changes that make the scheduler consider the Workload and admit it."""
        queue = self._index.snapshot.queues.get(name)
        if queue is None:
            return {}
        self._index.snapshot.settle()
        view = self._view(workload, name)
        fixes = propose_fixes(workload, view, queue, self._index, self._policy)
        return slim(changes=[each.document() for each in fixes])

    def _owner(self, workload: Obj) -> Obj | None:
        owner = controller_of(workload)
        if owner is None:
            return None
        kinds = {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}
        namespace = workload["metadata"].get("namespace", "")
        return self._reader.get(Key(kinds[owner["kind"]], namespace, owner["name"])) if owner["kind"] in kinds else None


def _change(proposal: Proposal, fork: Fork) -> Part:
    given = [f"once the {fork.left_out} ahead of it in line are gone"] if fork.left_out else []
    if fork.left_out_elsewhere:
        given.append(f"if none of {fork.left_out_elsewhere} others in its cohort takes the quota first")
    return {**proposal.document(), **slim(given=", ".join(given))}


def _strategy(queue: ClusterQueue) -> str:
    return "StrictFIFO" if queue.view.strict_fifo else "BestEffortFIFO"


def _baseline(fork: Fork) -> TrialOutcome:
    """Return the outcome without any change."""
    try:
        return fork.try_out()
    except DecisionLimitReached:
        return TrialOutcome()


def _every_obstacle(situation: PendingSituation) -> str:
    """Return the reasons why none of the flavors may be used."""
    texts = [look.obstacle for pod_set in situation.looks for look in pod_set.looks if look.obstacle]
    return "; ".join(dict.fromkeys(texts))


def _describe_shortage(situation: PendingSituation, limit: str, where: str, missing: str) -> str:
    """Describe a shortage of quota."""
    shortage = situation.shortage
    assert shortage is not None
    assert shortage.ask is not None
    assert shortage.look is not None
    ask, flavor = shortage.ask, shortage.look.flavor
    asked, free = (format_amount(ask.resource, each) for each in (ask.total, max(0, ask.free)))
    start = f"{asked} {ask.resource} of flavor {flavor} asked, {free} free, {missing} more needed"
    if limit == MAXIMUM:
        most = format_amount(ask.resource, ask.most)
        never = f"{situation.queue.name} can never have more than {most}"
        return f"{asked} {ask.resource} of flavor {flavor} asked, and {never}"
    words = {
        BORROWING: f"the borrowingLimit of {where} is reached",
        LENDING: f"the lendingLimit of {where} does not lend the unused quota",
        PRIORITY: "its holders do not have a lower priority",
    }
    return f"{start}: {words.get(limit, f'the quota of {where} is in use')}"
