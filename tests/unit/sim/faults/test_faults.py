"""Faults as scenarios define them: their times, their actions and their errors."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from batchyard.api.errors import FieldError
from batchyard.api.manifests import read_manifests
from batchyard.base.instant import HOUR, MINUTE, Duration
from batchyard.sim.faults import (
    Action,
    Conflicts,
    Drain,
    Fail,
    ReclaimSpot,
    Restart,
    ScheduledFault,
    SlowBoot,
    Stockout,
)
from batchyard.sim.faults import read_faults as read
from batchyard.sim.scenario import InvalidScenario, make_scenario

HEAD = "apiVersion: sim.batchyard.dev/v1alpha1\nkind: Scenario\nmetadata: {name: s}\nspec:\n  faults:\n"
#: The line of the first fault after the head.
FAULT_LINE = HEAD.count("\n") + 1


def read_one(**given: Any) -> ScheduledFault:
    wrong: list[FieldError] = []
    (fault,) = read([given], wrong)
    assert wrong == []
    return fault


def occurrence_times(fault: ScheduledFault) -> Iterator[Duration]:
    return (at for _, at in fault.occurrences())


@pytest.mark.parametrize(
    ("given", "action"),
    [
        ({"fail": {"pool": "spot-np", "count": 3}}, Fail(pool="spot-np", count=3)),
        ({"fail": {"jobSet": "team/train"}}, Fail(job_set="team/train")),
        ({"reclaimSpot": {"pool": "spot-np"}}, ReclaimSpot("spot-np")),
        ({"stockout": {"machine": "a2", "zone": "z", "for": "30m"}}, Stockout("a2", 30 * MINUTE, "z")),
        ({"slowBoot": {"machine": "g2", "times": 4, "for": "1h"}}, SlowBoot("g2", 4, HOUR)),
        ({"drain": {"node": "n"}}, Drain("n")),
        ({"conflicts": {"percent": 20, "for": "5m"}}, Conflicts(20, 5 * MINUTE)),
        ({"restart": True}, Restart()),
    ],
)
def test_fault_is_read_with_its_action_and_time(given: dict[str, Any], action: Action) -> None:
    fault = read_one(at="10m", **given)
    assert fault.action == action
    assert list(fault.occurrences()) == [(0, 10 * MINUTE)]


def test_random_faults_have_given_mean_and_depend_only_on_seed() -> None:
    fault = read_one(every={"mean": "2h", "seed": 7}, fail={"pool": "p"})
    times = list(islice(occurrence_times(fault), 2000))
    assert times == sorted(times)
    assert 1.8 * HOUR < times[-1] / len(times) < 2.2 * HOUR
    assert times == list(islice(occurrence_times(read_one(every={"mean": "2h", "seed": 7}, fail={"pool": "p"})), 2000))
    assert times != list(islice(occurrence_times(read_one(every={"mean": "2h", "seed": 8}, fail={"pool": "p"})), 2000))


@pytest.mark.parametrize(
    ("action", "drawn"),
    [
        (Fail(pool="spot-np", count=3), 314_299_624_300_863),
        (Fail(job_set="team/train"), 343_852_839_656_826),
        (ReclaimSpot("spot-np", 2), 3_187_308_362_956_519),
        (Stockout("a2", 30 * MINUTE, "z", "spot"), 3_973_481_331_613_308),
        (SlowBoot("g2", 4, HOUR), 4_272_156_594_692_670),
        (Drain("n"), 4_461_328_153_273_640),
        (Drain("n", HOUR), 3_671_552_465_310_263),
        (Conflicts(20, 5 * MINUTE), 4_207_460_107_221_205),
        (Restart(), 1_404_425_979_121_125),
    ],
)
def test_random_draws_of_recorded_runs_stay_the_same(action: Action, drawn: int) -> None:
    assert ScheduledFault(action, seed=7).draw("fault", "0") == drawn


def test_run_that_starts_later_gets_only_later_occurrences() -> None:
    fault = read_one(every={"mean": "1h", "until": "10h"}, restart=True)
    later = [(number, at - 5 * HOUR) for number, at in fault.occurrences() if at > 5 * HOUR]
    assert later
    assert list(replace(fault, elapsed=5 * HOUR).occurrences()) == later
    once = read_one(at="10m", restart=True)
    assert list(replace(once, elapsed=4 * MINUTE).occurrences()) == [(0, 6 * MINUTE)]
    assert not list(replace(once, elapsed=10 * MINUTE).occurrences())


def test_random_faults_end_at_until() -> None:
    fault = read_one(every={"mean": "1h", "until": "10h"}, restart=True)
    times = list(occurrence_times(fault))
    assert 0 < len(times) < 40
    assert times[-1] <= 10 * HOUR


@pytest.mark.parametrize(
    ("fault", "stated"),
    [
        ("{fail: {pool: p}}", "spec.faults[0]: exactly one of at and every must be set"),
        ("{at: 1m, every: {mean: 1h}, restart: true}", "spec.faults[0]: exactly one of at and every"),
        ("{every: {mean: 0s}, restart: true}", "spec.faults[0].every.mean: must be a duration greater than 0"),
        ("{at: 1m}", "spec.faults[0]: no kind of fault is set; set one of fail, reclaimSpot"),
        ("{at: 1m, restart: true, fail: {pool: p}}", "spec.faults[0]: fail, restart cannot be combined in one fault"),
        ("{at: 1m, fail: {count: 2}}", "spec.faults[0].fail: no target is set; set one of node, pool"),
        ("{at: 1m, fail: {node: n, pool: p}}", "spec.faults[0].fail: node, pool cannot be combined in one fault"),
        ("{at: 1m, conflicts: {percent: 100, for: 1m}}", "spec.faults[0].conflicts.percent"),
        ("{at: 1m, fial: {node: n}}", "spec.faults[0].fial"),
        ("{at: 1m, restart: false}", "spec.faults[0].restart: must be true, not false; write true"),
        ("{at: 1m, fail: {node: ''}}", 'spec.faults[0].fail.node: Invalid value: "": must not be empty'),
        ("{at: 1m, fail: {slice: tpu, count: 2}}", "spec.faults[0].fail.count: count must be 1 with slice"),
        ("{at: 1m, fail: {jobSet: a/b/c}}", "spec.faults[0].fail.jobSet: 'a/b/c' is not a valid name; write"),
        ("{at: 1m, fail: {pod: /b}}", "spec.faults[0].fail.pod: '/b' is not a valid name"),
        (
            "{at: 1m, conflicts: {percent: 9, for: 0s}}",
            "spec.faults[0].conflicts.for: must be a duration greater than 0",
        ),
        (
            "{every: {mean: 1h, until: 0s}, restart: true}",
            "spec.faults[0].every.until: must be a duration greater than 0",
        ),
        (
            "{at: 1m, drain: {node: n}}",
            "spec.faults[0]: the fault has no target, because the scenario has no Cluster; add a",
        ),
        ("{at: 1m, fail: {pool: p}}", "spec.faults[0]: the fault has no target"),
    ],
)
def test_invalid_fault_is_reported_with_path(fault: str, stated: str) -> None:
    with pytest.raises(InvalidScenario) as reported:
        make_scenario(read_manifests([("s.yaml", f"{HEAD}  - {fault}\n")]))
    assert str(reported.value).startswith(f"s.yaml:{FAULT_LINE} Scenario/s: {stated}")


CLUSTER = """---
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  region: r
  zones: [r-a]
  nodePools:
  - {name: cpu, machineType: e2-standard-4, nodeCount: 2}
  - {name: cheap, machineType: e2-standard-4, provisioning: spot, nodeCount: 2}
  autoscaling: AUTOSCALING
