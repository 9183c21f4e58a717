"""The pods that a Job creates."""

from typing import Any

import make
from batchyard.api.meta import Obj
from batchyard.jobs.job.controller import new_pods
from batchyard.jobs.job.plan import NewPod
from unit.jobs.job.job_make import indexed, job

INDEX = "batch.kubernetes.io/job-completion-index"


def created_pods(of: Obj, *wanted: NewPod, taken: tuple[str, ...] = (), created: int = 0, at: float = 0) -> list[Any]:
    return new_pods(of, wanted or [NewPod()], taken, created, make.at(at))


def test_new_pod_has_owner_reference_and_tracking_finalizer() -> None:
    (pod,) = created_pods(job())
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "uid-job"}
    assert pod["metadata"]["ownerReferences"] == [{**owner, "controller": True, "blockOwnerDeletion": True}]
    assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    assert (pod["apiVersion"], pod["kind"], pod["metadata"]["namespace"]) == ("v1", "Pod", "team")
    assert pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] == "uid-job"


def test_new_pod_follows_template() -> None:
    template = make.pod_template(labels={"app": "x"}, restartPolicy="Never", subdomain="s")
    template["metadata"] |= {"annotations": {"note": "y"}, "finalizers": ["example.com/kept"]}
    (pod,) = created_pods(job(template=template))
    assert pod["spec"] is template["spec"]
    assert (pod["metadata"]["labels"]["app"], pod["metadata"]["annotations"]) == ("x", {"note": "y"})
    assert pod["metadata"]["finalizers"] == ["example.com/kept", "batch.kubernetes.io/job-tracking"]


def test_indexed_pod_has_index_in_labels_annotations_hostname_and_env() -> None:
    of = indexed(template={"spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}})
    (pod,) = created_pods(of, NewPod(2))
    assert pod["spec"]["hostname"] == "job-2"
    assert (pod["metadata"]["labels"][INDEX], pod["metadata"]["annotations"]) == ("2", {INDEX: "2"})
    field = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}
    env = [{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": field}}]
    assert [c["env"] for f in ("initContainers", "containers") for c in pod["spec"][f]] == [env, env]


def test_container_keeps_its_own_job_completion_index_variable() -> None:
    env = [{"name": "JOB_COMPLETION_INDEX", "value": "7"}]
    (pod,) = created_pods(indexed(template={"spec": {"containers": [{"name": "c", "env": env}]}}), NewPod(0))
    assert pod["spec"]["containers"][0]["env"] == env


def test_new_pod_inherits_failure_counts_of_its_index() -> None:
    (pod,) = created_pods(indexed(), NewPod(1, 2, 3))
    notes = pod["metadata"]["annotations"]
    assert notes["batch.kubernetes.io/job-index-failure-count"] == "2"
    assert notes["batch.kubernetes.io/job-index-ignored-failure-count"] == "3"


def test_pod_name_has_job_name_index_and_suffix() -> None:
    (plain,), (of_index,) = created_pods(job()), created_pods(indexed(), NewPod(1))
    assert (plain["metadata"]["generateName"], of_index["metadata"]["generateName"]) == ("job-", "job-1-")
    assert plain["metadata"]["name"].startswith("job-")
    assert len(plain["metadata"]["name"]) == len("job-") + 5
    assert of_index["metadata"]["name"].startswith("job-1-")


def test_long_pod_name_is_truncated_before_index() -> None:
    (pod,) = created_pods(indexed(metadata={"name": "j" * 60}), NewPod(123))
    assert pod["metadata"]["generateName"] == "j" * 53 + "-123-"
    assert len(pod["metadata"]["name"]) == 63


def test_pod_names_are_unique() -> None:
    first = created_pods(job(), *[NewPod()] * 2000)
    names = [pod["metadata"]["name"] for pod in first]
    assert len(set(names)) == 2000
    assert created_pods(job(), taken=(names[0],))[0]["metadata"]["name"] not in names[:1]


def test_pod_names_are_deterministic() -> None:
    assert created_pods(job()) == created_pods(job())
    names = [
        pod["metadata"]["name"]
        for pod in (*created_pods(job()), *created_pods(job(), at=1), *created_pods(job(), created=1))
    ]
    assert len(set(names)) == 3
