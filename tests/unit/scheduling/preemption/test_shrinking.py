"""Partial preemption: the least disturbing targets, shrunk Workloads before evicted ones."""

from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.api import well_known
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.views.topology import TopologyDomain
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.cycle import SchedulingPolicy, holder_from_admission
from batchyard.scheduling.decisions import DEFAULT_RULES, Preempt
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.preemption.shrinking import pod_counts_after, releasable_part
from batchyard.scheduling.workload import evictions
from batchyard.topology.state import FlavorUsage
from yard import SchedulerBench, group, line, preemption, queue, workload

LOWER = preemption("LowerPriority", "LowerPriority")


def elastic(name: str, count: int, minimum: int | None, *, allows: str = "true", **fields: Any) -> Obj:
    """A Workload of an elastic job with one pod set."""
    least = {} if minimum is None else {"minCount": minimum}
    pod_set = make.pod_set("main", count, requests={"cpu": "1"}, **least)
    annotations = {well_known.ELASTIC_JOB: "true", well_known.PARTIAL_PREEMPTION: allows}
    return with_metadata(workload(name, pod_sets=[pod_set], **fields), annotations=annotations)


def bench(*objects: Obj, gate: bool = True, fair_sharing: bool = False) -> SchedulerBench:
    made = SchedulerBench(*objects, fair_sharing=fair_sharing)
    made.policy = SchedulingPolicy(fair_sharing, rules=replace(DEFAULT_RULES, partial_preemption=gate))
    return made


def hold(made: SchedulerBench, obj: Obj) -> None:
    made.snapshot.add_holder(holder_from_admission(made.admission(obj), make.at(1), admitted=True))


def targets_of(made: SchedulerBench, head: Obj) -> list[str]:
    """The targets of a preemption: `name` of an evicted Workload, `name from-to` of one that shrinks."""
    (decision,) = made.cycle(head)
    assert isinstance(decision, Preempt), line(decision)
    targets = [target.workload for target in decision.targets]
    texts = []
    for each in targets:
        kept, before = (0, 0) if each.whole is None else pod_counts_after(each)
        texts.append(each.key.removeprefix("team/") + (f" {before}-{kept}" if each.whole else ""))
    return texts


def one_queue(*holders: Obj, quota: int = 10, **fields: Any) -> SchedulerBench:
    made = bench(queue("cq", quota, preemption=LOWER), **fields)
    for each in holders:
        hold(made, each)
    return made


def test_workload_is_shrunk_instead_of_evicted_if_that_frees_enough() -> None:
    made = one_queue(elastic("e", 10, 4))
    assert targets_of(made, workload("new", 6, priority=1)) == ["e 10-4"]


def test_workload_is_evicted_if_its_minimum_leaves_too_little() -> None:
    made = one_queue(elastic("e", 10, 4))
    assert targets_of(made, workload("new", 7, priority=1)) == ["e"]


@pytest.mark.parametrize(("minimum", "allows", "gate"), [(None, "true", True), (4, "false", True), (4, "true", False)])
def test_workload_without_minimum_annotation_or_gate_is_evicted(minimum: int | None, allows: str, gate: bool) -> None:
    made = one_queue(elastic("e", 10, minimum, allows=allows), gate=gate)
    assert targets_of(made, workload("new", 2, priority=1)) == ["e"]


def test_workload_of_higher_priority_is_shrunk_before_one_of_lower_is_evicted() -> None:
    made = one_queue(workload("low", 3, priority=-1), elastic("e", 7, 4))
    assert targets_of(made, workload("new", 3, priority=1)) == ["e 7-4"]


def test_workload_that_the_policy_protects_is_not_shrunk() -> None:
    made = one_queue(workload("low", 3, priority=-1), elastic("e", 7, 4, priority=2))
    assert targets_of(made, workload("new", 3, priority=1)) == ["low"]


def test_only_the_needed_workloads_are_shrunk() -> None:
    made = one_queue(elastic("a", 5, 2), elastic("b", 5, 2))
    assert targets_of(made, workload("new", 3, priority=1)) == ["a 5-2"]
    assert targets_of(made, workload("new", 6, priority=1)) == ["a 5-2", "b 5-2"]


