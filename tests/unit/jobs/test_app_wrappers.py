"""AppWrappers: pod sets of their components, the scheduling fields in podSetInfos, phases.

Sources: pkg/controller/jobs/appwrapper/appwrapper_controller_test.go and
test/integration/singlecluster/controller/jobs/appwrapper of Kueue; pkg/utils of AppWrapper.
"""

from typing import Any, Final

import pytest

import make
from batchyard.interfaces.client import Update
from batchyard.jobframework.workloads import InvalidPodSetInfo, JobCompletion, PodSetInfo
from batchyard.jobs.described.controller import DescribedJobReconciler
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.jobs.described.kinds import find_integration
from batchyard.scheduling.workload import evictions, lifecycle
from stage import Stage, condition_state

KIND: Final = "AppWrapper.workload.codeflare.dev"
POD_INDEX: Final = "batch.kubernetes.io/job-completion-index"


def app_wrapper_integration() -> DescribedJobIntegration:
    integration = find_integration(KIND, {})
    assert integration is not None
    return integration


APP_WRAPPERS: Final = app_wrapper_integration()


def template(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "python"}], **fields}}


def app_wrapper(*components: dict[str, Any], **status: Any) -> dict[str, Any]:
    metadata = make.metadata("AW", labels={"kueue.x-k8s.io/queue-name": "lq"})
    obj = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": metadata}
    return {**obj, "spec": {"components": list(components), "suspend": True}, "status": status}


def component(api_version: str, kind: str, *pod_sets: dict[str, Any], **spec: Any) -> dict[str, Any]:
    wrapped = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}
    return {"template": wrapped, **({"podSets": list(pod_sets)} if pod_sets else {})}


JOB: Final = component("batch/v1", "Job", parallelism=3, completions=2, template=template())
POD: Final = component("v1", "Pod", containers=[{"name": "main", "image": "python:3"}])


def counts(*components: dict[str, Any]) -> list[int]:
    return [each["count"] for each in APP_WRAPPERS.pod_sets(app_wrapper(*components))]


def test_pod_sets_are_named_after_app_wrapper() -> None:
    pod_sets = APP_WRAPPERS.pod_sets(app_wrapper(JOB, POD))
    assert [(each["name"], each["count"]) for each in pod_sets] == [("aw-0", 2), ("aw-1", 1)]
    assert APP_WRAPPERS.template_paths(app_wrapper(JOB, POD)) == [
        "spec.components[0].template.spec.template",
        "spec.components[1].template",
    ]


