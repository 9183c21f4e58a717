"""waitForPodsReady of Kueue 0.20: the timeout of unscheduled pods, and the timeouts in the annotation of a job."""

import re
from typing import Any

import pytest

import make
from batchyard.admission_plugins.job_annotations import check_ready_timeouts
from batchyard.api import scheme
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Obj, with_path
from batchyard.base.instant import HOUR, MINUTE, SECOND
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.scheduling.workload.pods_scheduled import UnscheduledPodsTracker
from stage import Stage, condition_state
from yard import queue

TIMEOUTS = "kueue.x-k8s.io/wait-for-pods-ready"
UNSCHEDULED = PodsReadyPolicy(timeout=10 * MINUTE, unscheduled_timeout=2 * MINUTE)
OWN_TIMEOUTS = PodsReadyPolicy(timeout=10 * MINUTE, timeout_on_workload_max=2 * HOUR)


def job_stage(policy: PodsReadyPolicy) -> Stage:
    """The controllers of Jobs and Workloads with a queue of four cpus."""
    trackers = [UnscheduledPodsTracker()] if policy.unscheduled_timeout else []
    job_reconciler = JobReconciler(JobIntegration(), pods_ready=policy)
    scheduler = Scheduler(SchedulerCache(), SchedulingPolicy())
    stage = Stage(scheduler, WorkloadLifecycle(policy), *trackers, job_reconciler)
    stage.put(make.namespace(), make.flavor("spot"), queue("cq", 4), make.local_queue("lq", cluster_queue="cq"))
    return stage


def put_pod(stage: Stage, name: str = "pod", *, bound: bool = False, **status: Any) -> None:
    """Create or update a pod of the only Workload."""
    metadata = make.metadata(
        name,
        labels={"kueue.x-k8s.io/podset": "main"},
        annotations={"kueue.x-k8s.io/workload": stage.only_workload()["metadata"]["name"]},
    )
    scheduled = {"type": "PodScheduled", "status": "True" if bound else "False", "reason": "Unschedulable"}
    spec = {"containers": [{"name": "c", "image": "i"}], **({"nodeName": "n"} if bound else {})}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    stage.put({**pod, "status": {"phase": "Pending", "conditions": [scheduled], **status}})


def scheduled(stage: Stage) -> tuple[str, str, str]:
    return condition_state(stage.only_workload(), "PodsScheduled")


def ready_reason(stage: Stage) -> str:
    return condition_state(stage.only_workload(), "PodsReady")[1]


