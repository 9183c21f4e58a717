"""The simulated cloud as a whole: the controllers that a world with nodes runs beside those of the platform."""

from batchyard.cloud.allocation import Capacity
from batchyard.cloud.instances import Instances
from batchyard.cloud.node_pools import NodePools
from batchyard.interfaces.controller import Controller


def simulated_cloud(seed: int = 0) -> tuple[Controller, ...]:
    """The controllers of the cloud; the seed fixes how long everything takes."""
    return NodePools(), Capacity(), Instances(seed)
