"""A Namespace as selectors see it."""

from collections.abc import Mapping

from batchyard.api.meta import Obj


def namespace_labels(namespace: Obj) -> Mapping[str, str]:
    """Its labels; Kubernetes adds its name as one."""
    metadata = namespace["metadata"]
    return {"kubernetes.io/metadata.name": metadata["name"], **(metadata.get("labels") or {})}