"""
NAP = "{autoProvisioning: {limits: [{resource: cpu, max: 100}, {resource: memory, max: 1000}]}}"


def fault_in_cluster(fault: str, autoscaling: str = "{}") -> str:
    """The error of a fault in a scenario with a Cluster, empty if the fault is valid."""
    text = f"{HEAD}  - {fault}\n{CLUSTER.replace('AUTOSCALING', autoscaling)}"
    try:
        make_scenario(read_manifests([("s.yaml", text)]))
    except InvalidScenario as invalid:
        return str(invalid).removeprefix(f"s.yaml:{FAULT_LINE} Scenario/s: spec.faults[0].")
    return ""


@pytest.mark.parametrize(
    ("fault", "stated"),
    [
        ("fail: {pool: gpu}", "fail.pool: unknown node pool 'gpu'; did you mean 'cpu'?"),
        (
            "fail: {slice: tpus}",
            "fail.slice: unknown node pool 'tpus'; use a node pool of the Cluster, such as 'cheap'",
        ),
        (
            "reclaimSpot: {pool: cpu}",
            "reclaimSpot.pool: the machines of pool 'cpu' are standard, but only Spot machines can be reclaimed",
        ),
        (
            "stockout: {machine: e2-standard4, for: 1m}",
            "stockout.machine: unknown machine type 'e2-standard4'; did you",
        ),
        ("stockout: {machine: e2-standard-4, zone: r-b, for: 1m}", "stockout.zone: unknown zone 'r-b'; did you mean"),
        ("slowBoot: {machine: x, times: 2, for: 1m}", "slowBoot.machine: unknown machine type 'x'"),
    ],
)
def test_unknown_fault_target_is_rejected(fault: str, stated: str) -> None:
    assert fault_in_cluster(f"{{at: 1m, {fault}}}").startswith(stated)


def test_fault_target_in_cluster_without_pools_is_rejected() -> None:
    pools = CLUSTER[CLUSTER.index("  nodePools:") : CLUSTER.index("  autoscaling:")]
    text = f"{HEAD}  - {{at: 1m, fail: {{pool: cpu}}}}\n{CLUSTER.replace(pools, '').replace('AUTOSCALING', '{}')}"
    with pytest.raises(
        InvalidScenario, match="unknown node pool 'cpu'; add a node pool to the Cluster, which has none"
    ):
        make_scenario(read_manifests([("s.yaml", text)]))


@pytest.mark.parametrize("fault", ["fail: {pool: cpu}", "reclaimSpot: {pool: cheap}", "fail: {node: gke-c-cpu-1}"])
def test_fault_with_possible_target_is_accepted(fault: str) -> None:
    assert fault_in_cluster(f"{{at: 1m, {fault}}}") == ""


def test_fault_may_name_pool_created_by_auto_provisioning() -> None:
    assert fault_in_cluster("{at: 1m, fail: {pool: nap-e2-standard-2-1}}", NAP) == ""
