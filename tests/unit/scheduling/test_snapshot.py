"""The snapshot: up to date between cycles, with simulated changes reverted within cycles."""

from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.base.primitives import InvariantError
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


def path(bench: SchedulerBench, name: str) -> str:
    return bench.snapshot.path_of(bench.snapshot.queues[name])


def usages(bench: SchedulerBench) -> dict[str, Any]:
    nodes = {**bench.snapshot.cohorts, **{name: q.node for name, q in bench.snapshot.queues.items()}}
    return {name: list(node.usage) for name, node in nodes.items()}


def test_path_leads_from_root_to_queue() -> None:
    bench = company()
    bench.put(queue("alone", 1))
    assert [path(bench, name) for name in ("a", "c", "alone")] == ["/company/team/a", "/company/c", "/alone"]


def test_cohort_exists_while_queue_references_it() -> None:
    bench = SchedulerBench(queue("a", 2, cohort="all"))
    assert list(bench.snapshot.cohorts) == ["all"]
    bench.put(queue("a", 2))
    assert list(bench.snapshot.cohorts) == []


def test_removed_cohort_object_loses_quota() -> None:
    bench = SchedulerBench(cohort("all", 5), queue("a", 2, cohort="all"))
    assert bench.free("a") == 7000
    bench.snapshot.remove_cohort("all")
    bench.snapshot.rebuild_if_changed()
    assert bench.free("a") == 2000


def test_removal_of_missing_objects_is_ignored() -> None:
    bench = company()
    bench.snapshot.remove_cohort("nowhere")
    bench.snapshot.remove_queue("nowhere")
    bench.snapshot.remove_flavor("nowhere")
    rebuilds = bench.snapshot.rebuild_count
    bench.snapshot.rebuild_if_changed()
    assert bench.snapshot.rebuild_count == rebuilds
    assert bench.snapshot.remove_holder("team/nobody") is None


def test_removed_queue_releases_its_workloads() -> None:
    bench = company()
    bench.hold("x", 4, "a")
    bench.snapshot.remove_queue("a")
    bench.snapshot.rebuild_if_changed()
    assert (bench.snapshot.holder("team/x"), bench.free("b")) == (None, 6000)


def test_workload_is_counted_only_in_last_queue() -> None:
    bench = company()
    bench.hold("x", 4, "a")
    held = bench.hold("x", 1, "b")
    assert bench.snapshot.holder("team/x") is held
    assert (bench.used("a"), bench.used("b"), bench.used("company")) == (0, 1000, 1000)


def test_release_frees_quota_and_increments_generation() -> None:
    bench = company()
    held = bench.hold("x", 4, "a")
    before = bench.snapshot.queues["a"].generation
    assert bench.snapshot.remove_holder("team/x") is held
    assert (bench.used("a"), bench.snapshot.queues["a"].generation > before) == (0, True)


def test_usage_of_removed_flavor_is_counted() -> None:
    bench = company()
    bench.hold("x", 1, "a", flavor="gone")
    assert (bench.used("a", "gone"), bench.used("company", "gone")) == (1000, 1000)
    bench.snapshot.remove_holder("team/x")
    assert bench.used("company", "gone") == 0


def test_usage_before_settle_is_counted() -> None:
    bench = company()
    first, second = (bench.snapshot.flavor_resource_id("new", resource) for resource in ("cpu", "gpu"))
    held = AdmittedWorkload("team/x", "uid-x", bench.snapshot.queues["a"], ((first, 5), (second, 7)))
    bench.snapshot.add_holder(held)
    bench.snapshot.rebuild_if_changed()
    assert (bench.used("company", "new"), bench.used("company", "new", "gpu")) == (5, 7)


@pytest.mark.parametrize("parents", [{"x": "x"}, {"x": "y", "y": "x"}, {"x": "y", "y": "z", "z": "y"}], ids=str)
def test_cohort_cycle_excludes_its_queues(parents: dict[str, str]) -> None:
    bench = SchedulerBench(
        queue("cq", 2, cohort="x"), *(cohort(name, 1, parent=parent) for name, parent in parents.items())
    )
    assert bench.snapshot.queues["cq"].is_in_cohort_cycle
    assert path(bench, "cq") == "/cq"


def test_resolved_cohort_cycle_becomes_tree() -> None:
    bench = SchedulerBench(queue("cq", 2, cohort="x"), cohort("x", 1, parent="y"), cohort("y", 1, parent="x"))
    bench.put(cohort("y", 1))
    assert (path(bench, "cq"), bench.free("cq")) == ("/y/x/cq", 4000)


def test_queues_below_node_are_those_of_its_subtree() -> None:
    bench = company()
    below = {
        name: sorted(q.name for q in bench.snapshot.queues_below(bench.node(name))) for name in ("company", "team", "c")
    }
    assert below == {"company": ["a", "b", "c"], "team": ["a", "b"], "c": ["c"]}


def test_simulation_reverts_all_changes() -> None:
    bench = company()
    held = bench.hold("x", 3, "a")
    other = bench.hold("y", 1, "c")
    before = usages(bench)
    with bench.snapshot.what_if():
        bench.snapshot.remove_workload(held)
        with bench.snapshot.what_if():
            bench.snapshot.remove_usage(other.queue, other.usage)
            bench.snapshot.add_usage(held.queue, ((0, 2000),))
            assert bench.used("a") == 2000
        assert (bench.used("company"), held.key in held.queue.workloads) == (1000, False)
    assert (usages(bench), held.key in held.queue.workloads) == (before, True)


def remove_and_release(bench: SchedulerBench, held: AdmittedWorkload) -> None:
    with bench.snapshot.what_if():
        bench.snapshot.remove_workload(held)
        bench.snapshot.remove_holder(held.key)


def test_simulation_reverts_changes_after_error() -> None:
    bench = company()
    held = bench.hold("x", 3, "a")
    with pytest.raises(InvariantError):
        remove_and_release(bench, held)
    assert bench.used("a") == 3000


def test_simulation_rejects_permanent_changes() -> None:
    bench = company()
    held = bench.hold("x", 3, "a")
    with bench.snapshot.what_if():
        with pytest.raises(InvariantError):
            bench.snapshot.add_holder(held)
        with pytest.raises(InvariantError):
            bench.snapshot.remove_holder(held.key)


def test_simulated_removal_requires_what_if() -> None:
    bench = company()
    held = bench.hold("x", 3, "a")
    with pytest.raises(AssertionError):
        bench.snapshot.remove_workload(held)


def test_settle_rebuilds_only_after_change() -> None:
    snapshot = Snapshot()
    snapshot.rebuild_if_changed()
    assert snapshot.rebuild_count == 0
    snapshot.flavor_resource_id("spot", "cpu")
    snapshot.rebuild_if_changed()
    snapshot.rebuild_if_changed()
    assert snapshot.rebuild_count == 1


def test_resource_groups_follow_spec_of_queue() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 2}), group(v100={"gpu": 1})]))
    assert list(bench.snapshot.queues["cq"].coverage.group_of) == ["cpu", "gpu"]
    bench.put(queue("cq", groups=[group(one={"memory": 2})]))
    assert list(bench.snapshot.queues["cq"].coverage.group_of) == ["memory"]
    assert bench.free("cq", "v100", "gpu") == 0


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
    bench = SchedulerBench(queue("a", 4, cohort="all"), queue("b", 4, cohort="all"), queue("c", 4))
    before = bench.snapshot.queues["a"].generation
    bench.put(edit)
    assert (bench.snapshot.queues["a"].generation > before) is is_renewed
