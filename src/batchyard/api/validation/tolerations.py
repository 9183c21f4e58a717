"""Rules of taints and tolerations.

Source: Kueue's ResourceFlavor webhook, the rules in its CRDs, and Kubernetes's validation of Pods and Nodes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, names

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS: Final = ("Equal", "Exists")


def taint_faults(taints: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Taints have valid keys, values and effects, and each pair of key and effect is there once."""
    seen: dict[tuple[str, str], str] = {}
    for i, taint in enumerate(taints):
        at, pair = f"{path}[{i}]", (taint["key"], taint["effect"])
        yield from metadata.label_key_faults(taint["key"], f"{at}.key")
        value = taint.get("value") or ""
        for message in names.label_value(value):
            yield faults.invalid(f"{at}.value", value, message, "use a short text of letters, digits, '-', '_' and '.'")
        if taint["effect"] not in EFFECTS:
            yield faults.unsupported(f"{at}.effect", taint["effect"], EFFECTS)
        if pair in seen:
            message = "taints must be unique by key and effect pair"
            remedy = f"drop it: {seen[pair]} has the same key and effect"
            yield FieldError(at, f"Duplicate value: {faults.printed(taint)}: {message}", remedy)
        seen.setdefault(pair, at)


def toleration_faults(tolerations: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Tolerations have valid keys, operators and effects, and no fields that contradict each other."""
    for i, toleration in enumerate(tolerations):
        at, operator = f"{path}[{i}]", toleration.get("operator") or "Equal"
        if key := toleration.get("key"):
            yield from metadata.label_key_faults(key, f"{at}.key")
        elif operator != "Exists":
            message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield faults.invalid(f"{at}.operator", operator, message, "give a key, or set the operator to Exists")
        if operator not in OPERATORS:
            yield faults.unsupported(f"{at}.operator", operator, OPERATORS)
        yield from _value_faults(toleration, operator, at)
        yield from _effect_faults(toleration, at)


def _value_faults(toleration: Mapping[str, Any], operator: str, path: str) -> Iterator[FieldError]:
    """A value is a label value, and Exists has none."""
    value = toleration.get("value") or ""
    if operator == "Exists" and value:
        message = "value must be empty when `operator` is 'Exists'"
        yield faults.invalid(f"{path}.operator", operator, message, "drop the value, or set the operator to Equal")
    for message in names.label_value(value):
        yield faults.invalid(f"{path}.value", value, message, "use a value a taint can have")


def _effect_faults(toleration: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Only NoExecute is tolerated for a while."""
    effect = toleration.get("effect") or ""
    if effect and effect not in EFFECTS:
        yield faults.unsupported(f"{path}.effect", effect, EFFECTS)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield faults.invalid(
            f"{path}.effect", effect, message, "set the effect to NoExecute, or drop tolerationSeconds"
        )
