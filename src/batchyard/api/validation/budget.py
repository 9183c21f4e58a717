"""Rules of Budgets: one amount, and what is done as it is used up."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import quantity
from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata

_AMOUNTS: Final = ("dollars", "acceleratorHours")


def budget_faults(budget: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Budget."""
    spec = budget.get("spec") or {}
    yield from metadata.metadata_faults(budget)
    given = [field for field in _AMOUNTS if spec.get(field) is not None]
    if not given:
        yield faults.required(
            "spec.dollars", "a Budget says how much", 'set dollars: "5000", or acceleratorHours: "120"'
        )
    if len(given) > 1:
        remedy = "make two Budgets, one for each"
        yield faults.forbidden("spec.acceleratorHours", "may not be set beside dollars", remedy)
    for field in given:
        if quantity.parse(spec[field]) < 0:
            yield faults.invalid(f"spec.{field}", spec[field], "must not be negative", "use 0 to allow nothing")
    for place, threshold in enumerate(spec.get("thresholds") or ()):
        path = f"spec.thresholds[{place}]"
        if threshold.get("drain") and threshold["action"] != "Hold":
            yield faults.forbidden(f"{path}.drain", "only those that Hold drain", "drop it, or set action to Hold")
        if "priorityBoost" in threshold and threshold["action"] != "Demote":
            remedy = "drop it, or set action to Demote"
            yield faults.forbidden(f"{path}.priorityBoost", "only those that Demote have one", remedy)
