"""JobSets that need one, two or three slices share three TPU slices."""

from functools import cache

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj
from batchyard.sim.scenario import make_scenario
from sim_worlds.world_history import (
    EXAMPLES,
    SHARED,
    WorldHistory,
    example,
    objects,
    read_valid_manifests,
    skip_without_manifests,
    with_later_objects,
)

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
def example_history() -> WorldHistory:
    """Return the history of the example."""
    return WorldHistory(example("multislice"))


@cache
def tutorial_history(mode: str) -> WorldHistory:
    """Return the history of the tutorial's unchanged manifests: the large JobSet is applied 6 s before the others."""
    one, two, three = objects(THEIRS / f"jobsets-multislice-{mode}.yaml")
    cluster = CLUSTER.read_text("utf-8") if mode == "standard" else AUTOPILOT
    kueue = (THEIRS / "kueue.yaml").read_text("utf-8")
    scenario = make_scenario(read_manifests([("cluster.yaml", cluster), ("kueue.yaml", kueue)]))
    return WorldHistory(with_later_objects(scenario, (600, [three]), (606, [two]), (607, [one])))


@cache
def tutorial_priority_history() -> WorldHistory:
    """Return the history of the tutorial's last part: preemption is enabled while three slices are in use."""
    three = objects(THEIRS / "jobsets-multislice-standard.yaml")[2]
    updates = objects(THEIRS / "kueue-preemption.yaml", THEIRS / "priorityclass.yaml")
    low = objects(THEIRS / "jobset-low-priority-standard.yaml")
    scenario = make_scenario(read_valid_manifests(CLUSTER, THEIRS / "kueue.yaml"))
    return WorldHistory(with_later_objects(scenario, (600, [three]), (610, updates), (620, low)))


def history_of(whose: str) -> WorldHistory:
    """Return a history by its name."""
    if whose == "ours":
        return example_history()
    return tutorial_priority_history() if whose == "priorities" else tutorial_history(whose)


each_history = pytest.mark.parametrize(
    "whose",
    [
        "ours",
        *(
            pytest.param(name, marks=skip_without_manifests("multislice"))
            for name in ("standard", "autopilot", "priorities")
        ),
    ],
)
each_ordered_history = pytest.mark.parametrize(
    "whose",
    ["ours", *(pytest.param(name, marks=skip_without_manifests("multislice")) for name in ("standard", "autopilot"))],
)


def completions(history: WorldHistory) -> dict[str, bool]:
    """Return whether each JobSet is complete."""
    return {obj["metadata"]["name"]: _is_complete(obj) for obj in history.world.objects(scheme.JOB_SET)}


def _is_complete(job_set: Obj) -> bool:
    return any(c["type"] == "Completed" and c["status"] == "True" for c in job_set["status"]["conditions"])


@each_ordered_history
def test_three_slice_job_set_runs_before_smaller_ones(whose: str) -> None:
    history = history_of(whose)
    ((_, three_end),) = history.together("multislice-3slice", 6)
    ((two_begin, two_end),) = history.together("multislice-2slice", 4)
    ((one_begin, one_end),) = history.together("multislice-1slice", 2)
    assert three_end < min(two_begin, one_begin)
    assert max(two_begin, one_begin) < min(two_end, one_end)


@each_ordered_history
def test_freed_slices_are_assigned_to_next_job_sets(whose: str) -> None:
    history = history_of(whose)
    ((_, first_end),) = history.together("multislice-3slice", 6)
    (finished,) = history.happened("Finished", "multislice-3slice")
    admitted = [history.happened("Admitted", f"multislice-{n}slice")[0] for n in (1, 2)]
    assert first_end <= admitted[0] <= admitted[1] <= finished


@each_history
def test_no_slice_ever_runs_two_jobs(whose: str) -> None:
    seen = list(history_of(whose).jobs_by_pool())
    assert len(seen) > 20
    assert [pools for pools in seen if any(len(jobs) > 1 for jobs in pools.values())] == []


@each_history
def test_no_job_spans_two_slices(whose: str) -> None:
    for pools in history_of(whose).jobs_by_pool():
        jobs = [job for of_one in pools.values() for job in of_one]
        assert len(jobs) == len(set(jobs))


@each_history
def test_all_job_sets_complete_without_restart(whose: str) -> None:
    history = history_of(whose)
    assert set(completions(history).values()) == {True}
    assert {job_set["status"].get("restarts", 0) for job_set in history.world.objects(scheme.JOB_SET)} == {0}


def test_low_priority_preempts_job_set_without_priority_class() -> None:
    history = example_history()
    assert history.happened("Preempted", "no-class") == [320]
    ((begin, end),) = history.together("no-class", 6)[-1:]
    assert end - begin == pytest.approx(60, abs=10)
    assert begin > history.happened("Finished", "high-priority")[0]


def test_high_priority_preempts_low_priority() -> None:
    history = example_history()
    assert history.happened("Preempted", "low-priority") == [340]
    assert history.happened("Preempted", "high-priority") == []
    order = [history.happened("Finished", name)[0] for name in ("high-priority", "low-priority", "no-class")]
    assert order == sorted(order)


@skip_without_manifests("multislice")
def test_low_priority_of_tutorial_preempts_job_set_without_class() -> None:
    history = tutorial_priority_history()
    assert history.happened("Preempted", "multislice-3slice") == [620]
    (low,) = history.happened("Finished", "low-priority")
    assert history.happened("QuotaReserved", "multislice-3slice") == [600, low]


@skip_without_manifests("multislice")
def test_auto_provisioned_slices_are_deleted_after_use() -> None:
    history = tutorial_history("autopilot")
    assert [pool["metadata"]["name"] for pool in history.world.objects(scheme.NODE_POOL)] == ["default-pool"]
    assert len(history.world.objects(scheme.NODE)) == 1
    created = {pool for pools in history.jobs_by_pool() for pool in pools}
    assert len(created) == 3
    assert {tuple(history.sizes(name)) for name in created} == {(0, 1, 2, 1, 0)}
