"""A scenario's `waitForPodsReady`: fields and defaults of Kueue's Configuration, but off where nobody asks for it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults
from batchyard.base.instant import SECOND, Duration, parse_duration
from batchyard.core.lifecycle.pods_ready import PodsReadyPolicy, RequeuingTimestamp

PATH: Final = "spec.waitForPodsReady"


def pods_ready_policy(asked: Mapping[str, Any] | None) -> PodsReadyPolicy | None:
    """How long pods may take to be ready, as asked for; None: as long as they like."""
    if asked is None or not asked["enable"]:
        return None
    strategy = asked["requeuingStrategy"]
    return PodsReadyPolicy(
        timeout=parse_duration(asked["timeout"]),
        recovery_timeout=_duration(asked.get("recoveryTimeout")),
        block_admission=asked["blockAdmission"],
        requeuing_timestamp=RequeuingTimestamp(strategy["timestamp"]),
        backoff_limit_count=strategy.get("backoffLimitCount"),
        backoff_base=strategy["backoffBaseSeconds"] * SECOND,
        backoff_max=strategy["backoffMaxSeconds"] * SECOND,
    )


def pods_ready_faults(asked: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """What is wrong with it beside its structure: without any time nobody would ever be ready in time."""
    if asked is not None and not parse_duration(asked["timeout"]):
        remedy = "give a time such as 5m, or set enable to false"
        yield faults.invalid(f"{PATH}.timeout", asked["timeout"], "must be greater than 0", remedy)


def _duration(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)
