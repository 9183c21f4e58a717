"""Rules of scheduling constraints: affinity, spreading, taints, tolerations.

Source: Kubernetes's pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as faults
from batchyard.api.validation import metadata, names

_WHEN_UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES: Final = ("Honor", "Ignore")


def affinity_faults(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate `affinity`."""
    yield from _node_affinity_faults(affinity.get("nodeAffinity") or {}, f"{path}.nodeAffinity")
    for field in ("podAffinity", "podAntiAffinity"):
        yield from _pod_affinity_faults(affinity.get(field) or {}, f"{path}.{field}")


def _node_affinity_faults(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Required terms exist; preferred ones have a weight; all expressions are valid."""
    if (required := affinity.get(well_known.REQUIRED)) is not None:
        terms = required.get("nodeSelectorTerms")
        at = f"{path}.{well_known.REQUIRED}.nodeSelectorTerms"
        if not terms:
            message = "must have at least one node selector term"
            yield faults.required(at, message, "give a term, or drop the required affinity")
        for i, term in enumerate(terms or ()):
            yield from _term_faults(term, f"{at}[{i}]")
    for i, preferred in enumerate(affinity.get(well_known.PREFERRED) or ()):
        at = f"{path}.{well_known.PREFERRED}[{i}]"
        yield from _weight_faults(preferred, at)
        yield from _term_faults(preferred.get("preference") or {}, f"{at}.preference")


def _weight_faults(preferred: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """The weight of a preference is 1 to 100."""
    weight = preferred.get("weight", 0)
    if not 1 <= weight <= 100:
        yield faults.invalid(f"{path}.weight", weight, "must be in the range 1-100", "give a weight from 1 to 100")


def _term_faults(term: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """The expressions of a term match labels or the node's name."""
    for i, expression in enumerate(term.get("matchExpressions") or ()):
        at = f"{path}.matchExpressions[{i}]"
        yield from _operator_faults(expression, at)
        yield from metadata.label_key_faults(expression.get("key") or "", f"{at}.key")
    for i, field in enumerate(term.get("matchFields") or ()):
        at = f"{path}.matchFields[{i}]"
        if field.get("key") != "metadata.name":
            remedy = "select by metadata.name"
            yield faults.invalid(f"{at}.key", field.get("key"), "not a valid field selector key", remedy)
        if len(field.get("values") or ()) != 1:
            message = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            yield faults.required(f"{at}.values", message, "give the name of one node")


def _operator_faults(expression: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Each operator has the number of values that it requires."""
    operator, values = expression.get("operator") or "", expression.get("values") or ()
    at = f"{path}.values"
    if operator in {"In", "NotIn"}:
        if not values:
            message = "must be specified when `operator` is 'In' or 'NotIn'"
            yield faults.required(at, message, "list the values, or use the operator Exists")
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield faults.forbidden(at, message, "drop the values, or use the operator In")
    elif operator in {"Gt", "Lt"}:
        if len(values) != 1:
            message = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            yield faults.required(at, message, "give one whole number")
    else:
        remedy = "use In, NotIn, Exists, DoesNotExist, Gt or Lt"
        yield faults.invalid(f"{path}.operator", operator, "not a valid selector operator", remedy)


def _pod_affinity_faults(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Terms name a topology and have valid selectors; preferred ones have a weight."""
    for i, term in enumerate(affinity.get(well_known.REQUIRED) or ()):
        yield from _pod_term_faults(term, f"{path}.{well_known.REQUIRED}[{i}]")
    for i, preferred in enumerate(affinity.get(well_known.PREFERRED) or ()):
        at = f"{path}.{well_known.PREFERRED}[{i}]"
        yield from _weight_faults(preferred, at)
        yield from _pod_term_faults(preferred.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")


def _pod_term_faults(term: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A term names a topology key, and selects pods and namespaces."""
    for field in ("labelSelector", "namespaceSelector"):
        yield from metadata.selector_faults(term.get(field), f"{path}.{field}")
    yield from topology_key_faults(term.get("topologyKey") or "", f"{path}.topologyKey")
    for i, namespace in enumerate(term.get("namespaces") or ()):
        for message in names.dns_label(namespace):
            yield faults.invalid(f"{path}.namespaces[{i}]", namespace, message, "give the name of a namespace")
    yield from _own_label_faults(term, "matchLabelKeys", path)
    yield from _own_label_faults(term, "mismatchLabelKeys", path)
    for i, name in enumerate(term.get("matchLabelKeys") or ()):
        if name in (term.get("mismatchLabelKeys") or ()):
            message = "exists in both matchLabelKeys and mismatchLabelKeys"
            yield faults.invalid(f"{path}.matchLabelKeys[{i}]", name, message, "leave it in one of them")


def topology_key_faults(key: str, path: str) -> Iterator[FieldError]:
    """A topology key is a label key."""
    if key:
        yield from metadata.label_key_faults(key, path)
    else:
        yield faults.required(path, "can not be empty", "name a node label, such as kubernetes.io/hostname")


def _own_label_faults(obj: Mapping[str, Any], field: str, path: str) -> Iterator[FieldError]:
    """Keys of the pod's own labels narrow a label selector, which must exist."""
    keys = obj.get(field) or ()
    if keys and obj.get("labelSelector") is None:
        message = "must not be specified when labelSelector is not set"
        yield faults.forbidden(f"{path}.{field}", message, "add a labelSelector; {} selects all pods")
    for i, key in enumerate(keys):
        yield from metadata.label_key_faults(key, f"{path}.{field}[{i}]")


def spread_faults(constraints: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """A constraint has a topology key and a skew of at least one; no two are equal."""
    seen: dict[tuple[str, str], None] = {}
    for i, constraint in enumerate(constraints):
        at, when = f"{path}[{i}]", constraint.get("whenUnsatisfiable") or ""
        key, skew = constraint.get("topologyKey") or "", constraint.get("maxSkew", 0)
        if skew <= 0:
            yield faults.invalid(f"{at}.maxSkew", skew, "must be greater than zero", "give 1 or more")
        if not key:
            yield faults.required(f"{at}.topologyKey", "can not be empty", "name a node label")
        if when not in _WHEN_UNSATISFIABLE:
            yield faults.unsupported(f"{at}.whenUnsatisfiable", when, _WHEN_UNSATISFIABLE)
        if (key, when) in seen:
            yield faults.duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {when}}}", "drop one of them")
        seen[key, when] = None
        yield from metadata.selector_faults(constraint.get("labelSelector"), f"{at}.labelSelector")
        yield from _own_label_faults(constraint, "matchLabelKeys", at)
        yield from _domain_faults(constraint, when, at)


def _domain_faults(constraint: Mapping[str, Any], when: str, path: str) -> Iterator[FieldError]:
    """A minDomains is positive and requires DoNotSchedule; node policies are known."""
    least = constraint.get("minDomains")
    if least is not None and least <= 0:
        yield faults.invalid(f"{path}.minDomains", least, "must be greater than zero", "give 1 or more")
    if least is not None and when != _WHEN_UNSATISFIABLE[0]:
        message = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
        yield faults.invalid(f"{path}.minDomains", least, message, "drop it, or set whenUnsatisfiable to DoNotSchedule")
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(field)
        if policy is not None and policy not in _POLICIES:
            yield faults.unsupported(f"{path}.{field}", policy, _POLICIES)


# --- tolerations ---
#
# Rules of taints and tolerations.
#
# Source: Kueue's ResourceFlavor webhook, the rules in its CRDs, and Kubernetes's validation of Pods and Nodes.


EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS: Final = ("Equal", "Exists")


def taint_faults(taints: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Taints have valid keys, values and effects; each pair of key and effect is unique."""
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
    """Tolerations have valid keys, operators and effects, without contradictions."""
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
    """Only NoExecute may have tolerationSeconds."""
    effect = toleration.get("effect") or ""
    if effect and effect not in EFFECTS:
        yield faults.unsupported(f"{path}.effect", effect, EFFECTS)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield faults.invalid(
            f"{path}.effect", effect, message, "set the effect to NoExecute, or drop tolerationSeconds"
        )
