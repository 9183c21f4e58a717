"""Schemas of RayClusters and RayJobs: the types and defaults of the fields that the controllers read.

Source of the defaults: ray-operator/config/crd of KubeRay.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

_Schema: TypeAlias = Mapping[str, Any]

_STRING: Final[_Schema] = {"type": "string"}
_STRINGS: Final[_Schema] = {"type": "object", "additionalProperties": _STRING}
_BOOLEAN: Final[_Schema] = {"type": "boolean"}
_INTEGER: Final[_Schema] = {"type": "integer", "format": "int32"}
_COUNT: Final[_Schema] = {**_INTEGER, "minimum": 0}
_TIME: Final[_Schema] = {"type": "string", "format": "date-time"}


def _object(required: tuple[str, ...] = (), **properties: _Schema) -> dict[str, Any]:
    """Return the schema of an object that may have other fields too."""
    fields = {"properties": properties} if properties else {}
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **fields, **_required(required)}


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
_CONDITION: Final = _object(("type", "status"), type=_STRING, status=_STRING)
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
RAY_PROPERTIES: Final[Mapping[str, Mapping[str, _Schema]]] = {
    "RayCluster.ray.io": {"spec": _CLUSTER, "status": _CLUSTER_STATUS},
    "RayJob.ray.io": {"spec": _JOB, "status": _JOB_STATUS},
}
