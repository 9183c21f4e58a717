"""SparkApplications: pod sets with the requests that Spark computes, starts and stops, states.

Sources: pkg/controller/jobs/sparkapplication/{sparkapplication_controller,sparkapplication_resources}_test.go of Kueue.
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
from stage import Stage

KIND: Final = "SparkApplication.sparkoperator.k8s.io"


def spark_integration() -> DescribedJobIntegration:
    integration = find_integration(KIND, {})
    assert integration is not None
    return integration


SPARK: Final = spark_integration()


def application(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = make.metadata("pi", labels={"kueue.x-k8s.io/queue-name": "lq"})
    obj = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": metadata}
    roles = {"driver": {}, "executor": {"instances": 2}}
    fields = {"type": "Scala", "mode": "cluster", "suspend": True, **roles, **spec}
    return {**obj, "spec": fields, "status": status or {}}


def requests(role: str, **spec: Any) -> tuple[str, str]:
    driver, executor = SPARK.pod_sets(application(**spec))
    container = (driver if role == "driver" else executor)["template"]["spec"]["containers"][0]
    return container["resources"]["requests"]["cpu"], container["resources"]["requests"]["memory"]


@pytest.mark.parametrize("role", ["driver", "executor"])
@pytest.mark.parametrize(
    ("fields", "spec", "expected"),
    [
        ({}, {}, ("1", "1408Mi")),
        ({"cores": 4}, {}, ("4", "1408Mi")),
        ({"cores": 4, "coreRequest": "500m"}, {}, ("500m", "1408Mi")),
        ({"memory": "8g"}, {}, ("1", "9011Mi")),
        ({"memory": "4g", "memoryOverhead": "1g"}, {}, ("1", "5Gi")),
        ({"memory": "4g", "memoryOverhead": "512"}, {}, ("1", "4608Mi")),
        ({"memory": "2g", "memoryOverhead": "100m"}, {"memoryOverheadFactor": "0.5"}, ("1", "2148Mi")),
        ({"memory": "1g"}, {"memoryOverheadFactor": "0"}, ("1", "1408Mi")),
        ({"memory": "2g"}, {"memoryOverheadFactor": "0.5"}, ("1", "3Gi")),
        (
            {"memory": "2g"},
            {"memoryOverheadFactor": "0.5", "sparkConf": {"spark.kubernetes.memoryOverheadFactor": "0.25"}},
            ("1", "2560Mi"),
        ),
        ({"memory": "2g"}, {"type": "Python"}, ("1", "2867Mi")),
        ({"memory": "2g"}, {"type": "R"}, ("1", "2867Mi")),
        ({"memory": "2g"}, {"type": "Python", "memoryOverheadFactor": "0.1"}, ("1", "2432Mi")),
    ],
)
def test_requests_are_those_of_spark(
    role: str, fields: dict[str, Any], spec: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert requests(role, **spec, **{role: fields}) == expected


CONF: Final = {
    "spark.driver.cores": "3",
    "spark.driver.memory": "2g",
    "spark.driver.memoryOverhead": "1g",
    "spark.executor.cores": "2",
    "spark.kubernetes.executor.request.cores": "2500m",
    "spark.kubernetes.memoryOverheadFactor": "0.25",
    "spark.executor.memory": "2g",
    "spark.executor.memoryOverheadFactor": "0.5",
}


def test_spark_conf_applies_where_fields_are_missing() -> None:
    assert requests("driver", sparkConf=CONF) == ("3", "3Gi")
    assert requests("executor", sparkConf=CONF) == ("2500m", "3Gi")
    fields = {"cores": 1, "coreRequest": "100m", "memory": "1g", "memoryOverhead": "1g"}
    assert requests("driver", sparkConf=CONF, driver=fields) == ("100m", "2Gi")


@pytest.mark.parametrize(
    ("spec", "driver", "executor"),
    [
        ({"type": "Python", "sparkConf": {"spark.executor.pyspark.memory": "512m"}}, "1433Mi", "1945Mi"),
        ({"sparkConf": {"spark.executor.pyspark.memory": "512m"}}, "1408Mi", "1408Mi"),
        (
            {"sparkConf": {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1g"}},
            "1408Mi",
            "2432Mi",
        ),
        (
            {"sparkConf": {"spark.memory.offHeap.enabled": "TRUE", "spark.memory.offHeap.size": "1073741824"}},
            "1408Mi",
            "2432Mi",
        ),
        ({"sparkConf": {"spark.memory.offHeap.size": "1g"}}, "1408Mi", "1408Mi"),
    ],
)
def test_executors_use_memory_outside_of_java(spec: dict[str, Any], driver: str, executor: str) -> None:
    assert (requests("driver", **spec)[1], requests("executor", **spec)[1]) == (driver, executor)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"driver": {"memory": "512Mi"}}, "spec.driver.memory: '512Mi' is not a size such as 512m or 2g"),
        ({"driver": {"memory": "8589934592p"}}, "is not a size"),
        (
            {"driver": {"memory": "8191p", "memoryOverhead": "8191p"}},
            "spec.driver.memory with its overhead is too large",
        ),
        ({"driver": {"memory": "8191p"}, "memoryOverheadFactor": "1e30"}, "is too large"),
        ({"memoryOverheadFactor": "lots"}, "invalid memory overhead factor 'lots': must be a non-negative number"),
        ({"sparkConf": {"spark.driver.cores": "four"}}, "spec.driver.cores must be a whole number, not 'four'"),
        ({"driver": {"coreRequest": "x"}}, "spec.driver.coreRequest: "),
        ({"driver": {"memoryLimit": "x"}}, "spec.driver.memoryLimit: "),
        ({"executor": {"instances": -1}}, "spec.executor.instances must be a whole number"),
        ({"driver": {"sidecars": [{"image": 1}]}}, "spec.driver is invalid: "),
    ],
)
def test_invalid_field_fails(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ExpressionFailed) as failure:
        SPARK.pod_sets(application(**spec))
    assert problem in str(failure.value)


def test_pod_templates_have_metadata_and_scheduling_fields_of_roles() -> None:
    fields = {"priorityClassName": "high", "nodeSelector": {"pool": "a"}, "tolerations": [{"key": "t"}]}
    base = {"metadata": {"labels": {"a": "template", "b": "template"}}, "spec": {"hostNetwork": True}}
    job = application(driver={"labels": {"a": "role"}, "template": base, **fields})
    template = SPARK.pod_sets(job)[0]["template"]
    assert template["metadata"] == {"labels": {"a": "role", "b": "template"}}
    assert {name: value for name, value in template["spec"].items() if name != "containers"} == fields
    assert SPARK.pod_class(job) == "high"


def test_pod_templates_have_containers_volumes_and_limits_of_roles() -> None:
    sidecar, init = {"name": "log", "image": "busybox"}, {"name": "init", "image": "busybox"}
    names = ("data", "spark-local-dir-1")
    driver = {
        "coreLimit": "2",
        "memoryLimit": "3g",
        "gpu": {"name": "nvidia.com/gpu", "quantity": 1},
        "sidecars": [sidecar, sidecar],
        "initContainers": [init],
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names],
    }
    volumes = [{"name": name, "emptyDir": {}} for name in (*names, "unused")]
    spec = SPARK.pod_sets(application(driver=driver, volumes=volumes))[0]["template"]["spec"]
    main, other = spec["containers"]
    assert (main["name"], other, spec["initContainers"]) == ("spark-kubernetes-driver", sidecar, [init])
    assert main["resources"]["limits"] == {"cpu": "2", "memory": "3Gi", "nvidia.com/gpu": "1"}
    assert (spec["volumes"], main["volumeMounts"]) == (volumes[:1], [{"name": "data", "mountPath": "/data"}])


INFOS: Final = [
    PodSetInfo("driver", 1, node_selector={"pool": "a"}, labels={"l": "1"}),
    PodSetInfo(
        "executor", 2, node_selector={"pool": "b"}, tolerations=[{"key": "t"}], scheduling_gates=[{"name": "g"}]
    ),
]


def test_start_moves_common_selector_to_roles_and_stop_keeps_it_there() -> None:
    job = application(nodeSelector={"disk": "ssd"})
    started = SPARK.started_job(job, INFOS)
    driver, executor = started["spec"]["driver"], started["spec"]["executor"]
    assert (started["spec"]["suspend"], "nodeSelector" in started["spec"]) == (False, False)
    assert (driver["nodeSelector"], driver["labels"]) == ({"disk": "ssd", "pool": "a"}, {"l": "1"})
    assert (executor["nodeSelector"], executor["tolerations"]) == ({"disk": "ssd", "pool": "b"}, [{"key": "t"}])
    assert executor["template"]["spec"]["schedulingGates"] == [{"name": "g"}]
    originals = [PodSetInfo("driver", 1, node_selector={"disk": "ssd"}), PodSetInfo("executor", 2)]
    stop = SPARK.stop(started, originals)
    assert isinstance(stop, Update)
    assert stop.obj["spec"]["suspend"] is True
    container = {"name": "spark-kubernetes-driver"}
    assert stop.obj["spec"]["driver"] == {
        "nodeSelector": {"disk": "ssd"},
        "template": {"spec": {"containers": [container]}},
    }
    assert stop.obj["spec"]["executor"]["instances"] == 2
    assert SPARK.stop(stop.obj, originals) is None


def test_start_requires_two_infos() -> None:
    with pytest.raises(InvalidPodSetInfo, match="invalid podset infos: expecting 2 podset, got 1"):
        SPARK.started_job(application(), INFOS[:1])


def state(name: str, *executors: str, message: str = "") -> dict[str, Any]:
    states = {f"pi-exec-{index}": each for index, each in enumerate(executors)}
    return {"applicationState": {"state": name, "errorMessage": message}, "executorState": states}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (state("COMPLETED"), JobCompletion(True, "")),
        (state("FAILED", message="no more retries"), JobCompletion(False, "no more retries")),
        (state("SUBMISSION_FAILED"), None),
        (state("RUNNING"), None),
        ({}, None),
    ],
)
def test_states_end_applications(status: dict[str, Any], expected: JobCompletion | None) -> None:
    assert SPARK.completion(application(status)) == expected


@pytest.mark.parametrize(
    ("status", "spec", "is_ready"),
    [
        (state("RUNNING", "RUNNING", "COMPLETED"), {}, True),
        (state("RUNNING", "RUNNING", "PENDING"), {}, False),
        (state("SUBMITTED", "RUNNING", "RUNNING"), {}, False),
        (state("RUNNING"), {"executor": {}}, True),
        (state("RUNNING", "RUNNING"), {"dynamicAllocation": {"enabled": True, "minExecutors": 1}}, True),
        (state("RUNNING", "RUNNING"), {"dynamicAllocation": {"enabled": True}}, False),
    ],
)
def test_application_is_ready_with_its_executors(status: dict[str, Any], spec: dict[str, Any], is_ready: bool) -> None:
    assert SPARK.pods_ready(application(status, **spec)) is is_ready


def test_queued_applications_run_in_cluster_mode_without_dynamic_allocation() -> None:
    job = application(mode="client", dynamicAllocation={"enabled": True})
    mode, allocation = SPARK.validation_errors(job)
    assert (mode.path, allocation.path) == ("spec.mode", "spec.dynamicAllocation.enabled")
    assert mode.problem == 'Invalid value: "client": only Cluster mode is supported for a kueue managed job'
    assert allocation.problem == (
        "Invalid value: true: a kueue managed job can use dynamicAllocation only when the ElasticJobsViaWorkloadSlices "
        "feature gate is on and the job is an elastic job"
    )
    assert list(SPARK.validation_errors(application())) == []


def test_topology_annotations_are_validated() -> None:
    annotations = {"kueue.x-k8s.io/podset-required-topology": "-"}
    (error,) = SPARK.topology_errors(application(driver={"annotations": annotations}))
    assert error.path.startswith("spec.driver.annotations")
    (error,) = SPARK.topology_errors(application(driver={"memory": "x"}))
    assert "spec.driver.memory" in error.problem


def test_application_starts_stops_and_starts_again() -> None:
    stage = Stage(DescribedJobReconciler(SPARK, {}))
    stage.put(make.namespace(), make.local_queue(), make.flavor(), application())
    admission = make.admission("cq", driver=1, executor=2)
    stage.put(lifecycle.reserve_quota(stage.only_workload(), admission, make.NOW, admitted=True))
    started = stage.get(KIND, "pi")
    assert started["spec"]["suspend"] is False
    stage.put({**started, "status": state("RUNNING", "RUNNING", "RUNNING")})
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="make room", now=make.NOW))
    stopped = stage.get(KIND, "pi")
    assert stopped["spec"]["suspend"] is True
    assert lifecycle.has_quota_reservation(stage.only_workload())
    stage.put({**stopped, "status": state("SUSPENDED")})
    assert not lifecycle.has_quota_reservation(stage.only_workload())
    stage.put(lifecycle.reserve_quota(stage.only_workload(), admission, make.NOW, admitted=True))
    assert stage.get(KIND, "pi")["spec"]["suspend"] is False
