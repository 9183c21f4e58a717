"""Rules of conditions. Source: k8s.io/apimachinery/pkg/apis/meta/v1/validation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata

STATUSES: Final = ("True", "False", "Unknown")


def condition_faults(conditions: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Each type is there once, is a name, and has a status."""
    seen: dict[str, None] = {}
    for i, condition in enumerate(conditions):
        at, kind = f"{path}[{i}]", condition["type"]
        if kind in seen:
            yield faults.duplicate(f"{at}.type", kind, "leave one condition of each type")
        seen[kind] = None
        yield from metadata.label_key_faults(kind, f"{at}.type")
        if condition["status"] not in STATUSES:
            yield faults.unsupported(f"{at}.status", condition["status"], STATUSES)
