"""Defaults of controllers of pods that are no Jobs. Source: Kubernetes's pkg/apis/{apps,batch}/v1/defaults.go."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.defaults.volumes import claim_defaults
from batchyard.api.meta import Obj, with_metadata

_QUARTER: Final = {"maxSurge": "25%", "maxUnavailable": "25%"}
_CLAIM: Final = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
_ROLLING: Final = "RollingUpdate"


def deployment_defaults(obj: Obj) -> Obj:
    """Of a Deployment."""
    strategy = _rolling(obj["spec"].get("strategy"), _QUARTER)
    settings = {"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10}
    return _with_spec(obj, settings, strategy=strategy)


def replica_set_defaults(obj: Obj) -> Obj:
    """Of a ReplicaSet."""
    return _with_spec(obj, {"replicas": 1})


def stateful_set_defaults(obj: Obj) -> Obj:
    """Of a StatefulSet."""
    settings = {"podManagementPolicy": "OrderedReady", "replicas": 1, "revisionHistoryLimit": 10}
    retention = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    given = obj["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    claims = obj["spec"].get("volumeClaimTemplates")
    return _with_spec(
        obj,
        settings,
        **({"volumeClaimTemplates": [{**_CLAIM, **claim_defaults(claim)} for claim in claims]} if claims else {}),
        persistentVolumeClaimRetentionPolicy={**retention, **given},
        updateStrategy=_rolling(obj["spec"].get("updateStrategy"), {"partition": 0}),
    )


def replication_controller_defaults(obj: Obj) -> Obj:
    """Of a ReplicationController, which selects the pods of its template and has their labels."""
    spec = obj.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    done = {"replicas": 1, **({"selector": labels} if labels else {}), **spec}
    obj = {**obj, "spec": done} if done != spec else obj
    return with_metadata(obj, labels=labels) if labels and not obj["metadata"].get("labels") else obj


def daemon_set_defaults(obj: Obj) -> Obj:
    """Of a DaemonSet."""
    strategy = _rolling(obj["spec"].get("updateStrategy"), {"maxSurge": 0, "maxUnavailable": 1})
    return _with_spec(obj, {"revisionHistoryLimit": 10}, updateStrategy=strategy)


def cron_job_defaults(obj: Obj) -> Obj:
    """Of a CronJob."""
    limits = {"failedJobsHistoryLimit": 1, "successfulJobsHistoryLimit": 3}
    return _with_spec(obj, {"concurrencyPolicy": "Allow", "suspend": False, **limits})


def _with_spec(obj: Obj, missing: Mapping[str, Any], **fields: Any) -> Obj:
    """The object with these fields of its spec, and with others where they are missing; itself if it has them all."""
    spec = {**missing, **obj["spec"], **fields}
    return {**obj, "spec": spec} if spec != obj["spec"] else obj


def _rolling(strategy: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """How pods are replaced: one after the other, unless another way is named."""
    given = {"type": _ROLLING, **(strategy or {})}
    if given["type"] != _ROLLING:
        return given
    return {**given, "rollingUpdate": {**settings, **(given.get("rollingUpdate") or {})}}
