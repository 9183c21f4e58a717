"""Quota arithmetic over random trees: compared with its definition, and checked for consistency."""

from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api.views.workload import (
    ClusterQueueView,
    CohortView,
    FlavorFungibility,
    FlavorResourceQuota,
    PreemptionRules,
    ResourceGroup,
)
from batchyard.scheduling.quota import (
    QuotaNode,
    available,
    cached_available_amounts,
    change_usage,
    fits_in_quota,
    is_borrowing_with,
    is_within_nominal,
    local_available,
    lowest_fitting_height,
    request_to_parent,
)
from batchyard.scheduling.snapshot import Snapshot
from batchyard.sim.invariants.object_states import QuotaDefinition, QuotaKey
from properties.worlds import examples

PAIRS: list[QuotaKey] = [("f0", "cpu"), ("f1", "cpu")]
AMOUNT = st.integers(0, 8)
LIMIT = st.none() | AMOUNT
MORE = settings(max_examples=3 * examples())


class QuotaTrees(NamedTuple):
    """A settled snapshot, and the definition of the same trees."""

    snapshot: Snapshot
    defined: QuotaDefinition

    def use(self, queue: str, amounts: dict[QuotaKey, int], key: str = "w") -> None:
        """Add usage to a ClusterQueue, in the snapshot and in the definition."""
        for pair, amount in amounts.items():
            change_usage(self.snapshot.queues[queue].node, ((self.snapshot.flavor_resource_id(*pair), amount),), 1)
        self.defined.holders.setdefault(f"queue/{queue}", {})[key] = amounts

    def nodes(self) -> dict[str, QuotaNode]:
        """Return all nodes by their names in the definition."""
        cohorts = {f"cohort/{name}": node for name, node in self.snapshot.cohorts.items()}
        return {**cohorts, **{f"queue/{name}": queue.node for name, queue in self.snapshot.queues.items()}}


def groups(draw: st.DrawFn, *, has_parent: bool) -> tuple[ResourceGroup, ...]:
    """Draw a resource group with quota for some flavors."""
    limits = LIMIT if has_parent else st.none()
    chosen = [pair for pair in PAIRS if draw(st.booleans())]
    quotas = tuple(FlavorResourceQuota(*pair, draw(AMOUNT), draw(limits), draw(limits)) for pair in chosen)
    return (ResourceGroup(("cpu",), tuple(flavor for flavor, _ in chosen), quotas),)


@st.composite
def forests(draw: st.DrawFn) -> QuotaTrees:
    """Draw up to four Cohorts in trees of any shape, up to four ClusterQueues below or outside them, and usage."""
    names = [f"c{n}" for n in range(draw(st.integers(0, 4)))]
    cohorts = []
    for number, name in enumerate(names):
        parent = draw(st.sampled_from([*names[:number], ""])) if number else ""
        cohorts.append(CohortView(name, parent, groups(draw, has_parent=bool(parent)), 1.0))
    queues = []
    for number in range(draw(st.integers(1, 4))):
        cohort = draw(st.sampled_from([*reversed(names), ""]))
        queues.append(_queue(f"q{number}", cohort, groups(draw, has_parent=bool(cohort))))
    snapshot = Snapshot()
    for pair in PAIRS:
        snapshot.flavor_resource_id(*pair)
    for view in cohorts:
        snapshot.put_cohort(view)
    for queue in queues:
        snapshot.put_queue(queue)
    snapshot.rebuild_if_changed()
    forest = QuotaTrees(snapshot, QuotaDefinition(queues, cohorts))
    for queue in queues:
        forest.use(queue.name, {pair: draw(AMOUNT) for pair in PAIRS})
    return forest


def _queue(name: str, cohort: str, of: tuple[ResourceGroup, ...]) -> ClusterQueueView:
    return ClusterQueueView(name, cohort, of, False, None, PreemptionRules(), FlavorFungibility(), "None", 1.0, ())


def figures(forest: QuotaTrees) -> dict[str, Any]:
    """Return all values that depend on usage."""
    return {name: list(node.usage) for name, node in forest.nodes().items()}


@MORE
@given(forests())
def test_quota_values_match_definition(forest: QuotaTrees) -> None:
    defined = forest.defined
    for name, node in forest.nodes().items():
        for fr, pair in enumerate(PAIRS):
            ours = (
                node.subtree_quota[fr],
                node.local_quota[fr],
                node.usage[fr],
                node.potential_quota[fr],
                available(node, fr),
            )
            figures_of = (
                defined.subtree_quota,
                defined.local_quota,
                defined.usage,
                defined.potential_available,
                defined.available,
            )
            assert ours == tuple(figure(name, pair) for figure in figures_of), (name, pair)


