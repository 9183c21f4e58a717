"""Node groups whose machines did not come are left alone for a while, longer each time.

Backoffs are kept as the text of an object, so that they outlive the autoscaler. Pools that the autoscaler made are
known by what machines they have, since they come and go: who finds no A100 for one Job finds none for the next.
Sources: kubernetes-sigs/cluster-autoscaler, pkg/utils/backoff; GKE's autoscaler, pkg/backoff (exponential_backoff.go,
resource_backoff.go, future_reservations_backoff.go).
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.core.scaling.groups import NodeGroup

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
