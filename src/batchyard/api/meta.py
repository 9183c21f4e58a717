"""API objects as plain mappings: keys, metadata, conditions, annotations, selectors, owners and quantities.

Objects are never changed in place. The functions `with_*` return a new object that shares all unchanged parts.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.times import format_time
from batchyard.base.instant import Duration, Instant, parse_duration

Obj: TypeAlias = Mapping[str, Any]


class Key(NamedTuple):
    """The identity of an API object: kind (`Kind.group`, or `Kind` in the core group), namespace (or ''), and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return `namespace/name`, or the name alone for a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def group_kind(obj: Obj) -> str:
    """Return the kind of an object as `Kind.group`, or `Kind` in the core group."""
    return _group_kind(obj["apiVersion"], obj["kind"])


@lru_cache(maxsize=1024)
def _group_kind(api_version: str, kind: str) -> str:
    group, slash, _ = api_version.partition("/")
    return f"{kind}.{group}" if slash else kind


def key_of(obj: Obj) -> Key:
    """Return the identity of an object: its kind, namespace and name."""
    metadata = obj["metadata"]
    return Key(group_kind(obj), metadata.get("namespace") or "", metadata["name"])


def annotation(obj: Obj, name: str) -> str | None:
    """Return the value of an annotation, or None if it is not set."""
    annotations = obj["metadata"].get("annotations")
    return annotations.get(name) if annotations else None


def label(obj: Obj, name: str) -> str | None:
    """Return the value of a label, or None if it is not set."""
    labels = obj["metadata"].get("labels")
    return labels.get(name) if labels else None


def with_path(obj: Obj, path: Iterable[str], value: object) -> dict[str, Any]:
    """Return the object with the value at a path set, or removed if the value is None; the original is not changed."""
    first_field, *remaining_fields = path
    new = dict(obj)
    if remaining_fields:
        new[first_field] = with_path(new.get(first_field) or {}, remaining_fields, value)
    elif value is None:
        new.pop(first_field, None)
    else:
        new[first_field] = value
    return new


