"""Label and node selectors, evaluated as in Kubernetes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchyard.api.annotations import whole_number


class Requirement(NamedTuple):
    """One expression of a label selector or of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Report whether labels satisfy the expression."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return value is not None and self._compares(value)

    def _compares(self, value: str) -> bool:
        """Evaluate `Gt` or `Lt`: both sides must be integers, else there is no match."""
        left, right = whole_number(value), whole_number(self.values[0]) if self.values else None
        if left is None or right is None:
            return False
        return left > right if self.operator == "Gt" else left < right


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector: all requirements must hold; an empty one selects everything."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Report whether the labels are selected."""
        return not self.requirements or all(requirement.matches(labels) for requirement in self.requirements)


def selector(obj: Mapping[str, Any] | None) -> Selector | None:
    """Return the selector of a metav1.LabelSelector; None for None, which selects nothing."""
    if obj is None:
        return None
    equal = [Requirement(key, "In", (value,)) for key, value in sorted((obj.get("matchLabels") or {}).items())]
    expressions = [
        Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in obj.get("matchExpressions") or ()
    ]
    return Selector((*equal, *expressions))
