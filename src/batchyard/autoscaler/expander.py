"""Which of the pools that could help does: the cluster autoscaler's expanders.

Of equally good options the first is taken, where upstream draws. The price expander is that of upstream without its
preference for machines of a certain size. Source: kubernetes-sigs/cluster-autoscaler, pkg/expander; the prices of what
pods ask for are those of kubernetes/autoscaler, cloudprovider/gce/gce_price_info.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.patterns import is_found
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.settings import ScalingSettings
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant

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


# --- backoff ---
#
# Node groups whose machines did not come are left alone for a while, longer each time.
#
# Backoffs are kept as the text of an object, so that they outlive the autoscaler. Pools that the autoscaler made are
# known by what machines they have, since they come and go: who finds no A100 for one Job finds none for the next.
# Sources: kubernetes-sigs/cluster-autoscaler, pkg/utils/backoff; GKE's autoscaler, pkg/backoff (exponential_backoff.go,
# resource_backoff.go, future_reservations_backoff.go).


SHORTEST: Final = 5 * MINUTE
LONGEST: Final = 30 * MINUTE
#: Who has not failed for so long begins anew.
FORGOTTEN_AFTER: Final = 3 * HOUR
#: Reservations that have yet to start are tried so long before they do.
BEFORE_RESERVATION: Final = 30 * MINUTE
#: What does not get better by waiting.
_LASTING: Final = (
    "CONDITION_NOT_MET",
    "INVALID_ARGUMENT",
    "INVALID_GPU_TYPE",
    "INVALID_MACHINE_TYPE",
    "LIMIT_EXCEEDED",
    "RESERVATION_INCOMPATIBLE",
    "RESERVATION_NOT_FOUND",
)

_encode = msgspec.json.Encoder(order="sorted").encode


class Failure(NamedTuple):
    """Why machines did not come."""

    code: str
    message: str
    #: When they can be had, if that is known.
    available_at: Instant | None = None


class Backoff(NamedTuple):
    """How long a group is left alone, and why."""

    until: Instant
    duration: Duration
    failed_at: Instant
    code: str

    @property
    def is_lasting(self) -> bool:
        """Whether only a change helps, and time does not."""
        return self.code in _LASTING


def backoff_key(group: NodeGroup) -> str:
    """What backs off together."""
    zone = group.name.zone
    if not group.is_auto_provisioned:
        return f"{group.name.pool}/{zone}"
    accelerator = group.machine.accelerator
    devices = f"+{accelerator.count}x{accelerator.type}" if accelerator else ""
    return f"{group.machine.name}{devices}/{group.provisioning}/{zone}"


def after_failure(known: Backoff | None, failure: Failure, now: Instant) -> Backoff:
    """The backoff after a failure: twice the last one, which stays as it is while it lasts."""
    if known is not None and known.until > now:
        return known
    duration = SHORTEST
    if known is not None and known.failed_at + FORGOTTEN_AFTER > now:
        duration = min(2 * known.duration, LONGEST)
    until = now + duration
    if failure.available_at is not None:
        until = max(until, failure.available_at - BEFORE_RESERVATION)
    return Backoff(until, duration, now, failure.code)


def read_backoffs(text: str) -> dict[str, Backoff]:
    """The backoffs of a text, by key; a text that somebody else wrote has none."""
    try:
        rows: Any = msgspec.json.decode(text)
        return {key: _read(row) for key, row in rows.items()}
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def write_backoffs(backoffs: Mapping[str, Backoff], now: Instant) -> str:
    """The text of backoffs, those left out that are forgotten."""
    kept = {key: each for key, each in backoffs.items() if max(each.until, each.failed_at + FORGOTTEN_AFTER) > now}
    return _encode({key: _written(each) for key, each in kept.items()}).decode()


def _read(row: Mapping[str, Any]) -> Backoff:
    return Backoff(parse_time(row["until"]), row["seconds"] * SECOND, parse_time(row["failedAt"]), row["code"])


def _written(backoff: Backoff) -> dict[str, Any]:
    return {
        "until": format_time(backoff.until),
        "seconds": backoff.duration // SECOND,
        "failedAt": format_time(backoff.failed_at),
        "code": backoff.code,
    }
