"""Pods that a Job takes, and pods that it gives up."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, controller_of, key_of, with_metadata
from batchyard.interfaces.client import EventType, Update, WatchEvent
from batchyard.jobs.job.controller import JobPodController
from unit.client.job_pods_make import JobStage
from unit.jobs.job.job_make import job

TEMPLATE = make.pod_template(labels={"app": "x"}, restartPolicy="Never")


def chooser(**spec: Any) -> Obj:
    """A Job with a selector of its own."""
    return job(manualSelector=True, selector={"matchLabels": {"app": "x"}}, template=TEMPLATE, **spec)


def free_pod(name: str = "free", app: str = "x", **fields: Any) -> Obj:
    """A pod that nobody made."""
    metadata = make.metadata(name, labels={"app": app}, **fields)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": TEMPLATE["spec"]}


def relabel(stage: JobStage, pod: Obj, **labels: str) -> None:
    """Give a pod other labels."""
    current = stage.get(scheme.POD, pod["metadata"]["name"])
    stage.put(with_metadata(current, labels={**(current["metadata"].get("labels") or {}), **labels}))


def owned(stage: JobStage) -> Mapping[str, bool]:
    """Which pods are the Job's, by name."""
    return {pod["metadata"]["name"]: controller_of(pod) is not None for pod in stage.pods(None)}


def test_a_pod_that_the_job_selects_counts_as_one_of_its_own() -> None:
    stage = JobStage(free_pod())
    stage.put(chooser())
    assert owned(stage) == {"free": True}
    assert (stage.tracked(), stage.status["active"]) == (1, 1)
    stage.become("Succeeded")
    assert (stage.status["succeeded"], stage.tracked()) == (1, 0)


def test_a_pod_that_comes_later_makes_one_too_many() -> None:
    stage = JobStage(chooser())
    stage.become("Running", ready=True)
    stage.put(free_pod())
    stage.pass_time(1)
    assert len(stage.pods(None)) == 1
    assert "free" not in owned(stage)


def test_pods_that_the_job_does_not_select_or_somebody_has_are_left_alone() -> None:
    owner = {"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "u", "controller": True}
    stage = JobStage(free_pod("other", app="y"))
    stage.put(free_pod("taken", ownerReferences=[owner]), chooser())
    assert len(stage.pods(None)) == 3
    assert stage.tracked() == 1


def test_a_job_that_is_being_deleted_or_is_over_takes_none() -> None:
    stage = JobStage(chooser())
    stage.become("Succeeded")
    stage.put(free_pod())
    stage.pass_time(1)
    assert owned(stage)["free"] is False


def test_a_pod_whose_labels_say_something_else_is_given_up_and_replaced() -> None:
    stage = JobStage(chooser())
    (pod,) = stage.pods()
    relabel(stage, pod, app="y")
    assert owned(stage)[pod["metadata"]["name"]] is False
    assert (len(stage.pods(None)), stage.tracked()) == (2, 1)
    assert "failed" not in stage.status


def test_a_pod_that_strayed_before_a_restart_is_given_up_after_it() -> None:
    stage = JobStage(chooser())
    (pod,) = stage.pods()
    stage.runner.stop()
    relabel(stage, pod, app="y")
    key, strayed = key_of(pod), stage.get(scheme.POD, pod["metadata"]["name"])
    anew = JobPodController()
    assert key in anew.keys_for(WatchEvent(EventType.ADDED, key, strayed, None, 1), make.NOW)
    (write,) = anew.reconcile(key, stage.client, make.NOW).writes
    assert isinstance(write, Update)
    assert "ownerReferences" not in write.obj["metadata"]


def test_a_pod_that_is_nobodys_is_let_go_so_that_it_can_be_deleted() -> None:
    stage = JobStage(job())
    (pod,) = stage.pods(None)
    assert stage.tracked() == 1
    stage.put(with_metadata(stage.get(scheme.POD, pod["metadata"]["name"]), ownerReferences=None, labels={}))
    assert "finalizers" not in stage.get(scheme.POD, pod["metadata"]["name"])["metadata"]


def test_a_pod_left_behind_by_its_job_is_let_go() -> None:
    stage = JobStage(job())
    (pod,) = stage.pods(None)
    stage.leave_behind(scheme.JOB, "job")
    assert "finalizers" not in stage.get(scheme.POD, pod["metadata"]["name"])["metadata"]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_pod_of_another_namespace_is_not_the_jobs_whatever_it_says(is_known: bool) -> None:
    stage = JobStage(job(parallelism=1, completions=1))
    (own,) = stage.pods()
    forged = {**own, "metadata": {**own["metadata"], "namespace": "elsewhere", "name": "forged"}}
    ended = {**forged, "status": {"phase": "Succeeded"}}
    if is_known:
        stage.put(forged)
    stage.put(ended)
    stage.become("Failed", own)
    stage.pass_time(60)
    assert (stage.status.get("succeeded"), stage.status.get("failed")) == (None, 1)
    assert "finalizers" in next(pod for pod in stage.pods(None) if pod["metadata"]["name"] == "forged")["metadata"]