@MORE
@given(forests(), st.sampled_from(PAIRS), st.integers(-4, 9))
def test_usage_change_and_its_reverse_cancel_out(forest: QuotaTrees, pair: QuotaKey, amount: int) -> None:
    before = figures(forest)
    for queue in forest.snapshot.queues.values():
        usage = ((forest.snapshot.flavor_resource_id(*pair), amount),)
        change_usage(queue.node, usage, 1)
        change_usage(queue.node, usage, -1)
    assert figures(forest) == before


@given(forests())
def test_rebuilt_tree_keeps_usage(forest: QuotaTrees) -> None:
    before, rebuilds = figures(forest), forest.snapshot.rebuild_count
    forest.snapshot.flavor_resource_id("f2", "cpu")
    forest.snapshot.rebuild_if_changed()
    assert forest.snapshot.rebuild_count == rebuilds + 1
    assert {name: usage[: len(PAIRS)] for name, usage in figures(forest).items()} == before


@given(forests())
def test_unused_tree_has_potential_available(forest: QuotaTrees) -> None:
    for name, queue in forest.snapshot.queues.items():
        for pair in PAIRS:
            forest.use(name, {pair: -queue.node.usage[forest.snapshot.flavor_resource_id(*pair)]}, key=f"-{pair}")
    for node in forest.nodes().values():
        assert [available(node, fr) for fr in range(len(PAIRS))] == node.potential_quota


@MORE
@given(forests(), st.sampled_from(PAIRS), st.integers(1, 9))
def test_added_usage_reduces_available_quota_by_same_amount(forest: QuotaTrees, pair: QuotaKey, amount: int) -> None:
    fr, nodes = forest.snapshot.flavor_resource_id(*pair), forest.nodes()
    for queue in forest.snapshot.queues.values():
        before = {name: available(node, fr) for name, node in nodes.items()}
        if amount > before[f"queue/{queue.name}"]:
            continue
        change_usage(queue.node, ((fr, amount),), 1)
        after = {name: available(node, fr) for name, node in nodes.items()}
        assert after[f"queue/{queue.name}"] == before[f"queue/{queue.name}"] - amount
        assert all(after[name] >= min(0, before[name]) for name in nodes)


@MORE
@given(forests(), st.sampled_from(PAIRS), st.integers(0, 9))
def test_fit_and_borrowing_follow_from_subtree_quota(forest: QuotaTrees, pair: QuotaKey, amount: int) -> None:
    fr, defined = forest.snapshot.flavor_resource_id(*pair), forest.defined
    for name, node in forest.nodes().items():
        used, subtree = defined.usage(name, pair), defined.subtree_quota(name, pair)
        own = max(0, defined.local_quota(name, pair) - used)
        assert is_borrowing_with(node, fr, amount) == (used + amount > subtree)
        assert is_within_nominal(node, (fr,)) == (used <= subtree)
        assert local_available(node, fr) == own
        assert fits_in_quota(node, ((fr, amount),)) == (used + amount <= subtree)
        assert request_to_parent(node, ((fr, amount),)) == ((fr, max(0, amount - own)),)


@given(forests(), st.tuples(AMOUNT, AMOUNT))
def test_requests_fit_together_when_each_request_fits(forest: QuotaTrees, amounts: tuple[int, int]) -> None:
    frs = [forest.snapshot.flavor_resource_id(*pair) for pair in PAIRS]
    requests = tuple(zip(frs, amounts, strict=True))
    for node in forest.nodes().values():
        assert is_within_nominal(node, frs) == all(is_within_nominal(node, (fr,)) for fr in frs)
        assert fits_in_quota(node, requests) == all(fits_in_quota(node, (request,)) for request in requests)
        assert request_to_parent(node, requests) == tuple(
            request_to_parent(node, (request,))[0] for request in requests
        )


@MORE
@given(forests(), st.sampled_from(PAIRS), st.integers(0, 9))
def test_quota_is_found_in_lowest_fitting_subtree(forest: QuotaTrees, pair: QuotaKey, amount: int) -> None:
    fr, defined = forest.snapshot.flavor_resource_id(*pair), forest.defined
    for name, queue in forest.snapshot.queues.items():
        path = defined.path(f"queue/{name}")
        wanted, place = amount, path[-1]
        for place in reversed(path):
            if defined.usage(place, pair) + wanted <= defined.subtree_quota(place, pair) or place == path[0]:
                break
            wanted -= max(0, defined.local_quota(place, pair) - defined.usage(place, pair))
        is_found = defined.usage(place, pair) + wanted <= defined.subtree_quota(place, pair)
        expected = height(defined, place), len(path) > 1 and place != path[0] if is_found else False
        assert lowest_fitting_height(queue.node, fr, amount) == expected


