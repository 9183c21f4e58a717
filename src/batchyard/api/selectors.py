"""Label and node selectors, as Kubernetes evaluates them."""

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
        """Whether labels satisfy the expression."""
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
        """`Gt` and `Lt`: whole numbers on both sides, else no match."""
        left, right = whole_number(value), whole_number(self.values[0]) if self.values else None
        if left is None or right is None:
            return False
        return left > right if self.operator == "Gt" else left < right


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector: all requirements hold; none at all selects everything."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels are selected."""
        return not self.requirements or all(requirement.matches(labels) for requirement in self.requirements)


def selector(obj: Mapping[str, Any] | None) -> Selector | None:
    """The selector of a metav1.LabelSelector; None, which selects nothing, where there is none."""
    if obj is None:
        return None
    equal = [Requirement(key, "In", (value,)) for key, value in sorted((obj.get("matchLabels") or {}).items())]
    expressions = [
        Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in obj.get("matchExpressions") or ()
    ]
    return Selector((*equal, *expressions))
