"""How a scheduler prefers nodes: spread over them, or filled one after the other."""

from enum import Enum


class Profile(Enum):
    """GKE's autoscaling profiles, as far as they concern scheduling.

    The second fills nodes (MostAllocated) so that others can go; the first is kube-scheduler's default.
    """

    BALANCED = "balanced"
    OPTIMIZE_UTILIZATION = "optimize-utilization"