def with_status(obj: Obj, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its status replaced."""
    return {**obj, "status": status}


def with_metadata(obj: Obj, **fields: Any) -> dict[str, Any]:
    """Return the object with the given metadata fields set; a field set to None is removed."""
    metadata = {k: v for k, v in {**obj["metadata"], **fields}.items() if v is not None}
    return {**obj, "metadata": metadata}


def finalizers_of(obj: Obj) -> Sequence[str]:
    """Return the finalizers of an object; empty if it has none."""
    finalizers: Sequence[str] = obj["metadata"].get("finalizers") or ()
    return finalizers


def with_finalizer(obj: Obj, name: str) -> Obj:
    """Return the object with the finalizer added; the same object if the finalizer is already there."""
    finalizers = finalizers_of(obj)
    return obj if name in finalizers else with_metadata(obj, finalizers=[*finalizers, name])


def without_finalizer(obj: Obj, name: str) -> Obj:
    """Return the object with the finalizer removed; the same object if it lacks the finalizer."""
    finalizers = finalizers_of(obj)
    if name not in finalizers:
        return obj
    return with_metadata(obj, finalizers=[other for other in finalizers if other != name] or None)


def owner_reference(owner: Obj) -> dict[str, Any]:
    """Return a reference to an owner that does not control its dependents."""
    metadata, fields = owner["metadata"], {field: owner[field] for field in ("apiVersion", "kind")}
    return {**fields, "name": metadata["name"], "uid": metadata.get("uid", "")}


def controller_reference(owner: Obj) -> dict[str, Any]:
    """Return an owner reference to `owner` with `controller: true`, for objects that `owner` controls."""
    return {**owner_reference(owner), "controller": True, "blockOwnerDeletion": True}


def with_controller(obj: Obj, owner: Obj) -> Obj:
    """Return a copy of an object without a controller that has `owner` as its controller."""
    owner_references = [*(obj["metadata"].get("ownerReferences") or ()), controller_reference(owner)]
    return with_metadata(obj, ownerReferences=owner_references)


def without_owner(obj: Obj, owner_uid: str) -> Obj:
    """Return a copy of an object without its owner reference to the owner with this uid."""
    owner_references = [owner for owner in obj["metadata"].get("ownerReferences") or () if owner["uid"] != owner_uid]
    return with_metadata(obj, ownerReferences=owner_references or None)


def controller_of(obj: Obj) -> Mapping[str, Any] | None:
    """Return the object's owner reference with `controller: true`, or None if it has none."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return owner  # type: ignore[no-any-return]
    return None


# Conditions in the status of an object.
#
# Setters return a new list and share the unchanged conditions. Source: k8s.io/apimachinery api/meta/conditions.go; the
# truncation of long messages: Kueue's pkg/util/api.

MESSAGE_BYTES_MAX: Final = 32 * 1024
_TRUNCATION_SUFFIX: Final = b" ..."

Condition = Mapping[str, Any]


def find_condition(obj_or_status: Mapping[str, Any], type: str) -> Condition | None:  # noqa: A002 - the field's name
    """Return the status condition of the given type, or None. The first argument is a whole object or its status."""
    status = obj_or_status.get("status", obj_or_status)
    for condition in (status and status.get("conditions")) or ():
        if condition["type"] == type:
            return condition  # type: ignore[no-any-return]
    return None


def is_true(obj_or_status: Mapping[str, Any], type: str) -> bool:  # noqa: A002
    """Return whether a status condition is True. The first argument is a whole object or its status."""
    condition = find_condition(obj_or_status, type)
    return condition is not None and condition["status"] == "True"


def with_condition(  # noqa: PLR0913 - the fields of a condition
    conditions: Sequence[Condition],
    *,
    type: str,  # noqa: A002
    status: bool,
    reason: str,
    message: str,
    now: Instant,
    generation: int | None = None,
) -> list[Condition]:
    """Return a list of status conditions with the condition of the given type replaced, or added at the end.

    A long message is cut. `lastTransitionTime` changes only with the status. If nothing changes, return the same list.
    """
    new_condition: dict[str, Any] = {"type": type, "status": "True" if status else "False"}
    if generation:
        new_condition["observedGeneration"] = generation
    new_condition |= {"lastTransitionTime": format_time(now), "reason": reason, "message": truncate_message(message)}
    for index, old in enumerate(conditions):
        if old["type"] != type:
            continue
        if old["status"] == new_condition["status"] and "lastTransitionTime" in old:
            new_condition["lastTransitionTime"] = old["lastTransitionTime"]
        if old == new_condition and isinstance(conditions, list):
            return conditions
        return [*conditions[:index], new_condition, *conditions[index + 1 :]]
    return [*conditions, new_condition]


def truncate_message(message: str, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """Return the message; if it exceeds `bytes_max` bytes of UTF-8, its beginning and ` ...`, within that length."""
    if len(message) * 4 <= bytes_max:
        return message
    encoded_message = message.encode()
    if len(encoded_message) <= bytes_max:
        return message
    return (encoded_message[: bytes_max - len(_TRUNCATION_SUFFIX)] + _TRUNCATION_SUFFIX).decode(errors="ignore")


# Fields of Events of both APIs, core/v1 with a count and events.k8s.io/v1 with a series.


def event_last_time(event: Obj) -> str:
    """Return the timestamp of an Event's last occurrence, as written in the Event; '' if it has none.

    Source: printEvent of Kubernetes's printers.
    """
    text = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return text or ""


def event_count(event: Obj) -> int:
    """Return the number of occurrences of an Event; 1 if the Event has no count."""
    return (event.get("series") or {}).get("count") or event.get("count") or 1


# A mutable draft of an object's status: a copy that is changed in place and then becomes part of a new object.
#
# A transition often sets four conditions. One draft takes a third of the time of copying the list for each.


#: The type, status, observed generation, transition time, reason and message of a condition.
_ConditionContent: TypeAlias = tuple[str, str, int | None, str, str, str]
#: The conditions of the current second by content, which objects share: many objects get equal conditions.
_shared_conditions: "dict[_ConditionContent, Condition]" = {}
_shared_seconds: list[str] = [""]


def _share_condition(content: _ConditionContent) -> Condition:
    """Return a new condition with this content, and keep it for other objects."""
    condition_type, status, generation, transition_time, reason, message = content
    new: dict[str, Any] = {"type": condition_type, "status": status}
    if generation:
        new["observedGeneration"] = generation
    new["lastTransitionTime"] = transition_time
    new["reason"] = reason
    new["message"] = truncate_message(message)
    if _shared_seconds[0] != transition_time:
        _shared_seconds[0] = transition_time
        _shared_conditions.clear()
    _shared_conditions[content] = new
    return new


class StatusDraft:
    """A mutable copy of an object's status, for several changes at once; `result` returns the changed object."""

    __slots__ = ("_conditions_changed", "_generation", "_obj", "changed", "conditions", "now", "status", "timestamp")

    def __init__(self, obj: Obj, now: Instant) -> None:
        self._obj = obj
        self._generation = obj["metadata"].get("generation")
        self._conditions_changed = False
        self.status: dict[str, Any] = dict(obj.get("status") or ())
        #: The conditions by type, in the order of the status.
        self.conditions: dict[str, Condition] = {c["type"]: c for c in self.status.get("conditions") or ()}
        self.now = now
        self.timestamp = format_time(now)
        self.changed = False

    def result(self) -> Obj:
        """Return the object with the changed status; the original object if the draft was not changed."""
        if not (self.changed or self._conditions_changed):
            return self._obj
        if self._conditions_changed:
            self.status["conditions"] = list(self.conditions.values())
        return {**self._obj, "status": self.status}

    def is_true(self, condition_type: str) -> bool:
        """Return whether the status condition of the given type is True."""
        condition = self.conditions.get(condition_type)
        return condition is not None and condition["status"] == "True"

    def set_condition(
        self, condition_type: str, holds: bool, reason: str, message: str, sets_observed_generation: bool = True
    ) -> None:
        """Set a status condition like apimachinery's SetStatusCondition, with observedGeneration unless disabled."""
        status = "True" if holds else "False"
        old = self.conditions.get(condition_type)
        transition_time = self.timestamp if old is None or old["status"] != status else old["lastTransitionTime"]
        generation = self._generation if sets_observed_generation else None
        content = (condition_type, status, generation, transition_time, reason, message)
        new = _shared_conditions.get(content)
        if new is None:
            new = _share_condition(content)
        if new is not old and new != old:
            self.conditions[condition_type] = new
            self._conditions_changed = True

    def drop_condition(self, condition_type: str) -> None:
        """Remove the status condition of the given type, if there is one."""
        if self.conditions.pop(condition_type, None) is not None:
            self._conditions_changed = True

    def set_field(self, name: str, value: object) -> None:
        """Set a top-level field of the status to a value."""
        self.status[name] = value
        self.changed = True

    def drop_fields(self, *names: str) -> None:
        """Remove the named top-level fields from the status, if they are set."""
        for name in names:
            if name in self.status:
                del self.status[name]
                self.changed = True


# Values of annotations and labels, parsed as Go parses them: integers, booleans, durations, slice layers.
#
# Validation and controllers share these functions, so that accepted values are interpreted in the same way.

_TRUE_BOOLEAN_TEXTS: Final = ("1", "t", "T", "true", "TRUE", "True")
_FALSE_BOOLEAN_TEXTS: Final = ("0", "f", "F", "false", "FALSE", "False")
#: The pattern allows at most the digits of an int64, because Python rejects very long numbers.
_INTEGER_PATTERN: Final = re.compile(r"([+-]?)0*(\d{1,19})", re.ASCII)


def parse_integer(text: str, *, bits: int = 64) -> int | None:
    """Parse a decimal integer with an optional sign; None for any other text, or if it does not fit in `bits` bits."""
    integer_match = _INTEGER_PATTERN.fullmatch(text)
    if integer_match is None:
        return None
    value = int(integer_match[1] + integer_match[2])
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def parse_boolean(boolean_text: str) -> bool | None:
    """Parse a boolean as Go does (such as `true` or `1`); None for other texts."""
    if boolean_text in _TRUE_BOOLEAN_TEXTS:
        return True
    return False if boolean_text in _FALSE_BOOLEAN_TEXTS else None


def annotated_duration(obj: Obj, name: str) -> Duration | None:
    """Return the duration in the named annotation of an object; None if the annotation is missing or malformed.

    The reader of manifests reports malformed durations to the user; controllers ignore them.
    """
    text = annotation(obj, name)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        return None


def has_equal_queue_settings(old: Obj, new: Obj) -> bool:
    """Return whether two revisions of a ClusterQueue or Cohort have equal specs and equal preemption settings."""
    if old.get("spec") != new.get("spec"):
        return False
    old_annotations, annotations = old["metadata"].get("annotations"), new["metadata"].get("annotations")
    return old_annotations == annotations or all(
        annotation(old, name) == annotation(new, name) for name in well_known.PREEMPTION_ANNOTATIONS
    )


def is_elastic(obj: Obj) -> bool:
    """Return whether a Job or Workload may be scaled while it runs, by Kueue's Workload slices."""
    return annotation(obj, well_known.ELASTIC_JOB) == "true"


# Label and node selectors, evaluated as in Kubernetes.


class Requirement(NamedTuple):
    """One requirement of a label selector or of a node selector term: key, operator and values."""

    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the given labels satisfy this requirement."""
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
                return value is not None and self._is_label_beyond_bound(value)

    def _is_label_beyond_bound(self, value: str) -> bool:
        label_number, bound_number = parse_integer(value), parse_integer(self.values[0]) if self.values else None
        if label_number is None or bound_number is None:
            return False
        return label_number > bound_number if self.operator == "Gt" else label_number < bound_number


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed label selector: labels must satisfy all requirements; without requirements, it selects everything."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the given labels satisfy all requirements of this selector."""
        return not self.requirements or all(requirement.matches(labels) for requirement in self.requirements)


def parse_selector(obj: Mapping[str, Any] | None) -> Selector | None:
    """Parse a metav1.LabelSelector; return None for None, which selects nothing."""
    if obj is None:
        return None
    equalities = [Requirement(key, "In", (value,)) for key, value in sorted((obj.get("matchLabels") or {}).items())]
    entries = obj.get("matchExpressions") or ()
    return Selector(
        (*equalities, *(Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in entries))
    )


# Ownership of jobs: the chain of Jobs and JobSets above an object.
#
# Owner references are written by users: the owner may be missing, another object of the same name, or part of a cycle.


#: The kinds that can own a pod or a Job and be queued in Kueue.
JOB_KINDS: Final = (scheme.JOB, scheme.JOB_SET)
#: The maximum number of owners above an object that are followed, as in Kueue.
_OWNER_CHAIN_LENGTH_MAX: Final = 10


def controlling_jobs(obj: Obj, find_object: Callable[[Key], Obj | None]) -> Iterator[Obj]:
    """Yield the existing Jobs and JobSets that control an object, directly or not, closest first, at most 10."""
    for _ in range(_OWNER_CHAIN_LENGTH_MAX):
        owner, key = controller_of(obj), controlling_job_key(obj)
        controller = None if key is None else find_object(key)
        if controller is None or owner is None or controller["metadata"].get("uid") != owner["uid"]:
            return
        yield controller
        obj = controller


def controlling_job_key(obj: Obj) -> Key | None:
    """Return the key of the Job or JobSet that controls an object, even if it does not exist; None if there is none."""
    owner = controller_of(obj)
    key = None if owner is None else owner_key(owner, obj["metadata"].get("namespace") or "")
    return key if key is not None and key.kind in JOB_KINDS else None


def owner_key(owner: Mapping[str, Any], namespace: str) -> Key:
    """Return the key of the object to which an owner reference points, in the given namespace."""
    group, slash, _ = owner["apiVersion"].partition("/")
    return Key(f"{owner['kind']}.{group}" if slash else owner["kind"], namespace, owner["name"])


# Resource quantities, exact: `10Gi`, `500m`, `1e3`, `0.1`.
#
# All other code uses integers: thousandths for cpu, units (bytes, devices) for other resources, rounded up like
# Kubernetes. Source of grammar and canonical form: k8s.io/apimachinery resource.Quantity; of the whole-number form and
# of `UNLIMITED`: Kueue's pkg/resources.


NANO: Final = 10**9
INT64_MAX: Final = 2**63 - 1
#: An unlimited amount, far above all real ones, so that sums and differences with real amounts stay unlimited.
UNLIMITED: Final = 1 << 100
_UNLIMITED_AMOUNT_MIN: Final = 1 << 98

_BINARY_FACTORS: Final = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5, "Ei": 1024**6}
_DECIMAL_EXPONENTS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}
_QUANTITY_PATTERN: Final = re.compile(
    r"([+-]?)(\d++(?:\.\d*+)?|\.\d++)(?:([KMGTPE]i|[numkMGTPE]?)|[eE]([+-]?\d{1,4}))", re.ASCII
)
#: The maximum length of a quantity. Kubernetes has none, but no amount needs more than 19 digits and a suffix.
QUANTITY_LENGTH_MAX: Final = 400
_EXPONENT_SUFFIX_PATTERN: Final = re.compile(r"[eE][+-]?\d+\Z", re.ASCII)
_BYTES_PATTERN: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgtpe])(i?)b?", re.IGNORECASE | re.ASCII)
_BINARY_FORMAT_RESOURCES: Final = frozenset({"memory", "ephemeral-storage"})