@MORE
@given(forests(), st.lists(st.tuples(st.integers(0, 3), st.sampled_from(PAIRS), AMOUNT, st.booleans()), max_size=4))
def test_cached_available_quota_is_correct_after_each_change(
    forest: QuotaTrees, changes: list[tuple[int, QuotaKey, int, bool]]
) -> None:
    snapshot, queues = forest.snapshot, list(forest.snapshot.queues.values())
    fill_in(forest)
    with snapshot.what_if():
        for number, pair, amount, adds in changes:
            queue, fr = queues[number % len(queues)], snapshot.flavor_resource_id(*pair)
            if adds:
                snapshot.add_usage(queue, ((fr, amount),))
            else:
                snapshot.remove_usage(queue, ((fr, min(amount, queue.node.usage[fr])),))
            fill_in(forest)
    fill_in(forest)


def fill_in(forest: QuotaTrees) -> None:
    """Fill in the missing cached values of each node, and check the existing ones."""
    for node in forest.nodes().values():
        known = cached_available_amounts(node)
        for fr in range(len(PAIRS)):
            assert known.setdefault(fr, available(node, fr)) == available(node, fr), node.name


@given(forests(), st.integers(0, 9))
def test_borrowing_fits_at_single_height_beyond_own_quota(forest: QuotaTrees, amount: int) -> None:
    for queue in forest.snapshot.queues.values():
        node = queue.node
        for fr in range(len(PAIRS)):
            if node.borrowing_height is not None and is_borrowing_with(node, fr, amount):
                assert lowest_fitting_height(node, fr, amount) == (node.borrowing_height, False)


@given(forests())
def test_potential_quota_is_at_least_subtree_quota(forest: QuotaTrees) -> None:
    for node in forest.nodes().values():
        assert all(most >= own for most, own in zip(node.potential_quota, node.subtree_quota, strict=True))


def height(defined: QuotaDefinition, node: str) -> int:
    """Return the number of steps to the deepest node below."""
    return max((height(defined, child) + 1 for child in defined.nodes[node].children), default=0)


@MORE
@given(forests(), st.lists(st.tuples(st.integers(0, 3), st.sampled_from(PAIRS), AMOUNT, st.booleans()), max_size=6))
def test_what_if_changes_are_undone_exactly(forest: QuotaTrees, tries: list[tuple[int, QuotaKey, int, bool]]) -> None:
    snapshot = forest.snapshot
    queues = list(snapshot.queues.values())
    before = figures(forest)
    with snapshot.what_if():
        for number, pair, amount, adds in tries:
            change = snapshot.add_usage if adds else snapshot.remove_usage
            change(queues[number % len(queues)], ((snapshot.flavor_resource_id(*pair), amount),))
        inside = figures(forest)
        with snapshot.what_if():
            snapshot.add_usage(queues[0], ((0, 5), (1, 3)))
        assert figures(forest) == inside
    assert figures(forest) == before


@given(forests(), AMOUNT, LIMIT, LIMIT)
def test_quota_edit_updates_trees(
    forest: QuotaTrees, nominal: int, borrowing_limit: int | None, lending_limit: int | None
) -> None:
    snapshot, defined = forest.snapshot, forest.defined
    views = [queue.view for queue in snapshot.queues.values()]
    first = views[0]
    if not first.cohort or not first.groups[0].quotas:
        return
    limits = borrowing_limit, lending_limit
    quotas = tuple(
        FlavorResourceQuota(quota.flavor, quota.resource, nominal, *limits) for quota in first.groups[0].quotas
    )
    views[0] = replace(first, groups=(replace(first.groups[0], quotas=quotas),))
    snapshot.put_queue(views[0])
    snapshot.rebuild_if_changed()
    cohorts = [CohortView(n, _parent(defined, n), _groups_of(defined, n), 1.0) for n in snapshot.cohorts]
    edited = QuotaTrees(snapshot, QuotaDefinition(views, cohorts))
    edited.defined.holders.update(defined.holders)
    for name, node in edited.nodes().items():
        for fr, pair in enumerate(PAIRS):
            assert available(node, fr) == edited.defined.available(name, pair)


def _parent(defined: QuotaDefinition, cohort: str) -> str:
    return defined.nodes[f"cohort/{cohort}"].parent.removeprefix("cohort/")


def _groups_of(defined: QuotaDefinition, cohort: str) -> tuple[ResourceGroup, ...]:
    return (ResourceGroup(("cpu",), (), tuple(defined.nodes[f"cohort/{cohort}"].quotas.values())),)
