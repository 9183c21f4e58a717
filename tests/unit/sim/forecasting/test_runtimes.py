"""Run times of Workloads, from manifests and from history."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_reference, with_metadata
from batchyard.base.instant import SECOND
from batchyard.sim.forecasting.run_times import EstimateBasis, RunTimeEstimator, explicit_runtime
from unit.sim.forks_make import queue, state, without_runtimes, workload


def workload_of_job(owner: Obj, cluster: Obj | None = None) -> tuple[Obj, dict[Key, Obj], Obj | None]:
    """The Workload of a Job or JobSet, the existing objects, and the Cluster."""
    kind = scheme.JOB if owner["kind"] == "Job" else scheme.JOB_SET
    result = with_metadata(make.workload("w"), ownerReferences=[controller_reference(owner)])
    return result, {Key(kind, "team", owner["metadata"]["name"]): owner}, cluster


def sleeping(seconds: int) -> dict[str, Any]:
    container = {"name": "c", "image": "busybox", "command": ["sleep", str(seconds)]}
    return {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}


def test_job_runtime_is_rounds_of_pods_times_sleep() -> None:
    assert explicit_runtime(*workload_of_job(make.job(completions=5, parallelism=2, **sleeping(10)))) == 30 * SECOND


def test_jobset_runtime_is_that_of_longest_job() -> None:
    jobs = [make.replicated_job("a", **sleeping(10)), make.replicated_job("b", **sleeping(40))]
    assert explicit_runtime(*workload_of_job(make.jobset(replicatedJobs=jobs))) == 40 * SECOND


def test_runtime_of_other_command_is_unknown() -> None:
    assert explicit_runtime(*workload_of_job(make.job())) is None


def test_annotation_overrides_command_runtime() -> None:
    job = make.job(**sleeping(10), annotations={"batchyard.dev/runtime": "7s"})
    assert explicit_runtime(*workload_of_job(job)) == 7 * SECOND


def test_annotation_of_pod_template_overrides_that_of_job() -> None:
    template = {**sleeping(10)["template"], "metadata": {"annotations": {"batchyard.dev/runtime": "7s"}}}
    job = make.job(template=template, annotations={"batchyard.dev/runtime": "9s"})
    assert explicit_runtime(*workload_of_job(job)) == 7 * SECOND
    jobs = [make.replicated_job("a", template=template), make.replicated_job("b", **sleeping(5))]
    assert explicit_runtime(*workload_of_job(make.jobset(replicatedJobs=jobs))) == 7 * SECOND


def test_cluster_sets_runtime_of_jobs_without_own_runtime() -> None:
    rows = [{"names": ["team/long-*"], "runtime": "9s"}]
    cluster = {"spec": {"runtimes": {"default": "3s", "jobs": rows}}}
    assert explicit_runtime(*workload_of_job(make.job("long-1"), cluster)) == 9 * SECOND
    assert explicit_runtime(*workload_of_job(make.job("short"), cluster)) == 3 * SECOND
    assert explicit_runtime(*workload_of_job(make.job("short", **sleeping(10)), cluster)) == 10 * SECOND


HISTORY = [workload(f"train-{n}", 10) for n in range(6)] + [workload(f"test-{n}", 2) for n in range(6)]


def test_history_is_grouped_by_name_without_numbers() -> None:
    then = without_runtimes(state([*queue(20), *HISTORY], 15))
    runtimes = RunTimeEstimator(then)
    for name, runs in (("train-77", 10), ("test-5", 2)):
        result = runtimes.estimate({**workload(name), "metadata": {"name": name, "namespace": "team"}})
        assert (result.basis, result.draw(0.5, 0)) == (EstimateBasis.HISTORY, runs * SECOND)


def test_unknown_name_uses_history_of_whole_queue() -> None:
    result = RunTimeEstimator(without_runtimes(state([*queue(20), *HISTORY], 15))).estimate(workload("other"))
    assert {result.draw(chance, 0) for chance in (0.9, 0.1)} == {2 * SECOND, 10 * SECOND}


def test_runtime_without_history_is_unknown_or_execution_limit() -> None:
    runtimes = RunTimeEstimator(without_runtimes(state([*queue(20), *HISTORY[:2]], 15)))
    result = runtimes.estimate(workload("new"))
    assert (result.basis, result.draw(0.5, 0)) == (EstimateBasis.UNKNOWN, None)
    assert runtimes.estimate(workload("new", maximumExecutionTimeSeconds=60)).draw(0.5, 0) == 60 * SECOND


def test_history_prefers_equal_requests() -> None:
    large = [workload(f"train-{n + 6}", 30, cpus=2) for n in range(6)]
    runtimes = RunTimeEstimator(without_runtimes(state([*queue(40), *HISTORY[:6], *large], 35)))
    for cpus, runs in ((1, 10), (2, 30)):
        assert runtimes.estimate(workload("train-99", cpus=cpus)).draw(0.5, 0) == runs * SECOND


def test_wider_group_is_used_beyond_longest_run_of_small_group() -> None:
    long = [workload(f"long-{n}", 1000) for n in range(10)]
    result = RunTimeEstimator(without_runtimes(state([*queue(40), *HISTORY[:6], *long], 1100))).estimate(
        workload("train-99")
    )
    assert result.draw(0.5, 0) == 10 * SECOND
    assert result.draw(0.5, 20 * SECOND) == 1000 * SECOND


def test_forks_draw_different_but_deterministic_histories() -> None:
    result = RunTimeEstimator(without_runtimes(state([*queue(40), *HISTORY], 15))).estimate(workload("other"))
    assert result.history is not None
    drawn = [
        [lengths.next_run_time(0) for _ in range(8)]
        for seed in range(20)
        for lengths in [result.history.draws_for_fork(seed)]
    ]
    again = [
        [lengths.next_run_time(0) for _ in range(8)]
        for seed in range(20)
        for lengths in [result.history.draws_for_fork(seed)]
    ]
    assert drawn == again
    assert {2 * SECOND, 10 * SECOND} <= {length for fork in drawn for length in fork}
    assert len({tuple(fork) for fork in drawn}) > 5
