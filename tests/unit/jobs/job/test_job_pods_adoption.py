"""Pods that a Job adopts, and pods that it releases."""

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


def job_with_selector(**spec: Any) -> Obj:
    """A Job with a manual selector."""
    return job(manualSelector=True, selector={"matchLabels": {"app": "x"}}, template=TEMPLATE, **spec)


def orphan_pod(name: str = "free", app: str = "x", **fields: Any) -> Obj:
    """A pod without owner."""
    metadata = make.metadata(name, labels={"app": app}, **fields)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": TEMPLATE["spec"]}


def relabel(stage: JobStage, pod: Obj, **labels: str) -> None:
    """Change the labels of a pod."""
    current = stage.get(scheme.POD, pod["metadata"]["name"])
    stage.put(with_metadata(current, labels={**(current["metadata"].get("labels") or {}), **labels}))


def controlled_pods(stage: JobStage) -> Mapping[str, bool]:
    """Whether each pod has a controller, by name."""
    return {pod["metadata"]["name"]: controller_of(pod) is not None for pod in stage.pods(None)}


def test_job_adopts_pod_that_matches_selector() -> None:
    stage = JobStage(orphan_pod())
    stage.put(job_with_selector())
    assert controlled_pods(stage) == {"free": True}
    assert (stage.tracked(), stage.status["active"]) == (1, 1)
    stage.become("Succeeded")
    assert (stage.status["succeeded"], stage.tracked()) == (1, 0)


def test_job_deletes_surplus_pod_that_it_adopts() -> None:
    stage = JobStage(job_with_selector())
    stage.become("Running", ready=True)
    stage.put(orphan_pod())
    stage.pass_time(1)
    assert len(stage.pods(None)) == 1
    assert "free" not in controlled_pods(stage)


def test_job_ignores_unmatched_pods_and_pods_with_controller() -> None:
    owner = {"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "u", "controller": True}
    stage = JobStage(orphan_pod("other", app="y"))
    stage.put(orphan_pod("taken", ownerReferences=[owner]), job_with_selector())
    assert len(stage.pods(None)) == 3
    assert stage.tracked() == 1


def test_finished_job_adopts_no_pod() -> None:
    stage = JobStage(job_with_selector())
    stage.become("Succeeded")
    stage.put(orphan_pod())
    stage.pass_time(1)
    assert controlled_pods(stage)["free"] is False


def test_job_releases_and_replaces_pod_with_changed_labels() -> None:
    stage = JobStage(job_with_selector())
    (pod,) = stage.pods()
    relabel(stage, pod, app="y")
    assert controlled_pods(stage)[pod["metadata"]["name"]] is False
    assert (len(stage.pods(None)), stage.tracked()) == (2, 1)
    assert "failed" not in stage.status


def test_restarted_controller_releases_pod_with_changed_labels() -> None:
    stage = JobStage(job_with_selector())
    (pod,) = stage.pods()
    stage.runner.stop()
    relabel(stage, pod, app="y")
    key, strayed = key_of(pod), stage.get(scheme.POD, pod["metadata"]["name"])
    restarted = JobPodController()
    assert key in restarted.keys_for(WatchEvent(EventType.ADDED, key, strayed, None, 1), make.NOW)
    (write,) = restarted.reconcile(key, stage.client, make.NOW).writes
    assert isinstance(write, Update)
    assert "ownerReferences" not in write.obj["metadata"]


def test_orphaned_pod_loses_tracking_finalizer() -> None:
    stage = JobStage(job())
    (pod,) = stage.pods(None)
    assert stage.tracked() == 1
    stage.put(with_metadata(stage.get(scheme.POD, pod["metadata"]["name"]), ownerReferences=None, labels={}))
    assert "finalizers" not in stage.get(scheme.POD, pod["metadata"]["name"])["metadata"]


def test_pod_orphaned_by_job_deletion_loses_tracking_finalizer() -> None:
    stage = JobStage(job())
    (pod,) = stage.pods(None)
    stage.delete_without_dependents(scheme.JOB, "job")
    assert "finalizers" not in stage.get(scheme.POD, pod["metadata"]["name"])["metadata"]


@pytest.mark.parametrize("is_known", [False, True])
def test_job_ignores_pod_of_other_namespace_with_its_owner_reference(is_known: bool) -> None:
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