def test_workload_with_unscheduled_pod_is_evicted_after_unscheduled_timeout() -> None:
    stage = job_stage(UNSCHEDULED)
    stage.put(make.job())
    put_pod(stage)
    stage.run(1)
    assert scheduled(stage) == ("False", "WaitForScheduling", "At least one required pod is not scheduled")
    assert condition_state(stage.only_workload(), "PodsReady") == (
        "False",
        "WaitForScheduling",
        "Not all pods are ready or succeeded",
    )
    stage.run(119)
    assert not lifecycle.is_evicted(stage.only_workload())
    stage.run(120)
    assert condition_state(stage.only_workload(), "Evicted")[1] == "PodsReadyTimeout"
    (counted,) = stage.only_workload()["status"]["schedulingStats"]["evictions"]
    assert counted == {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForScheduling", "count": 1}


def test_scheduled_pods_have_timeout_from_admission() -> None:
    stage = job_stage(UNSCHEDULED)
    stage.put(make.job())
    put_pod(stage)
    stage.run(60)
    put_pod(stage, bound=True)
    assert scheduled(stage) == ("True", "AllRequiredPodsScheduled", "All required pods were scheduled or succeeded")
    assert ready_reason(stage) == "WaitForStart"
    stage.run(599)
    assert not lifecycle.is_evicted(stage.only_workload())
    stage.run(600)
    (counted,) = stage.only_workload()["status"]["schedulingStats"]["evictions"]
    assert counted["underlyingCause"] == "WaitForStart"


def test_workload_without_pods_has_only_regular_timeout() -> None:
    stage = job_stage(UNSCHEDULED)
    stage.put(make.job())
    stage.run(599)
    assert ready_reason(stage) == "WaitForStart"
    assert not lifecycle.is_evicted(stage.only_workload())


def test_missing_pod_counts_as_unscheduled() -> None:
    stage = job_stage(UNSCHEDULED)
    stage.put(make.job(parallelism=2, completions=2))
    put_pod(stage, bound=True)
    stage.run(1)
    assert scheduled(stage)[:2] == ("False", "WaitForScheduling")
    put_pod(stage, "second", phase="Succeeded")
    assert scheduled(stage)[0] == "True"


def test_failed_pods_are_not_observed() -> None:
    stage = job_stage(UNSCHEDULED)
    stage.put(make.job())
    put_pod(stage, phase="Failed")
    stage.run(10)
    assert "PodsScheduled" not in {c["type"] for c in stage.only_workload()["status"]["conditions"]}


def test_scheduled_stays_true_until_admission_ends() -> None:
    stage = job_stage(UNSCHEDULED)
    stage.put(make.job())
    put_pod(stage, bound=True)
    stage.run(1)
    put_pod(stage, "other")
    stage.delete(scheme.POD, "pod")
    assert scheduled(stage)[0] == "True"
    stage.delete(scheme.POD, "other")
    stage.put(with_path(stage.only_workload(), ("spec", "active"), False))
    assert scheduled(stage) == ("False", "WaitForStart", "Not all pods are ready or succeeded")


def test_observation_of_last_admission_is_ignored() -> None:
    stage = job_stage(UNSCHEDULED)
    stage.put(make.job())
    put_pod(stage)
    stage.run(120)
    stage.delete(scheme.POD, "pod")
    stage.run(180)
    assert lifecycle.is_admitted(stage.only_workload())
    assert ready_reason(stage) == "WaitForStart"
    put_pod(stage, "next")
    stage.run(181)
    assert ready_reason(stage) == "WaitForScheduling"


def own_timeouts(text: str, **spec: Any) -> Obj:
    return make.job(annotations={TIMEOUTS: text}, **spec)


@pytest.mark.parametrize(("text", "seconds"), [('{"timeoutSeconds": 30}', 30), ("{}", 600), ("?", 600)])
def test_job_sets_its_own_timeout(text: str, seconds: int) -> None:
    stage = job_stage(OWN_TIMEOUTS)
    stage.put(own_timeouts(text))
    stage.run(seconds - 1)
    assert not lifecycle.is_evicted(stage.only_workload())
    stage.run(seconds)
    assert lifecycle.is_evicted(stage.only_workload())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('{"timeoutSeconds": 30}', 30),
        ('{"timeoutSeconds": 30, "recoveryTimeoutSeconds": 50}', 50),
        ('{"timeoutSeconds": 30, "recoveryTimeoutSeconds": 0}', 0),
        ('{"recoveryTimeoutSeconds": 50}', 50),
    ],
)
def test_job_sets_its_own_recovery_timeout(text: str, seconds: int) -> None:
    annotated = make.workload(annotations={TIMEOUTS: text})
    assert OWN_TIMEOUTS.timeouts_of(annotated).recovery == seconds * SECOND
    assert PodsReadyPolicy().timeouts_of(annotated) == (30 * MINUTE, 30 * MINUTE)


def test_changed_annotation_of_suspended_job_reaches_workload() -> None:
    stage = job_stage(OWN_TIMEOUTS)
    stage.put(make.job(queue="closed"), own_timeouts('{"timeoutSeconds": 9}', queue="closed"))
    assert stage.only_workload()["metadata"]["annotations"] == {TIMEOUTS: '{"timeoutSeconds": 9}'}


def rejection(new: Obj, old: Obj | None = None) -> str:
    try:
        check_ready_timeouts(new, old, 2 * HOUR)
    except Forbidden as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"timeoutSeconds": 7200, "recoveryTimeoutSeconds": 0}', ""),
        ('{"timeoutSeconds": 7201}', "timeoutSeconds must not exceed the maximum of 7200s"),
        ('{"timeoutSeconds": 9, "recoveryTimeoutSeconds": 7201}', "recoveryTimeoutSeconds must not exceed"),
        ('{"timeoutSeconds": 0}', "timeoutSeconds must be greater than 0"),
        ('{"timeoutSeconds": 9, "recoveryTimeoutSeconds": -1}', "must be greater than or equal to 0"),
        ('{"recoveryTimeoutSeconds": 5}', "timeoutSeconds is required"),
        ('{"timeoutSeconds": "9"}', "timeoutSeconds must be an integer"),
        ("[]", "the value must be a JSON object"),
        ('{"timeoutSeconds":', "Expecting value"),
    ],
)
def test_invalid_timeouts_of_job_are_rejected(text: str, problem: str) -> None:
    message = rejection(own_timeouts(text))
    assert bool(message) is bool(problem)
    assert re.search(re.escape(problem), message)
    assert not message or message.startswith('admission webhook "vjob.kb.io" denied the request: metadata.annotations[')


def test_timeouts_change_only_while_job_is_suspended() -> None:
    old, new = own_timeouts('{"timeoutSeconds": 5}'), own_timeouts('{"timeoutSeconds": 6}')
    assert rejection(new, old) == ""
    assert "field is immutable" in rejection(with_path(new, ("spec", "suspend"), False), old)
