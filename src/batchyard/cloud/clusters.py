"""The Cluster a world has, as the cloud's controllers find it."""

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.ports.client import Reader


def only_cluster(reader: Reader) -> Obj | None:
    """The Cluster; a world has one, or none."""
    found = reader.list(scheme.CLUSTER)
    return found[0] if found else None


def start_of(cluster: Obj) -> Instant:
    """When the world began, from which reservations count."""
    return parse_time(cluster["metadata"]["creationTimestamp"])
