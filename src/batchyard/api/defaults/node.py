"""Defaults of Nodes. Source: Kubernetes's pkg/apis/core/v1/defaults.go."""

from batchyard.api.meta import Obj


def node_defaults(node: Obj) -> Obj:
    """A Node that gives its pods all it has, unless it says otherwise."""
    status = node.get("status") or {}
    if status.get("capacity") is None or status.get("allocatable") is not None:
        return node
    return {**node, "status": {**status, "allocatable": status["capacity"]}}
