"""CustomResourceDefinitions of the kinds of jobs that the platform runs without their own controllers.

Groups, versions and resources are those of the JobKinds. Names and columns are those of the projects. The schemas check
the fields that the controllers read, and accept all others.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.controller_groups import JOB_CONTROLLERS
from batchyard.jobs.described.description import JobKindSpec, built_in_descriptions
from batchyard.jobs.stand_ins.ray_schemas import RAY_PROPERTIES

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRING: Final[Mapping[str, Any]] = {"type": "string"}
_COUNT: Final[Mapping[str, Any]] = {"type": "integer", "format": "int32", "minimum": 0}
_TIME: Final[Mapping[str, Any]] = {"type": "string", "format": "date-time"}
_CONDITION_FIELDS: Final[Mapping[str, Any]] = {"type": _STRING, "status": _STRING}
_CONDITION: Final = {**_ANY_OBJECT, "properties": _CONDITION_FIELDS, "required": list(_CONDITION_FIELDS)}
_REPLICA_STATUS: Final = {**_ANY_OBJECT, "properties": dict.fromkeys(("active", "succeeded", "failed"), _COUNT)}
#: The fields of the status that the controllers read.
_TRAINING_STATUS: Final[Mapping[str, Any]] = {
    **_ANY_OBJECT,
    "properties": {
        "conditions": {"type": "array", "items": _CONDITION},
        "replicaStatuses": {"type": "object", "additionalProperties": _REPLICA_STATUS},
        "startTime": _TIME,
        "completionTime": _TIME,
    },
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
    properties = RAY_PROPERTIES.get(spec.group_kind) or training_properties
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
