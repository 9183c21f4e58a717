"""The Cluster a world has, as the cloud's controllers find it."""

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.ports.client import Reader


def only_cluster(reader: Reader) -> Obj | None:
    """The Cluster; a world has one, or none."""
    found = reader.list(scheme.CLUSTER)
    return found[0] if found else None
