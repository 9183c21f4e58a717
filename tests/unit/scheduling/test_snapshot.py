"""The snapshot: up to date between cycles, with simulated changes reverted within cycles."""

from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.base import InvariantError
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.snapshot import Snapshot
from yard import SchedulerBench, cohort, group, queue


def company() -> SchedulerBench:
    """Root > team > a, b; root > c; 2 cpu each."""
    return SchedulerBench(
        cohort("team", 2, parent="company"),
        queue("a", 2, cohort="team"),
        queue("b", 2, cohort="team"),
        queue("c", 2, cohort="company"),
    )


def path(yard: SchedulerBench, name: str) -> str:
    return yard.snapshot.path_of(yard.snapshot.queues[name])


def usages(yard: SchedulerBench) -> dict[str, Any]:
    nodes = {**yard.snapshot.cohorts, **{name: q.node for name, q in yard.snapshot.queues.items()}}
    return {name: list(node.usage) for name, node in nodes.items()}


def test_path_leads_from_root_to_queue() -> None:
    yard = company()
    yard.put(queue("alone", 1))
    assert [path(yard, name) for name in ("a", "c", "alone")] == ["/company/team/a", "/company/c", "/alone"]


def test_cohort_exists_while_queue_references_it() -> None:
    yard = SchedulerBench(queue("a", 2, cohort="all"))
    assert list(yard.snapshot.cohorts) == ["all"]
    yard.put(queue("a", 2))
    assert list(yard.snapshot.cohorts) == []


def test_removed_cohort_object_loses_quota() -> None:
    yard = SchedulerBench(cohort("all", 5), queue("a", 2, cohort="all"))
    assert yard.free("a") == 7000
    yard.snapshot.remove_cohort("all")
    yard.snapshot.settle()
    assert yard.free("a") == 2000


def test_removal_of_missing_objects_is_ignored() -> None:
    yard = company()
    yard.snapshot.remove_cohort("nowhere")
    yard.snapshot.remove_queue("nowhere")
    yard.snapshot.remove_flavor("nowhere")
    rebuilds = yard.snapshot.rebuilds
    yard.snapshot.settle()
    assert yard.snapshot.rebuilds == rebuilds
    assert yard.snapshot.release("team/nobody") is None


def test_removed_queue_releases_its_workloads() -> None:
    yard = company()
    yard.hold("x", 4, "a")
    yard.snapshot.remove_queue("a")
    yard.snapshot.settle()
    assert (yard.snapshot.holder("team/x"), yard.free("b")) == (None, 6000)


def test_workload_is_counted_only_in_last_queue() -> None:
    yard = company()
    yard.hold("x", 4, "a")
    held = yard.hold("x", 1, "b")
    assert yard.snapshot.holder("team/x") is held
    assert (yard.used("a"), yard.used("b"), yard.used("company")) == (0, 1000, 1000)


def test_release_frees_quota_and_increments_generation() -> None:
    yard = company()
    held = yard.hold("x", 4, "a")
    before = yard.snapshot.queues["a"].generation
    assert yard.snapshot.release("team/x") is held
    assert (yard.used("a"), yard.snapshot.queues["a"].generation > before) == (0, True)


def test_usage_of_removed_flavor_is_counted() -> None:
    yard = company()
    yard.hold("x", 1, "a", flavor="gone")
    assert (yard.used("a", "gone"), yard.used("company", "gone")) == (1000, 1000)
    yard.snapshot.release("team/x")
    assert yard.used("company", "gone") == 0


def test_usage_before_settle_is_counted() -> None:
    yard = company()
    first, second = (yard.snapshot.id_of("new", resource) for resource in ("cpu", "gpu"))
    held = AdmittedWorkload("team/x", "uid-x", yard.snapshot.queues["a"], ((first, 5), (second, 7)))
    yard.snapshot.hold(held)
    yard.snapshot.settle()
    assert (yard.used("company", "new"), yard.used("company", "new", "gpu")) == (5, 7)


@pytest.mark.parametrize("parents", [{"x": "x"}, {"x": "y", "y": "x"}, {"x": "y", "y": "z", "z": "y"}], ids=str)
def test_cohort_cycle_excludes_its_queues(parents: dict[str, str]) -> None:
    yard = SchedulerBench(
        queue("cq", 2, cohort="x"), *(cohort(name, 1, parent=parent) for name, parent in parents.items())
    )
    assert yard.snapshot.queues["cq"].is_in_cohort_cycle
    assert path(yard, "cq") == "/cq"