REPLICATED: Final = {"name": "a", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": template()}}}
WORKERS: Final = {"groupName": "w", "replicas": 4, "template": template()}
CLUSTER: Final = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [WORKERS, {"groupName": "none"}]}
REPLICAS: Final = {"Worker": {"replicas": 3, "template": template()}, "Master": {"template": template()}}


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        (POD, [1]),
        (component("apps/v1", "Deployment", replicas=5, template=template()), [5]),
        (component("apps/v1", "StatefulSet", template=template()), [1]),
        (JOB, [2]),
        (component("batch/v1", "Job", parallelism=3, template=template()), [3]),
        (component("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[REPLICATED, {"name": "b"}]), [6]),
        (component("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs=REPLICAS), [1, 3]),
        (component("ray.io/v1", "RayCluster", **CLUSTER), [1, 4]),
        (component("ray.io/v1", "RayJob", rayClusterSpec=CLUSTER), [1, 4]),
        (component("v1", "ConfigMap"), []),
        (component("batch/v1beta1", "Job", template=template()), []),
    ],
)
def test_pod_sets_of_known_kinds_are_inferred(wrapped: dict[str, Any], expected: list[int]) -> None:
    assert counts(wrapped) == expected


def test_declared_pod_sets_replace_inferred_ones() -> None:
    declared = {"path": "template.spec.groups[1].template", "replicas": 7}
    groups = [{}, {"template": template()}]
    assert counts(component("example.com/v1", "Other", declared, groups=groups)) == [7]


@pytest.mark.parametrize("path", ["spec.template", "template.spec[0]", "template.spec.groups[9].template", "template."])
def test_declared_pod_set_without_template_is_left_out(path: str) -> None:
    assert counts(component("example.com/v1", "Other", {"path": path}, groups=[]), POD) == [1]


def test_pod_sets_in_status_count() -> None:
    status = {"componentStatus": [{"podSets": [{"path": "template.spec.template", "replicas": 9}]}]}
    (pod_set,) = APP_WRAPPERS.pod_sets(app_wrapper(JOB, **status))
    assert pod_set["count"] == 9


@pytest.mark.parametrize(
    ("wrapped", "message"),
    [
        (component("batch/v1", "Job"), "template.spec.template does not refer to a v1.PodSpecTemplate"),
        (component("batch/v1", "Job", template={"spec": {"containers": "x"}}), "not parseable as a v1.PodSpec"),
        (component("batch/v1", "Job", template={"metadata": {}}), "does not contain a spec"),
        (component("apps/v1", "Deployment", replicas="2", template=template()), "non-int value '2'"),
    ],
)
def test_invalid_component_fails(wrapped: dict[str, Any], message: str) -> None:
    with pytest.raises(ExpressionFailed) as failure:
        counts(wrapped)
    assert message in str(failure.value)


def test_app_wrapper_with_too_many_pod_sets_fails() -> None:
    with pytest.raises(ExpressionFailed, match="the job has 19 pod sets, and a Workload can have 18"):
        counts(*[POD] * 19)


def test_template_has_copied_fields_and_defaults() -> None:
    wrapped = component("batch/v1", "Job", template={"metadata": {"labels": {"a": "b"}}, **template(hostNetwork=True)})
    wrapped["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A"}]
    (pod_set,) = APP_WRAPPERS.pod_sets(app_wrapper(wrapped))
    spec = pod_set["template"]["spec"]
    assert pod_set["template"]["metadata"] == {"labels": {"a": "b"}}
    assert (spec["restartPolicy"], spec["schedulerName"], "hostNetwork" in spec) == (
        "Always",
        "default-scheduler",
        False,
    )
    assert spec["containers"][0] == {
        "name": "main",
        "image": "python",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }


def test_topology_request_has_indexes_of_kind() -> None:
    job_set = component("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[REPLICATED])
    (pod_set,) = APP_WRAPPERS.pod_sets(app_wrapper(job_set))
    assert pod_set["topologyRequest"] == {
        "podIndexLabel": POD_INDEX,
        "subGroupIndexLabel": "jobset.sigs.k8s.io/job-index",
        "subGroupCount": 2,
    }


def test_priority_class_is_that_of_first_template_with_one() -> None:
    wrapped = component("batch/v1", "Job", template=template(priorityClassName="high"))
    assert APP_WRAPPERS.pod_class(app_wrapper(POD, wrapped)) == "high"


INFOS: Final = [
    PodSetInfo("aw-0", 2, labels={"l": "1"}, annotations={"a": "1"}, node_selector={"pool": "a"}),
    PodSetInfo("aw-1", 1, tolerations=[{"key": "t"}], scheduling_gates=[{"name": "g"}]),
]


def test_start_writes_infos_of_components_and_stop_removes_them() -> None:
    job = app_wrapper(JOB, component("v1", "ConfigMap"), POD)
    started = APP_WRAPPERS.started_job(job, INFOS)
    assert started["spec"]["suspend"] is False
    assert [each["podSetInfos"] for each in started["spec"]["components"]] == [
        [{"annotations": {"a": "1"}, "labels": {"l": "1"}, "nodeSelector": {"pool": "a"}}],
        [],
        [{"tolerations": [{"key": "t"}], "schedulingGates": [{"name": "g"}]}],
    ]
    stop = APP_WRAPPERS.stop(started, INFOS)
    assert isinstance(stop, Update)
    assert stop.obj["spec"] == job["spec"]
    assert APP_WRAPPERS.stop(stop.obj, INFOS) is None


def test_start_requires_one_info_for_each_pod_set() -> None:
    with pytest.raises(InvalidPodSetInfo, match="invalid podset infos: expecting 2 podsets, got 1"):
        APP_WRAPPERS.started_job(app_wrapper(JOB, POD), INFOS[:1])


DEPLOYED: Final = {"type": "ResourcesDeployed", "status": "True"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Succeeded"}, JobCompletion(True, "AppWrapper finished successfully")),
        ({"phase": "Failed"}, JobCompletion(False, "AppWrapper failed")),
        (
            {"phase": "Failed", "conditions": [{**DEPLOYED, "status": "False"}]},
            JobCompletion(False, "AppWrapper failed"),
        ),
        ({"phase": "Failed", "conditions": [DEPLOYED]}, None),
        ({"phase": "Running"}, None),
        ({}, None),
    ],
)
def test_phases_end_app_wrappers(status: dict[str, Any], expected: JobCompletion | None) -> None:
    assert APP_WRAPPERS.completion(app_wrapper(JOB, **status)) == expected


@pytest.mark.parametrize("status", ["True", "False"])
def test_conditions_tell_activity_and_readiness(status: str) -> None:
    conditions = [{"type": type_, "status": status} for type_ in ("QuotaReserved", "PodsReady")]
    job = app_wrapper(JOB, conditions=conditions)
    assert (APP_WRAPPERS.is_active(job), APP_WRAPPERS.pods_ready(job)) == (status == "True", status == "True")


def test_evicted_app_wrapper_keeps_quota_while_it_is_active() -> None:
    stage = Stage(DescribedJobReconciler(APP_WRAPPERS, {}))
    stage.put(make.namespace(), make.local_queue(), make.flavor(), app_wrapper(JOB))
    admission = make.admission("cq", **{"aw-0": 2})
    stage.put(lifecycle.reserve_quota(stage.only_workload(), admission, make.NOW, admitted=True))
    assert stage.get(KIND, "AW")["spec"]["suspend"] is False
    active = {"conditions": [{"type": "QuotaReserved", "status": "True"}]}
    stage.put({**stage.get(KIND, "AW"), "status": active})
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="make room", now=make.NOW))
    stopped = stage.get(KIND, "AW")
    assert stopped["spec"] == app_wrapper(JOB)["spec"]
    assert lifecycle.has_quota_reservation(stage.only_workload())
    stage.put({**stopped, "status": {"conditions": [{"type": "QuotaReserved", "status": "False"}]}})
    assert condition_state(stage.only_workload(), "QuotaReserved")[0] == "False"
