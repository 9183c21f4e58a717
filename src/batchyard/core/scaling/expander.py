"""Which of the pools that could help does: the cluster autoscaler's expanders.

Of equally good options the first is taken, where upstream draws. The price expander is that of upstream without its
preference for machines of a certain size. Source: kubernetes-sigs/cluster-autoscaler, pkg/expander; the prices of what
pods ask for are those of kubernetes/autoscaler, cloudprovider/gce/gce_price_info.go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.api.patterns import is_found
from batchyard.api.views.pods import PodView
from batchyard.core.scaling.groups import NodeGroup
from batchyard.core.scaling.settings import ScalingSettings

#: Millionths of a dollar an hour: for a core, a GiB, and any device.
_CORE_PRICE: Final = 33_174
_GIB_PRICE: Final = 4_446
_DEVICE_PRICE: Final = 700_000
#: Added to both prices, so that pods that ask for nothing do not make all options equal: half a core, 500 MiB.
_STABLE: Final = _CORE_PRICE // 2 + _GIB_PRICE // 2
_GIB: Final = 1 << 30
#: A pool that is yet to be made counts as so much dearer.
_NEW_POOL_FACTOR: Final = 2


@dataclass(frozen=True, slots=True)
class Option:
    """New nodes of a group, or of all of the groups that are as good, and the pods they help."""

    groups: Sequence[NodeGroup]
    #: The pods of each new node. A slice has nodes without any.
    nodes: Sequence[Sequence[PodView]]
    left: Sequence[PodView]
    is_new_pool: bool = False

    @property
    def group(self) -> NodeGroup:
        """A group that stands for all."""
        return self.groups[0]

    @property
    def pods(self) -> list[PodView]:
        """The pods that are helped."""
        return [pod for pods in self.nodes for pod in pods]


def best_option(options: Sequence[Option], settings: ScalingSettings) -> Option:
    """The option to take, of at least one."""
    if settings.expander == "price":
        return min(options, key=_cost)
    if settings.expander == "most-pods":
        return max(options, key=lambda option: len(option.pods))
    if settings.expander == "priority":
        ranks = [_rank(option, settings.priorities) for option in options]
        options = [option for option, rank in zip(options, ranks, strict=True) if rank == min(ranks)]
    return min(options, key=_waste)


def _waste(option: Option) -> float:
    """The parts of cpu and memory that nobody would use, added."""
    pods, count = option.pods, len(option.nodes)
    cpu, memory = option.group.machine.cpu_milli * count, option.group.machine.memory_bytes * count
    return (cpu - sum(pod.shape.cpu for pod in pods)) / cpu + (memory - sum(p.shape.memory for p in pods)) / memory


def _cost(option: Option) -> float:
    """What is paid for what pods ask for."""
    paid = option.group.price * len(option.nodes) + _STABLE
    return paid / (sum(map(_value, option.pods)) + _STABLE) * (_NEW_POOL_FACTOR if option.is_new_pool else 1)


def _value(pod: PodView) -> float:
    devices = sum(amount for resource, amount in pod.requests if "/" in resource)
    return pod.shape.cpu * _CORE_PRICE / 1000 + pod.shape.memory * _GIB_PRICE / _GIB + devices * _DEVICE_PRICE


def _rank(option: Option, priorities: Sequence[str]) -> int:
    """The place of a pool in the order of priorities; those it does not name come last."""
    name = option.group.name.pool
    return next((rank for rank, pattern in enumerate(priorities) if is_found(pattern, name)), len(priorities))