def test_resolved_cohort_cycle_becomes_tree() -> None:
    yard = SchedulerBench(queue("cq", 2, cohort="x"), cohort("x", 1, parent="y"), cohort("y", 1, parent="x"))
    yard.put(cohort("y", 1))
    assert (path(yard, "cq"), yard.free("cq")) == ("/y/x/cq", 4000)


def test_queues_below_node_are_those_of_its_subtree() -> None:
    yard = company()
    below = {
        name: sorted(q.name for q in yard.snapshot.queues_below(yard.node(name))) for name in ("company", "team", "c")
    }
    assert below == {"company": ["a", "b", "c"], "team": ["a", "b"], "c": ["c"]}


def test_simulation_reverts_all_changes() -> None:
    yard = company()
    held = yard.hold("x", 3, "a")
    other = yard.hold("y", 1, "c")
    before = usages(yard)
    with yard.snapshot.what_if():
        yard.snapshot.remove_workload(held)
        with yard.snapshot.what_if():
            yard.snapshot.remove_usage(other.queue, other.usage)
            yard.snapshot.add_usage(held.queue, ((0, 2000),))
            assert yard.used("a") == 2000
        assert (yard.used("company"), held.key in held.queue.workloads) == (1000, False)
    assert (usages(yard), held.key in held.queue.workloads) == (before, True)


def remove_and_release(yard: SchedulerBench, held: AdmittedWorkload) -> None:
    with yard.snapshot.what_if():
        yard.snapshot.remove_workload(held)
        yard.snapshot.release(held.key)


def test_simulation_reverts_changes_after_error() -> None:
    yard = company()
    held = yard.hold("x", 3, "a")
    with pytest.raises(InvariantError):
        remove_and_release(yard, held)
    assert yard.used("a") == 3000


def test_simulation_rejects_permanent_changes() -> None:
    yard = company()
    held = yard.hold("x", 3, "a")
    with yard.snapshot.what_if():
        with pytest.raises(InvariantError):
            yard.snapshot.hold(held)
        with pytest.raises(InvariantError):
            yard.snapshot.release(held.key)


def test_simulated_removal_requires_what_if() -> None:
    yard = company()
    held = yard.hold("x", 3, "a")
    with pytest.raises(AssertionError):
        yard.snapshot.remove_workload(held)


def test_settle_rebuilds_only_after_change() -> None:
    snapshot = Snapshot()
    snapshot.settle()
    assert snapshot.rebuilds == 0
    snapshot.id_of("spot", "cpu")
    snapshot.settle()
    snapshot.settle()
    assert snapshot.rebuilds == 1


def test_resource_groups_follow_spec_of_queue() -> None:
    yard = SchedulerBench(queue("cq", groups=[group(one={"cpu": 2}), group(v100={"gpu": 1})]))
    assert list(yard.snapshot.queues["cq"].coverage.group_of) == ["cpu", "gpu"]
    yard.put(queue("cq", groups=[group(one={"memory": 2})]))
    assert list(yard.snapshot.queues["cq"].coverage.group_of) == ["memory"]
    assert yard.free("cq", "v100", "gpu") == 0


@pytest.mark.parametrize(
    ("edit", "is_renewed"),
    [
        pytest.param(queue("a", 4, cohort="all", queueingStrategy="StrictFIFO"), False, id="no quota"),
        pytest.param(queue("a", 5, cohort="all"), True, id="its quota"),
        pytest.param(queue("a", 4), True, id="its cohort"),
        pytest.param(queue("b", 5, cohort="all"), True, id="quota of another queue in its tree"),
        pytest.param(queue("b", 4), True, id="a queue that leaves its tree"),
        pytest.param(queue("c", 5), False, id="quota of another tree"),
        pytest.param(queue("d", 1, cohort="all"), True, id="a queue that joins its tree"),
        pytest.param(queue("d", 1), False, id="a queue without cohort"),
        pytest.param(cohort("all", 3), True, id="its Cohort"),
        pytest.param(cohort("other", 3), False, id="another Cohort"),
    ],
)
def test_quota_change_in_tree_increments_generation(edit: Obj, is_renewed: bool) -> None:
    yard = SchedulerBench(queue("a", 4, cohort="all"), queue("b", 4, cohort="all"), queue("c", 4))
    before = yard.snapshot.queues["a"].generation
    yard.put(edit)
    assert (yard.snapshot.queues["a"].generation > before) is is_renewed
