"""CustomResourceDefinitions of the kinds of jobs that the platform runs without their own controllers.

Groups, versions and resources are those of the JobKinds. Names and columns are those of the projects. The schemas check
the fields that the controllers read, and accept all others.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.controller_groups import JOB_CONTROLLERS
from batchyard.jobs.described.description import JobKindSpec, built_in_descriptions

_Schema: TypeAlias = Mapping[str, Any]

_ANY_OBJECT: Final[_Schema] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRING: Final[_Schema] = {"type": "string"}
_COUNT: Final[_Schema] = {"type": "integer", "format": "int32", "minimum": 0}
_TIME: Final[_Schema] = {"type": "string", "format": "date-time"}
_CONDITION_FIELDS: Final[_Schema] = {"type": _STRING, "status": _STRING}
_CONDITION: Final = {**_ANY_OBJECT, "properties": _CONDITION_FIELDS, "required": list(_CONDITION_FIELDS)}
_REPLICA_STATUS: Final = {**_ANY_OBJECT, "properties": dict.fromkeys(("active", "succeeded", "failed"), _COUNT)}
#: The fields of the status that the controllers read.
_TRAINING_STATUS: Final[_Schema] = {
    **_ANY_OBJECT,
    "properties": {
        "conditions": {"type": "array", "items": _CONDITION},
        "replicaStatuses": {"type": "object", "additionalProperties": _REPLICA_STATUS},
        "startTime": _TIME,
        "completionTime": _TIME,
    },
}

# The fields of RayClusters and RayJobs. Source of the defaults: ray-operator/config/crd of KubeRay.


_STRINGS: Final[_Schema] = {"type": "object", "additionalProperties": _STRING}
_BOOLEAN: Final[_Schema] = {"type": "boolean"}
_INTEGER: Final[_Schema] = {"type": "integer", "format": "int32"}


def _object(required: tuple[str, ...] = (), **properties: _Schema) -> dict[str, Any]:
    """Return the schema of an object that may have other fields too."""
    fields = {"properties": properties} if properties else {}
    return {**_ANY_OBJECT, **fields, **_required(required)}


def _required(names: tuple[str, ...]) -> dict[str, Any]:
    return {"required": list(names)} if names else {}


_TEMPLATE: Final = _object(("spec",), spec=_object(("containers",), containers={"type": "array", "items": _object()}))
_GROUP_FIELDS: Final[Mapping[str, _Schema]] = {
    "template": _TEMPLATE,
    "rayStartParams": _STRINGS,
    "resources": _STRINGS,
    "labels": _STRINGS,
}
_HEAD_GROUP: Final = _object(
    ("template",), **_GROUP_FIELDS, serviceType=_STRING, enableIngress=_BOOLEAN, headService=_object()
)
_WORKER_GROUP: Final = _object(
    ("groupName", "template"),
    **_GROUP_FIELDS,
    groupName=_STRING,
    replicas={**_COUNT, "default": 0},
    minReplicas={**_INTEGER, "default": 0},
    maxReplicas={**_INTEGER, "default": 2**31 - 1},
    numOfHosts={**_INTEGER, "default": 1},
    suspend=_BOOLEAN,
    scaleStrategy=_object(workersToDelete={"type": "array", "items": _STRING}),
)
_MANAGER: Final[_Schema] = {"type": "string", "enum": ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]}
_CLUSTER: Final = _object(
    ("headGroupSpec",),
    headGroupSpec=_HEAD_GROUP,
    workerGroupSpecs={"type": "array", "items": _WORKER_GROUP},
    rayVersion=_STRING,
    suspend=_BOOLEAN,
    managedBy=_MANAGER,
    headServiceAnnotations=_STRINGS,
    enableInTreeAutoscaling=_BOOLEAN,
    authOptions=_object(mode=_STRING),
    upgradeStrategy=_object(type=_STRING),
)
_SUBMISSION_MODES: Final = ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]
_JOB: Final = _object(
    rayClusterSpec=_CLUSTER,
    clusterSelector=_STRINGS,
    entrypoint=_STRING,
    entrypointNumCpus={"type": "number"},
    entrypointNumGpus={"type": "number"},
    entrypointResources=_STRING,
    runtimeEnvYAML=_STRING,
    metadata=_STRINGS,
    jobId=_STRING,
    submissionMode={"type": "string", "enum": _SUBMISSION_MODES, "default": "K8sJobMode"},
    submitterPodTemplate=_TEMPLATE,
    submitterConfig=_object(backoffLimit=_INTEGER),
    suspend=_BOOLEAN,
    managedBy=_MANAGER,
    shutdownAfterJobFinishes=_BOOLEAN,
    ttlSecondsAfterFinished={**_INTEGER, "default": 0},
    activeDeadlineSeconds=_INTEGER,
    preRunningDeadlineSeconds={**_INTEGER, "minimum": 1},
    backoffLimit={**_INTEGER, "default": 0},
)
_CLUSTER_STATUS: Final = _object(state=_STRING, conditions={"type": "array", "items": _CONDITION})
_JOB_STATUS: Final = _object(
    (),
    **dict.fromkeys(("jobId", "rayClusterName", "dashboardURL", "jobStatus", "jobDeploymentStatus"), _STRING),
    **dict.fromkeys(("reason", "message"), _STRING),
    **dict.fromkeys(("startTime", "endTime"), _TIME),
    **dict.fromkeys(("succeeded", "failed"), _INTEGER),
    rayClusterStatus=_object(),
)
#: The properties of objects, by kind.
_RAY_PROPERTIES: Final[Mapping[str, Mapping[str, _Schema]]] = {
    "RayCluster.ray.io": {"spec": _CLUSTER, "status": _CLUSTER_STATUS},
    "RayJob.ray.io": {"spec": _JOB, "status": _JOB_STATUS},
}

#: The columns of kinds: name, type, path and priority.
_KUBEFLOW_COLUMNS: Final = (
    ("State", "string", ".status.conditions[-1:].type", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
_COLUMNS: Final[Mapping[str, Sequence[tuple[str, str, str, int]]]] = {
    **dict.fromkeys(JOB_CONTROLLERS["kubeflow"], _KUBEFLOW_COLUMNS),
    "RayCluster.ray.io": (
        ("desired workers", "integer", ".status.desiredWorkerReplicas", 0),
        ("available workers", "integer", ".status.availableWorkerReplicas", 0),
        ("cpus", "string", ".status.desiredCPU", 0),
        ("memory", "string", ".status.desiredMemory", 0),
        ("gpus", "string", ".status.desiredGPU", 0),
        ("tpus", "string", ".status.desiredTPU", 1),
        ("status", "string", ".status.state", 0),
        ("age", "date", ".metadata.creationTimestamp", 0),
        ("head pod IP", "string", ".status.head.podIP", 1),
        ("head service IP", "string", ".status.head.serviceIP", 1),
    ),
    "RayJob.ray.io": (
        ("job status", "string", ".status.jobStatus", 0),
        ("deployment status", "string", ".status.jobDeploymentStatus", 0),
        ("ray cluster name", "string", ".status.rayClusterName", 0),
        ("start time", "string", ".status.startTime", 0),
        ("end time", "string", ".status.endTime", 0),
        ("age", "date", ".metadata.creationTimestamp", 0),
    ),
}
#: Kinds with a subresource `scale` for their workers.
_SCALED_KINDS: Final = frozenset({"PyTorchJob.kubeflow.org", "PaddleJob.kubeflow.org", "JAXJob.kubeflow.org"})


def job_definitions(job_controllers: Collection[str]) -> list[Obj]:
    """Return the CustomResourceDefinitions of the kinds that the controllers of `--job-controllers` run."""
    descriptions = built_in_descriptions()
    return [_definition(descriptions[kind]) for name in job_controllers for kind in JOB_CONTROLLERS[name]]


def _definition(spec: JobKindSpec) -> Obj:
    names = {"kind": spec.kind, "listKind": f"{spec.kind}List", "plural": spec.resource, "singular": spec.kind.lower()}
    categories = {"categories": ["all"]} if spec.group == "ray.io" else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{spec.resource}.{spec.group}", "annotations": {well_known.PROVIDED: "true"}},
        "spec": {
            "group": spec.group,
            "names": {**names, **categories},
            "scope": "Namespaced",
            "versions": [_version(spec)],
            "conversion": {"strategy": "None"},
        },
    }


def _version(spec: JobKindSpec) -> dict[str, Any]:
    is_kubeflow = spec.group == "kubeflow.org"
    training_properties = {"spec": _training_schema(spec), "status": _TRAINING_STATUS} if is_kubeflow else {}
    properties = _RAY_PROPERTIES.get(spec.group_kind) or training_properties
    columns = [
        {"name": name, "type": column_type, "jsonPath": path, **({"priority": priority} if priority else {})}
        for name, column_type, path, priority in _COLUMNS.get(spec.group_kind, ())
    ]
    subresources: dict[str, Any] = {"status": {}}
    if spec.group_kind in _SCALED_KINDS:
        subresources["scale"] = {
            "specReplicasPath": f".spec.{replica_field(spec)}.Worker.replicas",
            "statusReplicasPath": ".status.replicaStatuses.Worker.active",
            "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
        }
    return {
        "name": spec.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        "subresources": subresources,
        **({"additionalPrinterColumns": columns} if columns else {}),
    }


def replica_field(spec: JobKindSpec) -> str:
    """Return the field of a Kubeflow job's spec that holds its replica types, such as `pytorchReplicaSpecs`."""
    return spec.pod_sets[0].path.split(".")[1]


def _training_schema(spec: JobKindSpec) -> dict[str, Any]:
    run_policy = {
        "activeDeadlineSeconds": {"type": "integer", "format": "int64", "minimum": 0},
        "backoffLimit": _COUNT,
        "cleanPodPolicy": {"type": "string", "enum": ["", "All", "Running", "None"]},
        "managedBy": _STRING,
        "suspend": {"type": "boolean"},
        "ttlSecondsAfterFinished": _COUNT,
    }
    replica = {
        "replicas": _COUNT,
        "restartPolicy": {"type": "string", "enum": ["", "Always", "OnFailure", "Never", "ExitCode"]},
        "template": _ANY_OBJECT,
    }
    replicas = {"type": "object", "additionalProperties": {**_ANY_OBJECT, "properties": replica}}
    field = replica_field(spec)
    properties = {"runPolicy": {**_ANY_OBJECT, "properties": run_policy}, field: replicas}
    return {**_ANY_OBJECT, "properties": properties, "required": [field]}
