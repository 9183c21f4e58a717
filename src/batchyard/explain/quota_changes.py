"""Quota raises that would admit a Workload: nominal quota, a borrowing limit, or the lending limit of a lender."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.quantity import format_amount, is_unlimited
from batchyard.api.views.queues import ClusterQueueView, CohortView, FlavorResourceQuota, ResourceGroup
from batchyard.explain.binding_limit import BORROWING, LENDING, unlent_quota
from batchyard.explain.flavor_breakdown import FlavorVerdict
from batchyard.explain.fork import Fork, HypotheticalChange
from batchyard.explain.proposals import QUOTA, Proposal, ProposalCase, json_patch, smallest
from batchyard.scheduling.flavor_requests import PODS
from batchyard.scheduling.quota import QuotaNode

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
