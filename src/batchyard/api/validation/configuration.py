"""Rules of Kueue's Configuration.

Source: pkg/config/validation.go of Kueue.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.kueue_features import FINAL_SHARE, GATES, INITIAL_SHARE
from batchyard.api.schema.nearest import nearest
from batchyard.api.validation import faults

_STRATEGIES: Final = ([FINAL_SHARE], [INITIAL_SHARE], [FINAL_SHARE, INITIAL_SHARE])


def configuration_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """All of them; its `waitForPodsReady` has nothing that its structure does not say."""
    yield from _fair_sharing_faults(obj.get("fairSharing"))
    resources = obj.get("resources") or {}
    if resources.get("quotaCheckStrategy") == "IgnoreUndeclared" and resources.get("excludeResourcePrefixes"):
        path, message = "resources.quotaCheckStrategy", "excludeResourcePrefixes is not allowed when "
        message += "quotaCheckStrategy is IgnoreUndeclared"
        yield faults.invalid(path, "IgnoreUndeclared", message, "keep one of them")
    for name in obj.get("featureGates") or {}:
        if name not in GATES:
            close = nearest(name, GATES)
            remedy = f"did you mean {close}?" if close else "leave it out: Kueue 0.19 has no such gate"
            yield faults.invalid("featureGates", {name: obj["featureGates"][name]}, _unknown(name), remedy)


def _unknown(name: str) -> str:
    return f"unrecognized feature gate: {name}"


def _fair_sharing_faults(fair: Mapping[str, Any] | None) -> Iterator[FieldError]:
    if fair is None:
        return
    path, given = "fairSharing.preemptionStrategies", fair.get("preemptionStrategies")
    remedy = f"write [{FINAL_SHARE}, {INITIAL_SHARE}], which is what Kueue's own examples have"
    if not given:
        yield faults.required(path, "must be specified", remedy)
    elif given not in _STRATEGIES:
        supported = ", ".join(f'"{",".join(each)}"' for each in _STRATEGIES)
        yield FieldError(path, f"Unsupported value: {faults.printed(given)}: supported values: {supported}", remedy)
