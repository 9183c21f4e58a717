"""Elastic Jobs that grow in part, and that shrink when they are preempted in part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, with_metadata, with_path
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Update
from batchyard.jobframework import shrinking, slices
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobframework.workloads import workload_name
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.decisions import DEFAULT_RULES
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.sim.world import World
from stage import Stage, condition_state
from unit.jobframework.elastic_worlds import ARRAY, ELASTIC, HIGH, PARTIAL, SHRINKABLE, submitted, urgent, world_of

RULES = replace(DEFAULT_RULES, partial_scale_up=True, partial_preemption=True)
SHRINKS = "PartiallyPreempted"


def job_stage(parallelism: int, annotations: Mapping[str, str], **fields: Any) -> Stage:
    """A stage with an elastic Job and its reconciler."""
    pods_ready = fields.pop("pods_ready", None)
    stage = Stage(JobReconciler(JobIntegration(), rules=RULES, pods_ready=pods_ready))
    job = make.job(**{"parallelism": parallelism, "completions": 50, **fields})
    stage.put(make.flavor(), with_metadata(job, annotations=dict(annotations), generation=1))
    return stage


def unfinished(stage: Stage) -> list[Obj]:
    return slices.slice_order([each for each in stage.workloads() if not lifecycle.is_finished(each)])


def admit(stage: Stage, count: int) -> None:
    """Admit the newest slice with this many pods, and finish the one that it replaces."""
    *older, newest = unfinished(stage)
    stage.put(lifecycle.reserve_quota(newest, make.admission(main=count), stage.kernel.now(), admitted=True))
    for each in older:
        stage.put(lifecycle.finish(each, "WorkloadSliceReplaced", "", stage.kernel.now()))


def scale(stage: Stage, parallelism: int) -> None:
    stage.put(with_path(stage.get(scheme.JOB, "job"), ("spec", "parallelism"), parallelism))


def sizes(stage: Stage) -> list[tuple[int, int | None]]:
    """The counts and minimum counts of the unfinished slices, oldest first."""
    pod_sets = [each["spec"]["podSets"][0] for each in unfinished(stage)]
    return [(each["count"], each.get("minCount")) for each in pod_sets]


# Partial scale-up: the example of KEP-12100.


def grown_stage(granted: int) -> Stage:
    """A Job of 5 pods that requests 10 and gets `granted` of them."""
    stage = job_stage(5, PARTIAL)
    admit(stage, 5)
    scale(stage, 10)
    admit(stage, granted)
    return stage


def test_first_slice_is_admitted_with_all_its_pods_only() -> None:
    stage = job_stage(5, PARTIAL)
    assert sizes(stage) == [(5, 5)]
    scale(stage, 8)
    assert sizes(stage) == [(8, 8)]


def test_slice_that_grows_may_have_the_pods_of_the_replaced_slice_at_least() -> None:
    stage = job_stage(5, PARTIAL)
    admit(stage, 5)
    scale(stage, 10)
    assert sizes(stage) == [(5, 5), (10, 5)]


def test_atomic_strategy_sets_no_minimum() -> None:
    stage = job_stage(5, ELASTIC)
    admit(stage, 5)
    scale(stage, 10)
    assert sizes(stage) == [(5, None), (10, None)]


def test_job_that_starts_in_part_needs_one_pod() -> None:
    stage = job_stage(5, ARRAY)
    assert sizes(stage) == [(5, 1)]
    assert annotation(unfinished(stage)[0], well_known.PARTIAL_START) == "true"
    scale(stage, 8)
    assert sizes(stage) == [(8, 1)]
    admit(stage, 3)
    assert sizes(stage) == [(8, 1), (8, 1)]


def test_partly_admitted_slice_gets_a_probe_for_the_rest() -> None:
    stage = grown_stage(7)
    assert sizes(stage) == [(10, 5), (10, 7)]
    reserved, probe = unfinished(stage)
    assert annotation(probe, well_known.REPLACEMENT_FOR) == f"team/{reserved['metadata']['name']}"
    generation = stage.get(scheme.JOB, "job")["metadata"]["generation"]
    name = workload_name("Job", "batch", "job", "uid-job", f"{generation}-full-scaleup-probe-7")
    assert probe["metadata"]["name"] == name


def test_pending_probe_follows_the_requested_size_and_keeps_its_minimum() -> None:
    stage = grown_stage(7)
    scale(stage, 12)
    assert sizes(stage) == [(10, 5), (12, 7)]
    scale(stage, 6)
    assert sizes(stage) == [(10, 5), (6, 6)]


def test_probing_stops_when_all_pods_are_granted() -> None:
    stage = grown_stage(7)
    admit(stage, 10)
    assert sizes(stage) == [(10, 7)]


def test_probe_takes_over_with_the_last_size_when_its_slice_is_evicted() -> None:
    stage = grown_stage(7)
    reserved = unfinished(stage)[0]
    stage.put(evictions.evict(reserved, reason="Preempted", message="make room", now=stage.kernel.now()))
    assert sizes(stage) == [(10, 7)]


def test_no_probe_is_created_for_pods_that_the_job_no_longer_needs() -> None:
    stage = grown_stage(7)
    job = stage.get(scheme.JOB, "job")
    stage.put({**with_path(job, ("spec", "completions"), 12), "status": {"succeeded": 5}})
    admit(stage, 8)
    assert sizes(stage) == [(10, 7)]


def test_as_many_pods_are_ungated_as_are_granted() -> None:
    admission = make.admission(main=7)
    workload = {**make.workload("wl", pod_sets=[make.pod_set(count=10)]), "status": {"admission": admission}}
    assert slices.granted_counts(workload) == {"main": 7}
    assert slices.granted_counts(with_path(workload, ("spec", "podSets"), [make.pod_set(count=3)])) == {"main": 3}


@pytest.mark.parametrize(("ready", "state"), [(6, "False"), (7, "True")])
def test_pods_are_ready_when_the_granted_ones_are(ready: int, state: str) -> None:
    stage = job_stage(5, PARTIAL, pods_ready=PodsReadyPolicy())
    admit(stage, 5)
    scale(stage, 10)
    admit(stage, 7)
    stage.put({**stage.get(scheme.JOB, "job"), "status": {"active": 10, "ready": ready}})
    assert condition_state(unfinished(stage)[0], lifecycle.PODS_READY)[0] == state


# Partial preemption.


def shrinking_stage(parallelism: int = 6) -> Stage:
    """A Job with quota for all its pods that is preempted in part."""
    stage = job_stage(parallelism, SHRINKABLE)
    admit(stage, parallelism)
    preempt(stage)
    return stage


def preempt(stage: Stage) -> None:
    (reserved,) = [each for each in unfinished(stage) if lifecycle.has_quota_reservation(each)]
    stage.put(evictions.shrink(reserved, message="m", now=stage.kernel.now(), preemption="InClusterQueue"))


def parallelism_of(stage: Stage) -> int:
    parallelism: int = stage.get(scheme.JOB, "job")["spec"]["parallelism"]
    return parallelism


def test_minimum_of_the_job_is_that_of_its_slices() -> None:
    stage = job_stage(6, SHRINKABLE)
    assert sizes(stage) == [(6, 2)]
    assert annotation(stage.only_workload(), well_known.PARTIAL_PREEMPTION) == "true"


def test_preempted_job_shrinks_to_its_minimum_and_releases_the_quota() -> None:
    stage = shrinking_stage()
    assert (parallelism_of(stage), sizes(stage)) == (2, [(2, 2)])
    assert condition_state(stage.only_workload(), "PartiallyPreempted")[0] == "False"
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is False


def test_job_requests_its_full_size_again_after_a_backoff() -> None:
    stage = shrinking_stage()
    stage.run(59)
    assert sizes(stage) == [(2, 2)]
    stage.run(60)
    assert (parallelism_of(stage), sizes(stage)) == (6, [(2, 2), (6, 2)])


def test_backoff_doubles_with_each_partial_preemption() -> None:
    assert [shrinking.backoff_after(n) // SECOND for n in (1, 2, 3, 6, 7, 40)] == [60, 120, 240, 1920, 3600, 3600]
    stage = shrinking_stage()
    stage.run(60)
    admit(stage, 6)
    preempt(stage)
    stage.run(60 + 119)
    assert sizes(stage) == [(2, 2)]
    stage.run(60 + 120)
    assert sizes(stage) == [(2, 2), (6, 2)]


def test_quota_is_kept_until_the_surplus_pods_have_stopped() -> None:
    stage = job_stage(3, SHRINKABLE)
    admit(stage, 3)
    first = stage.only_workload()["metadata"]["name"]
    stage.put(*[running_pod(name, first, stage.get(scheme.JOB, "job")) for name in "abc"])
    preempt(stage)
    assert (parallelism_of(stage), sizes(stage)) == (2, [(3, 2)])
    stage.delete(scheme.POD, "c")
    assert sizes(stage) == [(2, 2)]


def running_pod(name: str, slice_name: str, job: Obj) -> Obj:
    annotations = {well_known.SLICE_NAME: slice_name, well_known.WORKLOAD: slice_name}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "controller": True}
    metadata = make.metadata(name, labels={well_known.POD_SET: "main"}, annotations=annotations)
    metadata["ownerReferences"] = [{**owner, "uid": job["metadata"]["uid"]}]
    containers = [{"name": "c", "image": "i"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}, "status": {}}


def test_waiting_replacement_of_a_preempted_slice_is_finished() -> None:
    stage = job_stage(4, SHRINKABLE)
    admit(stage, 4)
    scale(stage, 6)
    preempt(stage)
    assert (parallelism_of(stage), sizes(stage)) == (2, [(2, 2)])
    assert annotation(stage.get(scheme.JOB, "job"), well_known.FULL_PARALLELISM) == "6"


def test_number_of_pods_that_the_user_sets_after_a_preemption_is_kept() -> None:
    stage = shrinking_stage()
    scale(stage, 4)
    assert annotation(stage.get(scheme.JOB, "job"), well_known.FULL_PARALLELISM) is None
    stage.run(100)
    assert parallelism_of(stage) == 4


def test_evicted_job_requests_its_full_size_at_once() -> None:
    stage = shrinking_stage()
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="m", now=stage.kernel.now()))
    assert (parallelism_of(stage), sizes(stage)) == (6, [(6, 2)])


def test_restarted_reconciler_continues_a_partial_preemption() -> None:
    stage = shrinking_stage()
    stage.replace_controllers(JobReconciler(JobIntegration(), rules=RULES))
    stage.run(60)
    assert sizes(stage) == [(2, 2), (6, 2)]


# Whole worlds.


def ungated_count(world: World) -> int:
    pods = [pod for pod in world.objects(scheme.POD) if pod["metadata"]["name"].startswith("train")]
    return sum(not slices.has_gate(pod) for pod in pods)


def test_job_grows_by_the_quota_that_is_free() -> None:
    world, _ = world_of(submitted("train", 0, 5, PARTIAL), submitted("train", 10, 10, PARTIAL), quota=7, until=20)
    pods = world.objects(scheme.POD)
    assert (ungated_count(world), len(pods)) == (7, 10)


def array(tasks: int) -> Obj:
    job = submitted("train", 1, tasks, ARRAY, "100s")
    return with_path(with_path(job, ("spec", "completions"), tasks), ("spec", "completionMode"), "Indexed")


@pytest.mark.parametrize(("until", "count"), [(5, 3), (55, 7), (1000, 10)])
def test_tasks_start_as_quota_becomes_free(until: int, count: int) -> None:
    world, _ = world_of(submitted("busy", 0, 4, {}, "50s"), array(10), quota=7, until=until)
    assert ungated_count(world) == count


def test_tasks_share_the_quota_that_the_first_ones_got() -> None:
    world, _ = world_of(submitted("busy", 0, 4, {}), array(10), quota=7, until=1000)
    job = world.objects(scheme.JOB)[-1]
    assert job["status"]["succeeded"] == 10
    assert job["status"]["completionTime"] == "2026-01-01T00:06:41Z"  # four rounds


def test_preempted_array_starts_again_with_what_is_free() -> None:
    world, _ = world_of(HIGH, array(10), *urgent("urgent", 10, 4), quota=7, until=60)
    assert ungated_count(world) == 3
    world.run_until(2000 * SECOND)
    assert world.objects(scheme.JOB)[0]["status"]["succeeded"] == 10


@pytest.mark.parametrize(("until", "count"), [(9, 7), (12, 2), (60, 2), (109, 2), (115, 7)])
def test_job_runs_with_its_minimum_while_an_urgent_one_runs(until: int, count: int) -> None:
    jobs: Sequence[Obj] = [submitted("train", 0, 7, SHRINKABLE), *urgent("urgent", 10, 4)]
    world, _ = world_of(HIGH, *jobs, quota=7, until=until)
    assert ungated_count(world) == count


@pytest.mark.parametrize("minimum", ["6", None])
def test_job_whose_minimum_was_raised_or_removed_is_evicted_as_a_whole(minimum: str | None) -> None:
    jobs: Sequence[Obj] = [submitted("train", 0, 7, SHRINKABLE), *urgent("urgent", 10, 4)]
    world, records = world_of(HIGH, *jobs, quota=7, until=9)
    job = next(each for each in world.objects(scheme.JOB) if each["metadata"]["name"] == "train")
    annotations = {**job["metadata"]["annotations"], well_known.MIN_PARALLELISM: minimum}
    annotations = {name: value for name, value in annotations.items() if value is not None}
    world.client.submit([Update(with_metadata(job, annotations=annotations))], lambda _: None)
    world.run_until(60 * SECOND)
    assert ungated_count(world) == 0
    assert len([each for each in records if each["event"] == SHRINKS]) == 1
    urgent_pods = [each for each in world.objects(scheme.POD) if each["metadata"]["name"].startswith("urgent")]
    assert len(urgent_pods) == 4
    world.run_until(200 * SECOND)
    assert ungated_count(world) == 7


def test_log_names_the_preemptor_of_a_job_that_shrinks() -> None:
    _, records = world_of(HIGH, submitted("train", 0, 7, SHRINKABLE), *urgent("urgent", 10, 4), quota=7, until=200)
    shrinkings = [(each["reason"], each["by"].partition("-")[0]) for each in records if each["event"] == SHRINKS]
    assert shrinkings == [("InClusterQueue", "team/job")]
    assert [each["event"] for each in records if each["event"] in {"Preempted", "Evicted"}] == []


def test_why_says_when_a_job_that_has_shrunk_grows_again() -> None:
    world, _ = world_of(HIGH, submitted("train", 0, 7, SHRINKABLE), *urgent("urgent", 10, 4), quota=7, until=20)
    explanation = world.platform.explainer.why(Key(scheme.JOB, "team", "train"), world.kernel.now())
    assert explanation is not None
    fact = explanation["facts"]["partiallyPreempted"]
    assert fact.startswith("since 2026-01-01T00:00:10Z: Preempted to accommodate a workload")
    assert "; the job shrinks from 7 to 2 pods; it requests its full size again at " in fact
