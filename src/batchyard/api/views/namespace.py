"""A Namespace as selectors see it."""

from collections.abc import Mapping
from typing import Final

from batchyard.api.meta import Obj

#: The label that each Namespace has.
NAME_LABEL: Final = "kubernetes.io/metadata.name"


def namespace_labels(namespace: Obj) -> Mapping[str, str]:
    """Its labels; Kubernetes adds its name as one."""
    metadata = namespace["metadata"]
    return {NAME_LABEL: metadata["name"], **(metadata.get("labels") or {})}
