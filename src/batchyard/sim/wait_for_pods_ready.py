"""A scenario's `waitForPodsReady`: as in Kueue's Configuration, but off where nobody asks for it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults
from batchyard.base.instant import parse_duration
from batchyard.core import kueue_settings
from batchyard.core.lifecycle.pods_ready import PodsReadyPolicy

PATH: Final = "spec.waitForPodsReady"


def pods_ready_policy(asked: Mapping[str, Any] | None) -> PodsReadyPolicy | None:
    """How long pods may take to be ready, as asked for; None: as long as they like."""
    return kueue_settings.pods_ready_policy(asked) if asked is not None and asked["enable"] else None


def pods_ready_faults(asked: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """What is wrong with it beside its structure: without any time nobody would ever be ready in time."""
    if asked is not None and not parse_duration(asked["timeout"]):
        remedy = "give a time such as 5m, or set enable to false"
        yield faults.invalid(f"{PATH}.timeout", asked["timeout"], "must be greater than 0", remedy)
