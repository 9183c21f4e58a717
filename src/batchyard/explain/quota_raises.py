"""Quota raises that would admit a Workload: nominal quota, a borrowing limit, or the lending limit of a lender."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.amounts import readable_amount
from batchyard.api.meta import format_amount, is_unlimited
from batchyard.api.views.workload import ClusterQueueView, CohortView, FlavorResourceQuota, ResourceGroup
from batchyard.explain.blockers import BORROWING, LENDING, find_retained_quotas
from batchyard.explain.cohort_simulation import CohortSimulation, HypotheticalChange
from batchyard.explain.document import FlavorOutcome
from batchyard.explain.proposals import QUOTA, ProposalCase, json_patch
from batchyard.explain.searches import Proposal, Search, SearchedAmount, search_smallest_amount, search_smallest_between
from batchyard.scheduling.cluster_queue import PODS
from batchyard.scheduling.quota import QuotaNode

_NOMINAL: Final = "nominalQuota"
_BORROWING: Final = "borrowingLimit"
_LENDING: Final = "lendingLimit"
_VIEW_FIELDS: Final = {_NOMINAL: "nominal", _BORROWING: "borrowing_limit", _LENDING: "lending_limit"}
#: Limits on the flavor combinations and on the lenders that are considered.
_COMBINATIONS_MAX: Final = 3
_LENDERS_MAX: Final = 2

#: The requested amount and the missing amount, by flavor and resource.
RequestedAmounts: TypeAlias = dict[tuple[str, str], tuple[int, int]]


class _QuotaField(NamedTuple):
    view: ClusterQueueView | CohortView
    node: QuotaNode
    field: str

    @property
    def kind(self) -> str:
        return "ClusterQueue" if isinstance(self.view, ClusterQueueView) else "Cohort"

    def quota(self, quota_key: tuple[str, str]) -> FlavorResourceQuota | None:
        quotas = (quota for group in self.view.groups for quota in group.quotas)
        return next((quota for quota in quotas if (quota.flavor, quota.resource) == quota_key), None)

    def value(self, quota_key: tuple[str, str]) -> int | None:
        quota = self.quota(quota_key)
        field_value: int | None = None if quota is None else getattr(quota, _VIEW_FIELDS[self.field])
        return None if field_value is None or is_unlimited(field_value) else field_value

    def raise_by(self, increase_by_key: Mapping[tuple[str, str], int]) -> HypotheticalChange:
        groups = tuple([self._raise_in_group(group, increase_by_key) for group in self.view.groups])
        if isinstance(self.view, ClusterQueueView):
            return HypotheticalChange(queues={self.view.name: replace(self.view, groups=groups)})
        return HypotheticalChange(cohorts={self.view.name: replace(self.view, groups=groups)})

    def _raise_in_group(self, group: ResourceGroup, increase_by_key: Mapping[tuple[str, str], int]) -> ResourceGroup:
        quotas = []
        for quota in group.quotas:
            increase = increase_by_key.get((quota.flavor, quota.resource), 0)
            view_field = _VIEW_FIELDS[self.field]
            quotas.append(quota._replace(**{view_field: getattr(quota, view_field) + increase}) if increase else quota)
        return replace(group, quotas=tuple(quotas))


def propose_quota_raises(proposal_case: ProposalCase) -> Search:
    """Search for the smallest quota raises in the ClusterQueue or its cohort tree that would admit the Workload."""
    for number, amounts in enumerate(islice(_flavor_combinations(proposal_case), _COMBINATIONS_MAX)):
        shortfall_by_key = {quota_key: shortfall for quota_key, (_, shortfall) in amounts.items() if shortfall}
        if not shortfall_by_key:
            continue
        proposal_case.simulation.restore_quota_objects()
        quota_fields = list(
            _raisable_fields(proposal_case.simulation, list(shortfall_by_key), proposal_case.limit_kind)
        )
        own_quota_fields = [each for each in quota_fields if each.node is proposal_case.simulation.queue.node]
        for quota_field in quota_fields if number == 0 else own_quota_fields[:1]:
            proposal = yield from _minimal_raise(proposal_case, quota_field, shortfall_by_key)
            if (
                proposal is None
                and quota_field.node is proposal_case.simulation.queue.node
                and len(amounts) > len(shortfall_by_key)
            ):
                # The currently missing amount may not suffice after Workloads ahead of it have taken quota.
                shortfalls = {quota_key: shortfall for quota_key, (amount, shortfall) in amounts.items() if amount}
                if all(quota_field.value(quota_key) is not None for quota_key in shortfalls):
                    proposal = yield from _minimal_raise(proposal_case, quota_field, shortfalls)
            if proposal is not None:
                yield proposal


def _flavor_combinations(proposal_case: ProposalCase) -> Iterator[RequestedAmounts]:
    outcomes_by_group: dict[int, dict[str, list[FlavorOutcome]]] = {}
    for pod_set in proposal_case.outcomes:
        for outcome in pod_set.outcomes:
            outcomes_by_group.setdefault(outcome.group_index, {}).setdefault(outcome.flavor, []).append(outcome)
    usable_by_group = []
    for flavors in outcomes_by_group.values():
        usable_flavors = [each for each in flavors.values() if not any(outcome.obstacle for outcome in each)]
        usable_by_group.append(sorted(map(_amounts_in_flavor, usable_flavors), key=_shortage_rank))
    for combination in product(*usable_by_group):
        merged_amounts: RequestedAmounts = {}
        for amounts in combination:
            merged_amounts.update(amounts)
        yield merged_amounts


def _amounts_in_flavor(outcomes: Sequence[FlavorOutcome]) -> RequestedAmounts:
    requested_amounts: dict[tuple[str, str], int] = {}
    available_quota: dict[tuple[str, str], int] = {}
    for outcome in outcomes:
        for request in outcome.requests:
            quota_key = outcome.flavor, request.resource
            requested_amounts[quota_key] = requested_amounts.get(quota_key, 0) + request.amount
            available_quota[quota_key] = request.free_quota
    return {
        quota_key: (amount, max(0, amount - available_quota[quota_key]) if amount else 0)
        for quota_key, amount in requested_amounts.items()
    }


def _shortage_rank(amounts: RequestedAmounts) -> tuple[bool, float]:
    missing_fractions = [shortfall / request_amount for request_amount, shortfall in amounts.values() if request_amount]
    return max(missing_fractions, default=0.0) > 0, max(missing_fractions, default=0.0)


def _raisable_fields(
    simulation: CohortSimulation, quota_keys: Sequence[tuple[str, str]], limit_kind: str
) -> Iterator[_QuotaField]:
    snapshot, queue = simulation.snapshot, simulation.queue
    node, views = queue.node, snapshot.forest.views
    quota_fields = [_QuotaField(queue.view, node, _NOMINAL), _QuotaField(queue.view, node, _BORROWING)]
    for ancestor in node.path[-2::-1]:
        if ancestor.name in views:
            quota_fields.append(_QuotaField(views[ancestor.name], ancestor, _BORROWING))  # noqa: PERF401 - consistent with the other cases
    flavor_resource = snapshot.flavor_resource_id(*quota_keys[0])
    for retained in find_retained_quotas(node, flavor_resource)[:_LENDERS_MAX]:
        lender = snapshot.queue_of.get(retained.node)
        view = lender.view if lender is not None else views[retained.node.name]
        quota_fields.append(_QuotaField(view, retained.node, _LENDING))
    if node.parent is not None and node.parent.name in views:
        quota_fields.append(_QuotaField(views[node.parent.name], node.parent, _NOMINAL))
    binding_field = {BORROWING: _BORROWING, LENDING: _LENDING}.get(limit_kind, _NOMINAL)
    raisable = [each for each in quota_fields if all(each.value(quota_key) is not None for quota_key in quota_keys)]
    yield from sorted(raisable, key=lambda each: each.field != binding_field)


def _minimal_raise(
    proposal_case: ProposalCase, quota_field: _QuotaField, shortfall_by_key: Mapping[tuple[str, str], int]
) -> Generator[HypotheticalChange, bool, Proposal | None]:
    quota_keys = list(shortfall_by_key)
    raise_steps = _quota_raises_to_try(
        proposal_case, quota_keys, [shortfall_by_key[quota_key] for quota_key in quota_keys]
    )

    def raise_by(increases: Sequence[int]) -> HypotheticalChange:
        return quota_field.raise_by(dict(zip(quota_keys, increases, strict=True)))

    increases, is_minimal = yield from _search_smallest_amounts(raise_by, raise_steps)
    if not any(increases):
        return None
    increase_by_key = {
        quota_key: increase for quota_key, increase in zip(quota_keys, increases, strict=True) if increase
    }
    text = _describe_raise(quota_field, increase_by_key, shortfall_by_key)
    return Proposal(QUOTA, text, (_raise_patch(quota_field, increase_by_key),), is_minimal)


def _search_smallest_amounts(
    change_with: Callable[[Sequence[int]], HypotheticalChange], start_amounts: Sequence[Sequence[int]]
) -> Generator[HypotheticalChange, bool, tuple[Sequence[int], bool]]:
    """Search for amounts that admit the Workload, and reduce each of them as far as possible.
    `start_amounts` are lists of amounts in ascending order: if the first list does not admit the Workload, the smallest
    list that admits it is searched. Return the reduced amounts, () if even the last list does not admit the Workload,
    and whether the amounts are minimal: not if the limit of decisions ended the search.
    """
    if (yield change_with(start_amounts[0])):
        step = SearchedAmount(0)
    elif len(start_amounts) > 1 and (yield change_with(start_amounts[-1])):
        step = yield from search_smallest_between(
            lambda index: change_with(start_amounts[index]), 1, len(start_amounts) - 1
        )
    else:
        return (), True
    amounts, is_minimal, has_changed = list(start_amounts[step.amount]), step.is_minimal, True
    while has_changed and is_minimal:
        has_changed = False
        for dimension, amount in enumerate(amounts):
            smallest = yield from search_smallest_amount(
                partial(_change_in_dimension, change_with, amounts, dimension), amount
            )
            has_changed |= smallest.amount < amount and len(amounts) > 1
            is_minimal = is_minimal and smallest.is_minimal
            amounts[dimension] = smallest.amount
    return amounts, is_minimal


def _change_in_dimension(
    change_with: Callable[[Sequence[int]], HypotheticalChange], amounts: Sequence[int], dimension: int, amount: int
) -> HypotheticalChange:
    return change_with([*amounts[:dimension], amount, *amounts[dimension + 1 :]])


def _quota_raises_to_try(
    proposal_case: ProposalCase, quota_keys: Sequence[tuple[str, str]], shortfalls: list[int]
) -> list[list[int]]:
    """Return the quota raises to try, each as a list of amounts for `quota_keys`, in ascending order.

    The first raises are the shortfalls. Each next one adds the requests of another pending Workload.
    """
    raise_steps, total_amounts = [shortfalls], list(shortfalls)
    for view in proposal_case.simulation.other_pending_views():
        requests = {PODS: sum(view.counts)}
        for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
            for resource, amount in pod_set.template.requests:
                requests[resource] = requests.get(resource, 0) + amount * count
        competing_amounts = [requests.get(resource, 0) for _, resource in quota_keys]
        if any(competing_amounts):
            total_amounts = [
                total + competing_amount
                for total, competing_amount in zip(total_amounts, competing_amounts, strict=True)
            ]
            raise_steps.append(total_amounts)
    return raise_steps


def _describe_raise(
    field: _QuotaField, increase_by_key: Mapping[tuple[str, str], int], shortfall_by_key: Mapping[tuple[str, str], int]
) -> str:
    change_texts = []
    for (flavor, resource), increase in increase_by_key.items():
        current_value, others_amount = (
            field.value((flavor, resource)) or 0,
            increase - shortfall_by_key[flavor, resource],
        )
        old_text, new_text, delta, others_text = [
            readable_amount(resource, each)
            for each in (current_value, current_value + increase, increase, others_amount)
        ]
        others_note = f", {others_text} of it for jobs admitted first" if others_amount > 0 else ""
        values_text = f"from {old_text} to {new_text} (+{delta}{others_note})"
        change_texts.append(f"{field.field} of {resource} in flavor {flavor} {values_text}")
    return f"{field.kind} {field.view.name}: raise {' and '.join(change_texts)}"


def _raise_patch(quota_field: _QuotaField, increase_by_key: Mapping[tuple[str, str], int]) -> Mapping[str, Any]:
    operations = []
    for group_number, group in enumerate(quota_field.view.groups):
        width = len(group.resources)
        for number, quota in enumerate(group.quotas):
            increase = increase_by_key.get((quota.flavor, quota.resource))
            if increase:
                value = format_amount(quota.resource, getattr(quota, _VIEW_FIELDS[quota_field.field]) + increase)
                path = f"/spec/resourceGroups/{group_number}/flavors/{number // width}/resources/{number % width}"
                operations.append({"op": "replace", "path": f"{path}/{quota_field.field}", "value": value})
    return json_patch(quota_field.kind, quota_field.view.name, operations)


# Quota for resources that no resource group of the ClusterQueue covers.


_COVERAGE_FLAVORS_MAX: Final = 4


def propose_coverage(proposal_case: ProposalCase) -> Search:
    """Search for the smallest quotas of uncovered resources, in one flavor of the queue, that admit the Workload."""
    if not any(pod_set.uncovered_resource for pod_set in proposal_case.outcomes):
        return
    view = proposal_case.simulation.queue.view
    covered_resources = {resource for group in view.groups for resource in group.resources}
    amount_by_resource: dict[str, int] = {}
    for pod_set, count in zip(proposal_case.view.pod_sets, proposal_case.view.counts, strict=True):
        for resource, amount in pod_set.template.requests:
            if resource not in covered_resources and amount:
                amount_by_resource[resource] = amount_by_resource.get(resource, 0) + amount * count
    resources = tuple(amount_by_resource)
    locations = [(number, flavor) for number, group in enumerate(view.groups) for flavor in group.flavors]
    for group_number, flavor in locations[:_COVERAGE_FLAVORS_MAX]:
        change_with = partial(_cover_resources, view, group_number, flavor, resources)
        amounts, is_minimal = yield from _search_smallest_amounts(change_with, [list(amount_by_resource.values())])
        if amounts:
            new_quotas = list(zip(resources, amounts, strict=True))
            quota_text = " and ".join(f"{readable_amount(*each)} {each[0]}" for each in new_quotas)
            text = f"ClusterQueue {view.name}: cover {quota_text} in flavor {flavor}"
            quota_by_resource = {name: format_amount(name, amount) for name, amount in new_quotas}
            yield Proposal(QUOTA, text, (_coverage_patch(view, group_number, flavor, quota_by_resource),), is_minimal)
            return


def _cover_resources(
    view: ClusterQueueView, group_number: int, flavor: str, resources: Sequence[str], amounts: Sequence[int]
) -> HypotheticalChange:
    group = view.groups[group_number]
    quotas = []
    for each in group.flavors:
        quotas += [quota for quota in group.quotas if quota.flavor == each]
        quotas += [
            FlavorResourceQuota(each, resource, amount if each == flavor else 0, None, None)
            for resource, amount in zip(resources, amounts, strict=True)
        ]
    larger_group = replace(group, resources=(*group.resources, *resources), quotas=tuple(quotas))
    groups = (*view.groups[:group_number], larger_group, *view.groups[group_number + 1 :])
    return HypotheticalChange(queues={view.name: replace(view, groups=groups)})


def _coverage_patch(
    view: ClusterQueueView, group_number: int, flavor: str, quota_by_resource: Mapping[str, str]
) -> Mapping[str, Any]:
    path = f"/spec/resourceGroups/{group_number}"
    operations: list[Mapping[str, Any]] = [
        {"op": "add", "path": f"{path}/coveredResources/-", "value": resource} for resource in quota_by_resource
    ]
    for number, each in enumerate(view.groups[group_number].flavors):
        for resource, amount in quota_by_resource.items():
            value = {"name": resource, "nominalQuota": amount if each == flavor else "0"}
            operations.append({"op": "add", "path": f"{path}/flavors/{number}/resources/-", "value": value})
    return json_patch("ClusterQueue", view.name, operations)