def _quantity_examples(text: str) -> str:
    """Return valid notations to suggest for a malformed quantity, such as those with `4G` and `4Gi` for `4GB`."""
    match = _BYTES_PATTERN.fullmatch(text[:QUANTITY_LENGTH_MAX])
    if match is None:
        return "500m, 2, 1.5, 10Gi or 1e3"
    number, unit = match[1], match[2].upper()
    decimal = f"{number}{unit.replace('K', 'k')} (powers of 1000) or "
    return f"{'' if match[3] else decimal}{number}{unit}i (powers of 1024)"


@lru_cache(maxsize=65536, typed=True)
def parse_quantity(value: str | int | float) -> int:
    """Parse a resource quantity such as `500m` to an integer in billionths; raise ValueError if it is malformed.

    As in Kubernetes, fractions of a billionth round away from zero, and absolute values are capped at 2**63 - 1 units.
    """
    text = str(value)
    quantity_match = _QUANTITY_PATTERN.fullmatch(text) if len(text) <= QUANTITY_LENGTH_MAX else None
    if quantity_match is None or isinstance(value, bool):
        raise ValueError(f"{repr(value)[:40]} is not a quantity; write it as {_quantity_examples(text)}")
    sign_text, digits, suffix, exponent = quantity_match.groups()
    integer_digits, _, fraction = digits.partition(".")
    numerator, denominator = int(integer_digits + fraction or "0") * NANO, _power_of_ten(len(fraction))
    if suffix in _BINARY_FACTORS:
        numerator *= _BINARY_FACTORS[suffix]
    else:
        power = int(exponent) if exponent is not None else _DECIMAL_EXPONENTS[suffix or ""]
        numerator, denominator = numerator * _power_of_ten(power), denominator * _power_of_ten(-power)
    nano_amount = min(-(-numerator // denominator), INT64_MAX * NANO)
    return -nano_amount if sign_text == "-" else nano_amount


def _power_of_ten(power_exponent: int) -> int:
    return int(10 ** max(power_exponent, 0))


@lru_cache(maxsize=65536)
def amount(resource: str, value: str | int | float) -> int:
    """Convert a quantity to an integer, rounded up: to thousandths for cpu, to whole units for other resources.

    Raises ValueError if the quantity is malformed.
    """
    nano_unit = NANO // 1000 if resource == "cpu" else NANO
    return -(-parse_quantity(value) // nano_unit)


@lru_cache(maxsize=65536)
def quota_amount(resource: str, value: str | int | float) -> int:
    """Convert a resource quota to an integer as `amount` does; the maximum, which means no limit, becomes UNLIMITED."""
    value_amount = amount(resource, value)
    return UNLIMITED if value_amount >= (INT64_MAX // 1000 * 1000 if resource == "cpu" else INT64_MAX) else value_amount


def is_unlimited(amount: int) -> bool:
    """Return whether an integer amount of a resource stands for an unlimited quota."""
    return amount >= _UNLIMITED_AMOUNT_MIN


@lru_cache(maxsize=65536)
def format_amount(resource: str, amount: int) -> str:
    """Format an integer amount of a resource, as `amount` returns it, as a canonical quantity, or `<unlimited>`."""
    if is_unlimited(amount):
        return "<unlimited>"
    if resource == "cpu":
        return _format_decimal(amount, -3)
    if (resource in _BINARY_FORMAT_RESOURCES or resource.startswith("hugepages-")) and abs(amount) >= 1024:
        return _format_binary(amount)
    return _format_decimal(amount, 0)


class QuantityFormat(StrEnum):
    """The suffix format of a resource quantity, as in Kubernetes: binary (Ki), decimal (k) or with an exponent (e3)."""

    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"
    EXPONENT = "DecimalExponent"


@lru_cache(maxsize=65536, typed=True)
def canonical_quantity(value: str | int | float) -> str:
    """Return a resource quantity in canonical form, in its own suffix format; raise ValueError if it is malformed."""
    return format_quantity(parse_quantity(value), quantity_format(value))


def quantity_format(value: str | int | float) -> QuantityFormat:
    """Return the suffix format that a resource quantity is written in."""
    text = str(value)
    if any(text.endswith(suffix) for suffix in _BINARY_FACTORS):
        return QuantityFormat.BINARY
    return QuantityFormat.EXPONENT if _EXPONENT_SUFFIX_PATTERN.search(text) else QuantityFormat.DECIMAL


def format_quantity(nano: int, suffix_format: QuantityFormat) -> str:
    """Format a number of billionths as a canonical resource quantity, in `suffix_format` if possible, else decimal."""
    if suffix_format is QuantityFormat.BINARY and nano % NANO == 0 and abs(nano) >= 1024 * NANO:
        return _format_binary(nano // NANO)
    return _format_exponential(nano, -9) if suffix_format is QuantityFormat.EXPONENT else _format_decimal(nano, -9)


def _format_exponential(mantissa: int, exponent: int) -> str:
    while mantissa and mantissa % 1000 == 0:
        mantissa //= 1000
        exponent += 3
    return f"{mantissa}e{exponent}" if mantissa and exponent else str(mantissa)


def _format_decimal(mantissa: int, exponent: int) -> str:
    if mantissa == 0:
        return "0"
    while mantissa % 1000 == 0 and exponent < 18:
        mantissa //= 1000
        exponent += 3
    return f"{mantissa}{_DECIMAL_SUFFIX_BY_EXPONENT[exponent]}"


def _format_binary(amount: int) -> str:
    for suffix, factor in reversed(_BINARY_FACTORS.items()):
        if amount % factor == 0:
            return f"{amount // factor}{suffix}"
    return _format_decimal(amount, 0)
