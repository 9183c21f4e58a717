"""Plans: the requests of pods by resource group of a ClusterQueue."""

from batchyard.api.views.node import PodTemplate, parse_pod_template
from batchyard.scheduling.cluster_queue import NO_FLAVOR_ASSIGNMENT, ResourceGroupIndex
from batchyard.scheduling.quota import FIT, HOPELESS, FlavorAssignmentMode
from yard import SchedulerBench, group, queue


def template(**requests: int) -> PodTemplate:
    """A template of pods with these requests."""
    return parse_pod_template({"containers": [{"resources": {"requests": requests}}]})


def coverage(bench: SchedulerBench, name: str = "cq") -> ResourceGroupIndex:
    """The coverage of a ClusterQueue."""
    return bench.snapshot.queues[name].coverage


def test_plan_is_cached() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(spot={"cpu": 4, "pods": 9})]))
    obstacles, of, pods = bench.snapshot.obstacles, coverage(bench), template(cpu=2, gpu=1)
    plan = of.split_pod_requests(pods, 3, obstacles)
    assert (dict(plan.requests), plan.unavailable_resource) == ({"cpu": 6000, "pods": 3, "gpu": 3}, "gpu")
    assert of.split_pod_requests(pods, 3, obstacles) is plan
    for count in range(4, 5000):
        of.split_pod_requests(pods, count, obstacles)
    again = of.split_pod_requests(pods, 3, obstacles)
    assert again is not plan
    assert again.groups[0].usages == plan.groups[0].usages


def test_plan_has_usage_per_flavor() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 4, "memory": 9}, two={"cpu": 4, "memory": 9})]))
    (plan,) = coverage(bench).split_pod_requests(template(cpu=2, memory=1), 1, bench.snapshot.obstacles).groups
    ids = {
        (flavor, r): bench.snapshot.flavor_resource_id(flavor, r)
        for flavor in ("one", "two")
        for r in ("cpu", "memory")
    }
    assert [dict(usage) for usage in plan.usages] == [
        {ids[flavor, "cpu"]: 2000, ids[flavor, "memory"]: 1} for flavor in ("one", "two")
    ]


def test_queues_with_equal_groups_share_coverage_until_change() -> None:
    one, other = group(one={"cpu": 4}), group(one={"cpu": 9})
    bench = SchedulerBench(
        queue("a", groups=[one]), queue("b", groups=[other]), queue("c", groups=[group(two={"cpu": 4})])
    )
    assert coverage(bench, "a") is coverage(bench, "b")
    assert coverage(bench, "a") is not coverage(bench, "c")
    bench.put(queue("b", groups=[group(two={"cpu": 9})]))
    assert coverage(bench, "b") is coverage(bench, "c")


def test_pick_is_cached_by_all_arguments() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 4}, two={"cpu": 4}, three={"cpu": 4})]))
    (plan,) = coverage(bench).split_pod_requests(template(cpu=2), 1, bench.snapshot.obstacles).groups
    first = plan.assignment_for(0, 0, [FIT])
    assert plan.assignment_for(0, 0, [FIT]) is first
    reported = [(p.choices["cpu"].flavor, p.mode, p.borrowing_height, p.tried["cpu"]) for p in (
        first,
        plan.assignment_for(1, 1, [FIT - 1]),
        plan.assignment_for(0, 2, [HOPELESS - 2]), plan.assignment_for(0, 1, [FIT]),
    )]  # fmt: skip
    assert reported == [
        ("one", FlavorAssignmentMode.FIT, 0, 0),
        ("two", FlavorAssignmentMode.FIT, 1, 1),
        ("one", FlavorAssignmentMode.PREEMPT, 2, -1),
        ("one", FlavorAssignmentMode.FIT, 0, 1),
    ]
    for height in range(300):
        plan.assignment_for(2, 2, [FIT - height])
    assert plan.assignment_for(0, 0, [FIT]) == first


def test_no_flavor_assignment_is_no_fit() -> None:
    assert (NO_FLAVOR_ASSIGNMENT.mode, NO_FLAVOR_ASSIGNMENT.choices, NO_FLAVOR_ASSIGNMENT.usage) == (
        FlavorAssignmentMode.NO_FIT,
        {},
        (),
    )