def test_shrinking_lowers_the_number_of_evictions() -> None:
    """Without it, both plain Workloads are evicted."""
    made = one_queue(workload("x", 2, priority=-1), workload("y", 2, priority=-1), elastic("e", 6, 4))
    assert targets_of(made, workload("new", 4, priority=1)) == ["x", "e 6-4"]


def test_workload_at_its_minimum_is_evicted() -> None:
    made = one_queue(elastic("e", 4, 4), quota=4)
    assert targets_of(made, workload("new", 1, priority=1)) == ["e"]


def test_workload_that_already_shrinks_is_preferred_and_counts_as_evicted() -> None:
    made = one_queue(elastic("a", 5, 2), elastic("b", 5, 2))
    holder = made.snapshot.holder("team/b")
    assert holder is not None
    assert holder.obj is not None
    holder.obj = evictions.shrink(holder.obj, message="m", now=make.NOW, preemption="InClusterQueue")
    (decision,) = made.cycle(workload("new", 3, priority=1))
    assert isinstance(decision, Preempt)
    assert [(t.workload.key, t.workload.evicted) for t in decision.targets] == [("team/b", True)]


def test_borrowing_queue_is_shrunk_by_reclamation() -> None:
    made = bench(queue("cq", 6, cohort="all", preemption=LOWER), queue("b", 4, cohort="all"))
    hold(made, elastic("e", 10, 5, queue="b"))
    (decision,) = made.cycle(workload("new", 5, priority=1))
    assert line(decision) == "new preempts e (InCohortReclamation)"
    assert targets_of(made, workload("new", 5, priority=1)) == ["e 10-5"]
    assert targets_of(made, workload("new", 6, priority=1)) == ["e"]


def test_fair_sharing_shrinks_the_queue_with_the_larger_share() -> None:
    made = bench(
        queue("cq", 5, cohort="all", preemption=preemption("Never", "Any")),
        queue("b", 5, cohort="all"),
        fair_sharing=True,
    )
    hold(made, elastic("e", 10, 6, queue="b"))
    assert targets_of(made, workload("new", 4)) == ["e 10-6"]


def test_second_preemptor_of_a_cycle_does_not_count_the_same_part_again() -> None:
    groups = [group(spot={"cpu": 10})]
    made = bench(
        queue("cq", groups=groups, cohort="all", preemption=LOWER), queue("d", 0, cohort="all", preemption=LOWER)
    )
    hold(made, elastic("e", 10, 4))
    decisions = made.cycle(workload("new", 6, priority=2), workload("other", 6, priority=1, queue="d"))
    preempted = [each.head.workload.name for each in decisions if isinstance(each, Preempt)]
    assert preempted == ["new"]
    assert made.used("cq") == 10_000
    assert list(made.snapshot.queues["cq"].workloads) == ["team/e"]


def test_message_of_the_preemptor_counts_all_targets() -> None:
    made = one_queue(elastic("a", 5, 2), elastic("b", 5, 2))
    (decision,) = made.cycle(workload("new", 6, priority=1))
    assert isinstance(decision, Preempt)
    assert decision.why.message.endswith("Pending the preemption of 2 workload(s)")


def test_workload_with_topology_domains_is_evicted() -> None:
    made = one_queue(elastic("e", 10, 4))
    holder = made.snapshot.holder("team/e")
    assert holder is not None
    assert releasable_part(holder, made.snapshot) is not None
    holder.topology_usage = (FlavorUsage("spot", True, (), (TopologyDomain(("h1",), 10),)),)
    assert releasable_part(holder, made.snapshot) is None


def test_preemptor_that_needs_topology_domains_shrinks_workloads_without_domains() -> None:
    made = one_queue(elastic("e", 10, 4))
    made.snapshot.rebuild_if_changed()
    queue_view, cpu = made.snapshot.queues["cq"], made.snapshot.flavor_resource_id("spot", "cpu")
    rules = replace(DEFAULT_RULES, partial_preemption=True)
    preemptor = Preemptor(workload_view(workload("new", 6, priority=1)), queue_view, made.snapshot, (), rules)
    (target,) = preemptor.targets_for_usage(((cpu, 6000),), (cpu,), FreeDomains())
    assert target.workload.whole is not None


class FreeDomains:
    """Topology domains that are always free."""

    def fits(self) -> bool:
        return True
