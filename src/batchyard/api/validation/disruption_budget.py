"""Rules of PodDisruptionBudgets. Source: Kubernetes's pkg/apis/policy/validation."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata

_PERCENT: Final = re.compile(r"([0-9]+)%", re.ASCII)
_NO_PERCENT: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")
_REMEDY: Final = "give a number such as 2, or a share such as 50%"


def disruption_budget_faults(budget: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a PodDisruptionBudget."""
    yield from metadata.metadata_faults(budget)
    spec = budget.get("spec") or {}
    given = [field for field in ("minAvailable", "maxUnavailable") if spec.get(field) is not None]
    if len(given) > 1:
        message = "minAvailable and maxUnavailable cannot be both set"
        yield faults.invalid("spec", spec, message, "drop one of the two")
    for field in given:
        yield from _share_faults(spec[field], f"spec.{field}")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _POLICIES:
        yield faults.unsupported("spec.unhealthyPodEvictionPolicy", policy, _POLICIES)
    yield from metadata.selector_faults(spec.get("selector"), "spec.selector")


def _share_faults(value: Any, path: str) -> Iterator[FieldError]:
    """A number that is not negative, or a share of at most all."""
    if isinstance(value, int):
        if value < 0:
            yield faults.invalid(path, value, faults.NEGATIVE, _REMEDY)
        return
    share = _PERCENT.fullmatch(value)
    if share is None:
        yield faults.invalid(path, value, _NO_PERCENT, _REMEDY)
    elif int(share[1]) > 100:
        yield faults.invalid(path, value, "must not be greater than 100%", _REMEDY)
