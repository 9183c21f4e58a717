"""The simulated cloud as a set of controllers, which run beside those of the platform."""

from batchyard.cloud.allocation import CapacityController
from batchyard.cloud.instances import Instances
from batchyard.cloud.node_pools import NodePools
from batchyard.interfaces.controller import Controller


def simulated_cloud(seed: int = 0) -> tuple[Controller, ...]:
    """Return the controllers of the cloud; the seed determines all durations."""
    return NodePools(), CapacityController(), Instances(seed)
