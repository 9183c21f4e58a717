"""Defaults of volumes and of claims to them. Source: Kubernetes's pkg/apis/core/v1/defaults.go and strategies."""

from typing import Any

from batchyard.api.meta import Obj


def claim_defaults(obj: Obj) -> dict[str, Any]:
    """A claim that nothing is said of waits for its volume."""
    spec = {"volumeMode": "Filesystem", **(obj.get("spec") or {})}
    return {**obj, "spec": spec, "status": obj.get("status") or {"phase": "Pending"}}


def volume_defaults(obj: Obj) -> dict[str, Any]:
    """A volume that nothing is said of is kept when its claim goes."""
    done = claim_defaults(obj)
    return {**done, "spec": {"persistentVolumeReclaimPolicy": "Retain", **done["spec"]}}
