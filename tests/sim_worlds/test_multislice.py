"""JobSets that need one, two or three slices share three TPU slices."""

from functools import cache

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj
from batchyard.sim.scenario import make_scenario
from sim_worlds.world_history import EXAMPLES, SHARED, WorldHistory, beside, example, objects, read, then

CLUSTER = EXAMPLES / "multislice" / "cluster.yaml"
THEIRS = SHARED / "multislice"

#: A cluster without slices, with auto-provisioning of slices.
AUTOPILOT = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: multislice-cluster}
spec:
  region: us-west4
  zones: [us-west4-a]
  nodePools: [{name: default-pool, machineType: e2-medium, nodeCount: 1}]
  autoscaling:
    profile: optimize-utilization
    autoProvisioning:
      limits:
      - {resource: cpu, max: 1000}
      - {resource: memory, max: 2000}
      - {resource: tpu-v5-lite-podslice, max: 24}
"""


@cache
def ours() -> WorldHistory:
    """Return the chronicle of the example."""
    return WorldHistory(example("multislice"))


@cache
def theirs(mode: str) -> WorldHistory:
    """Return the chronicle of the tutorial's unchanged manifests: the large JobSet is applied 6 s before the others."""
    one, two, three = objects(THEIRS / f"jobsets-multislice-{mode}.yaml")
    cluster = CLUSTER.read_text("utf-8") if mode == "standard" else AUTOPILOT
    kueue = (THEIRS / "kueue.yaml").read_text("utf-8")
    scenario = make_scenario(read_manifests([("cluster.yaml", cluster), ("kueue.yaml", kueue)]))
    return WorldHistory(then(scenario, (600, [three]), (606, [two]), (607, [one])))


@cache
def theirs_with_priorities() -> WorldHistory:
    """Return the chronicle of the tutorial's last part: preemption is enabled while three slices are in use."""
    three = objects(THEIRS / "jobsets-multislice-standard.yaml")[2]
    updates = objects(THEIRS / "kueue-preemption.yaml", THEIRS / "priorityclass.yaml")
    low = objects(THEIRS / "jobset-low-priority-standard.yaml")
    scenario = make_scenario(read(CLUSTER, THEIRS / "kueue.yaml"))
    return WorldHistory(then(scenario, (600, [three]), (610, updates), (620, low)))


def played(whose: str) -> WorldHistory:
    """Return a chronicle by its name."""
    if whose == "ours":
        return ours()
    return theirs_with_priorities() if whose == "priorities" else theirs(whose)


each_chronicle = pytest.mark.parametrize(
    "whose",
    ["ours", *(pytest.param(name, marks=beside("multislice")) for name in ("standard", "autopilot", "priorities"))],
)
each_ordered_chronicle = pytest.mark.parametrize(
    "whose", ["ours", *(pytest.param(name, marks=beside("multislice")) for name in ("standard", "autopilot"))]
)


def completed(chronicle: WorldHistory) -> dict[str, bool]:
    """Return whether each JobSet is complete."""
    return {obj["metadata"]["name"]: _is_complete(obj) for obj in chronicle.world.objects(scheme.JOB_SET)}


def _is_complete(job_set: Obj) -> bool:
    return any(c["type"] == "Completed" and c["status"] == "True" for c in job_set["status"]["conditions"])


@each_ordered_chronicle
def test_three_slice_job_set_runs_before_smaller_ones(whose: str) -> None:
    chronicle = played(whose)
    ((_, three_end),) = chronicle.together("multislice-3slice", 6)
    ((two_begin, two_end),) = chronicle.together("multislice-2slice", 4)
    ((one_begin, one_end),) = chronicle.together("multislice-1slice", 2)
    assert three_end < min(two_begin, one_begin)
    assert max(two_begin, one_begin) < min(two_end, one_end)


@each_ordered_chronicle
def test_freed_slices_are_assigned_to_next_job_sets(whose: str) -> None:
    chronicle = played(whose)
    ((_, first_end),) = chronicle.together("multislice-3slice", 6)
    (finished,) = chronicle.happened("Finished", "multislice-3slice")
    admitted = [chronicle.happened("Admitted", f"multislice-{n}slice")[0] for n in (1, 2)]
    assert first_end <= admitted[0] <= admitted[1] <= finished


@each_chronicle
def test_no_slice_ever_runs_two_jobs(whose: str) -> None:
    seen = list(played(whose).jobs_by_pool())
    assert len(seen) > 20
    assert [pools for pools in seen if any(len(jobs) > 1 for jobs in pools.values())] == []


@each_chronicle
def test_no_job_spans_two_slices(whose: str) -> None:
    for pools in played(whose).jobs_by_pool():
        jobs = [job for of_one in pools.values() for job in of_one]
        assert len(jobs) == len(set(jobs))


@each_chronicle
def test_all_job_sets_complete_without_restart(whose: str) -> None:
    chronicle = played(whose)
    assert set(completed(chronicle).values()) == {True}
    assert {job_set["status"].get("restarts", 0) for job_set in chronicle.world.objects(scheme.JOB_SET)} == {0}


def test_low_priority_preempts_job_set_without_priority_class() -> None:
    chronicle = ours()
    assert chronicle.happened("Preempted", "no-class") == [320]
    ((begin, end),) = chronicle.together("no-class", 6)[-1:]
    assert end - begin == pytest.approx(60, abs=10)
    assert begin > chronicle.happened("Finished", "high-priority")[0]


def test_high_priority_preempts_low_priority() -> None:
    chronicle = ours()
    assert chronicle.happened("Preempted", "low-priority") == [340]
    assert chronicle.happened("Preempted", "high-priority") == []
    order = [chronicle.happened("Finished", name)[0] for name in ("high-priority", "low-priority", "no-class")]
    assert order == sorted(order)


@beside("multislice")
def test_low_priority_of_tutorial_preempts_job_set_without_class() -> None:
    chronicle = theirs_with_priorities()
    assert chronicle.happened("Preempted", "multislice-3slice") == [620]
    (low,) = chronicle.happened("Finished", "low-priority")
    assert chronicle.happened("QuotaReserved", "multislice-3slice") == [600, low]


@beside("multislice")
def test_auto_provisioned_slices_are_deleted_after_use() -> None:
    chronicle = theirs("autopilot")
    assert [pool["metadata"]["name"] for pool in chronicle.world.objects(scheme.NODE_POOL)] == ["default-pool"]
    assert len(chronicle.world.objects(scheme.NODE)) == 1
    made = {pool for pools in chronicle.jobs_by_pool() for pool in pools}
    assert len(made) == 3
    assert {tuple(chronicle.sizes(name)) for name in made} == {(0, 1, 2, 1, 0)}
