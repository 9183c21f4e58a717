"""API objects: plain mappings, their keys, and setters that copy.

A shared object is never changed. `with_*` return a new object that shares all unchanged parts.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.times import format_time
from batchyard.base.instant import Duration, Instant, parse_duration

Obj: TypeAlias = Mapping[str, Any]


class Key(NamedTuple):
    """The identity of an object: kind (`Kind` in the core group, else `Kind.group`), namespace (maybe ''), and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """`namespace/name`, or the bare name of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def group_kind(obj: Obj) -> str:
    """Return `Kind.group` of an object, or `Kind` in the core group."""
    return _group_kind(obj["apiVersion"], obj["kind"])


@lru_cache(maxsize=1024)
def _group_kind(api_version: str, kind: str) -> str:
    group, slash, _ = api_version.partition("/")
    return f"{kind}.{group}" if slash else kind


def key_of(obj: Obj) -> Key:
    """Return the key of an object."""
    metadata = obj["metadata"]
    return Key(group_kind(obj), metadata.get("namespace") or "", metadata["name"])


def annotation(obj: Obj, name: str) -> str | None:
    """Return the value of an annotation, or None."""
    annotations = obj["metadata"].get("annotations")
    return annotations.get(name) if annotations else None


def label(obj: Obj, name: str) -> str | None:
    """Return the value of a label, or None."""
    labels = obj["metadata"].get("labels")
    return labels.get(name) if labels else None


def with_path(obj: Obj, path: Iterable[str], value: object) -> dict[str, Any]:
    """Return the object with one value set, copying only the mappings on the path; None removes the field."""
    head, *rest = path
    new = dict(obj)
    if rest:
        new[head] = with_path(new.get(head) or {}, rest, value)
    elif value is None:
        new.pop(head, None)
    else:
        new[head] = value
    return new


def with_status(obj: Obj, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with another status."""
    return {**obj, "status": status}


def with_metadata(obj: Obj, **fields: Any) -> dict[str, Any]:
    """Return the object with metadata fields set; None removes one."""
    metadata = {k: v for k, v in {**obj["metadata"], **fields}.items() if v is not None}
    return {**obj, "metadata": metadata}


def finalizers_of(obj: Obj) -> Sequence[str]:
    """Return the finalizers of an object."""
    finalizers: Sequence[str] = obj["metadata"].get("finalizers") or ()
    return finalizers


def with_finalizer(obj: Obj, name: str) -> Obj:
    """Return the object with that finalizer; itself if it has it."""
    finalizers = finalizers_of(obj)
    return obj if name in finalizers else with_metadata(obj, finalizers=[*finalizers, name])


def without_finalizer(obj: Obj, name: str) -> Obj:
    """Return the object without that finalizer; itself if it does not have it."""
    finalizers = finalizers_of(obj)
    if name not in finalizers:
        return obj
    return with_metadata(obj, finalizers=[other for other in finalizers if other != name] or None)


def controller_reference(owner: Obj) -> dict[str, Any]:
    """Return the owner reference for objects that `owner` controls."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: Obj) -> Mapping[str, Any] | None:
    """Return the owner reference marked as controller, or None."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return owner  # type: ignore[no-any-return]
    return None


# --- conditions ---
#
# Conditions in the status of an object.
#
# Setters return a new list and share the unchanged conditions. Source: k8s.io/apimachinery api/meta/conditions.go; the
# truncation of long messages: Kueue's pkg/util/api.


MESSAGE_BYTES_MAX: Final = 32 * 1024
_CUT: Final = b" ..."

Condition = Mapping[str, Any]


def find_condition(obj_or_status: Mapping[str, Any], type: str) -> Condition | None:  # noqa: A002 - the field's name
    """Return the condition of that type, or None. Takes a whole object or its status."""
    status = obj_or_status.get("status", obj_or_status)
    for condition in (status and status.get("conditions")) or ():
        if condition["type"] == type:
            return condition  # type: ignore[no-any-return]
    return None


def is_true(obj_or_status: Mapping[str, Any], type: str) -> bool:  # noqa: A002
    """Report whether a condition of that type has the status True."""
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
    """Return the conditions with this one set, in its old place or at the end.

    `lastTransitionTime` changes only with the status. Returns the given list itself if nothing changes.
    """
    wanted: dict[str, Any] = {"type": type, "status": "True" if status else "False"}
    if generation:
        wanted["observedGeneration"] = generation
    wanted |= {"lastTransitionTime": format_time(now), "reason": reason, "message": cut_message(message)}
    for index, old in enumerate(conditions):
        if old["type"] != type:
            continue
        if old["status"] == wanted["status"] and "lastTransitionTime" in old:
            wanted["lastTransitionTime"] = old["lastTransitionTime"]
        if old == wanted and isinstance(conditions, list):
            return conditions
        return [*conditions[:index], wanted, *conditions[index + 1 :]]
    return [*conditions, wanted]


def cut_message(message: str, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """Truncate a message to the maximum size of a condition message, or to that many bytes."""
    if len(message) * 4 <= bytes_max:
        return message
    encoded = message.encode()
    if len(encoded) <= bytes_max:
        return message
    return (encoded[: bytes_max - len(_CUT)] + _CUT).decode(errors="ignore")


# --- events ---
#
# Fields of Events of both APIs, core/v1 with a count and events.k8s.io/v1 with a series.


def event_last_time(event: Obj) -> str:
    """Return the time of the last occurrence as text, or ''. Source: printEvent of Kubernetes's printers."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return last or ""


def event_count(event: Obj) -> int:
    """Return the number of occurrences."""
    return (event.get("series") or {}).get("count") or event.get("count") or 1


# --- status draft ---
#
# A draft of a status: copied once, changed in place, handed over once.
#
# A transition often sets four conditions. One draft costs a third of creating a new list for each.


class StatusDraft:
    """The status and conditions of one object while a transition rewrites them."""

    __slots__ = ("_conditions_changed", "_generation", "_obj", "changed", "conditions", "now", "status", "time")

    def __init__(self, obj: Obj, now: Instant) -> None:
        self._obj = obj
        self._generation = obj["metadata"].get("generation")
        self._conditions_changed = False
        self.status: dict[str, Any] = dict(obj.get("status") or ())
        #: By type, in the order of the status.
        self.conditions: dict[str, Condition] = {c["type"]: c for c in self.status.get("conditions") or ()}
        self.now = now
        self.time = format_time(now)
        self.changed = False

    def result(self) -> Obj:
        """Return the object with the new status; the original object if nothing changed."""
        if not (self.changed or self._conditions_changed):
            return self._obj
        if self._conditions_changed:
            self.status["conditions"] = list(self.conditions.values())
        return {**self._obj, "status": self.status}

    def is_true(self, kind: str) -> bool:
        """Report whether the condition of that type is True."""
        condition = self.conditions.get(kind)
        return condition is not None and condition["status"] == "True"

    def set_condition(self, kind: str, holds: bool, reason: str, message: str, observed: bool = True) -> None:
        """Set a condition, like apimachinery's SetStatusCondition; `observed` sets the observed generation."""
        status = "True" if holds else "False"
        old = self.conditions.get(kind)
        since = self.time if old is None or old["status"] != status else old["lastTransitionTime"]
        new: dict[str, Any] = {"type": kind, "status": status}
        if observed and self._generation:
            new["observedGeneration"] = self._generation
        new["lastTransitionTime"] = since
        new["reason"] = reason
        new["message"] = cut_message(message)
        if new != old:
            self.conditions[kind] = new
            self._conditions_changed = True

    def drop_condition(self, kind: str) -> None:
        """Remove a condition, if present."""
        if self.conditions.pop(kind, None) is not None:
            self._conditions_changed = True

    def set_field(self, name: str, value: object) -> None:
        """Set a field of the status."""
        self.status[name] = value
        self.changed = True

    def drop_fields(self, *names: str) -> None:
        """Remove fields of the status, if present."""
        for name in names:
            if name in self.status:
                del self.status[name]
                self.changed = True


# --- annotations ---
#
# Values of annotations and labels, parsed as Go parses them: integers, booleans, durations, slice layers.
#
# Validation and controllers share these functions, so that accepted values are interpreted in the same way.


_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
_FALSE: Final = ("0", "f", "F", "false", "FALSE", "False")
#: At most the digits of an int64, because Python rejects very long numbers.
_WHOLE: Final = re.compile(r"([+-]?)0*(\d{1,19})", re.ASCII)
LAYERS_MAX: Final = 3


class Layer(msgspec.Struct, frozen=True):
    """One entry of the annotation for slice layers."""

    topology: str = ""
    size: int = 0


def whole_number(text: str, *, bits: int = 64) -> int | None:
    """Parse a decimal integer with an optional sign; None for other texts or if it does not fit in `bits` bits."""
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    value = int(found[1] + found[2])
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def boolean(text: str) -> bool | None:
    """Parse a boolean; None for other texts."""
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def duration(obj: Obj, name: str) -> Duration | None:
    """Return the duration in an annotation; None if it is missing or malformed.

    The reader of manifests reports malformed durations to the user; controllers ignore them.
    """
    text = annotation(obj, name)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        return None


def layers(text: str) -> list[Layer] | None:
    """Parse the slice layers in an annotation, widest first; None if the text is not such a list."""
    try:
        return msgspec.json.decode(text, type=list[Layer])
    except (msgspec.DecodeError, RecursionError):
        return None


def is_elastic(obj: Obj) -> bool:
    """Report whether a Job or Workload is elastic, that is scaled with Workload slices."""
    return annotation(obj, well_known.ELASTIC_JOB) == "true"


# --- selectors ---
#
# Label and node selectors, evaluated as in Kubernetes.


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


# --- ownership ---
#
# Ownership of jobs: the chain of Jobs and JobSets above an object.
#
# Owner references are written by users: the owner may be missing, another object of the same name, or part of a cycle.


#: The kinds of owners of a pod or job that can be queued by themselves.
JOB_KINDS: Final = (scheme.JOB, scheme.JOB_SET)
#: The maximum length of the chain, as in Kueue.
_LEVELS_MAX: Final = 10


def owning_jobs(obj: Obj, find: Callable[[Key], Obj | None]) -> Iterator[Obj]:
    """Yield the Job or JobSet that controls an object, then the one that controls that, while they exist."""
    for _ in range(_LEVELS_MAX):
        owner, key = controller_of(obj), job_above(obj)
        above = None if key is None else find(key)
        if above is None or owner is None or above["metadata"].get("uid") != owner["uid"]:
            return
        yield above
        obj = above


def job_above(obj: Obj) -> Key | None:
    """Return the key of the Job or JobSet that controls an object, whether it exists or not."""
    owner = controller_of(obj)
    key = None if owner is None else owner_key(owner, obj["metadata"].get("namespace") or "")
    return key if key is not None and key.kind in JOB_KINDS else None


def owner_key(owner: Mapping[str, Any], namespace: str) -> Key:
    """Return the key of the owner in an owner reference."""
    group, slash, _ = owner["apiVersion"].partition("/")
    return Key(f"{owner['kind']}.{group}" if slash else owner["kind"], namespace, owner["name"])


class Ancestry(NamedTuple):
    """The known ancestors of a job."""

    #: The topmost one with a queue name, which is managed by Kueue.
    managed: Key | None
    #: An owner that is not found, so that the ancestors are unknown.
    missing: Key | None = None


def ancestry(job: Obj, find: Callable[[Key], Obj | None]) -> Ancestry:
    """Return the managed ancestor of a job.

    Source: FindAncestorJobManagedByKueue in pkg/controller/jobframework/reconciler.go of Kueue.
    """
    managed, top = None, job
    for top in owning_jobs(job, find):
        if label(top, well_known.QUEUE_NAME):
            managed = key_of(top)
    beyond = job_above(top)
    if beyond is not None and find(beyond) is None:
        return Ancestry(None, missing=beyond)
    return Ancestry(managed)


# --- quantity ---
#
# Resource quantities, exact: `10Gi`, `500m`, `1e3`, `0.1`.
#
# All other code uses whole numbers: thousandths for cpu, units (bytes, devices) for all else, rounded up like
# Kubernetes. Source of grammar and canonical form: k8s.io/apimachinery resource.Quantity; of the whole-number form and
# of `UNLIMITED`: Kueue's pkg/resources.


NANO: Final = 10**9
INT64_MAX: Final = 2**63 - 1
#: An unlimited amount, far above all real ones, so that sums and differences with real amounts stay unlimited.
UNLIMITED: Final = 1 << 100
_UNLIMITED_FROM: Final = 1 << 98

_BINARY: Final = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5, "Ei": 1024**6}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_GRAMMAR: Final = re.compile(
    r"([+-]?)(\d++(?:\.\d*+)?|\.\d++)(?:([KMGTPE]i|[numkMGTPE]?)|[eE]([+-]?\d{1,4}))", re.ASCII
)
#: The maximum length of a quantity. Kubernetes has none, but no amount needs more than 19 digits and a suffix.
LENGTH_MAX: Final = 400
_EXPONENT: Final = re.compile(r"[eE][+-]?\d+\Z", re.ASCII)
_BINARY_RESOURCES: Final = frozenset({"memory", "ephemeral-storage"})


@lru_cache(maxsize=65536, typed=True)
def parse(value: str | int | float) -> int:
    """Return a quantity in billionths, exact; finer parts are rounded up. ValueError describes the error.

    The maximum is 2**63 - 1, as in Kubernetes.
    """
    text = str(value)
    match = _GRAMMAR.fullmatch(text) if len(text) <= LENGTH_MAX else None
    if match is None or isinstance(value, bool):
        raise ValueError(f"{repr(value)[:40]} is not a quantity; write it as 500m, 2, 1.5, 10Gi or 1e3")
    sign, digits, suffix, exponent = match.groups()
    whole, _, fraction = digits.partition(".")
    numerator, denominator = int(whole + fraction or "0") * NANO, _power(len(fraction))
    if suffix in _BINARY:
        numerator *= _BINARY[suffix]
    else:
        power = int(exponent) if exponent is not None else _DECIMAL[suffix or ""]
        numerator, denominator = numerator * _power(power), denominator * _power(-power)
    nano = min(-(-numerator // denominator), INT64_MAX * NANO)
    return -nano if sign == "-" else nano


def _power(exponent: int) -> int:
    """Return ten to the power of an exponent; one if that is negative."""
    return int(10 ** max(exponent, 0))


@lru_cache(maxsize=65536)
def amount(resource: str, value: str | int | float) -> int:
    """Return a quantity as a whole number: thousandths for cpu, units for all else, rounded up."""
    unit = NANO // 1000 if resource == "cpu" else NANO
    return -(-parse(value) // unit)


@lru_cache(maxsize=65536)
def quota_amount(resource: str, value: str | int | float) -> int:
    """Return a quota as a whole number; values that Kueue treats as unlimited are UNLIMITED."""
    whole = amount(resource, value)
    return UNLIMITED if whole >= (INT64_MAX // 1000 * 1000 if resource == "cpu" else INT64_MAX) else whole


def is_unlimited(whole: int) -> bool:
    """Report whether an amount is unlimited."""
    return whole >= _UNLIMITED_FROM


@lru_cache(maxsize=65536)
def format_amount(resource: str, whole: int) -> str:
    """Format a whole number of a resource in Kubernetes's canonical form."""
    if is_unlimited(whole):
        return "<unlimited>"
    if resource == "cpu":
        return _decimal(whole, -3)
    if (resource in _BINARY_RESOURCES or resource.startswith("hugepages-")) and abs(whole) >= 1024:
        return _binary(whole)
    return _decimal(whole, 0)


class QuantityFormat(StrEnum):
    """The suffix family of a quantity."""

    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"
    EXPONENT = "DecimalExponent"


@lru_cache(maxsize=65536, typed=True)
def canonical(value: str | int | float) -> str:
    """Return a quantity in Kubernetes's canonical form, with the same suffix family."""
    return formatted(parse(value), format_of(value))


def format_of(value: str | int | float) -> QuantityFormat:
    """Return the suffix family of a quantity."""
    text = str(value)
    if any(text.endswith(suffix) for suffix in _BINARY):
        return QuantityFormat.BINARY
    return QuantityFormat.EXPONENT if _EXPONENT.search(text) else QuantityFormat.DECIMAL


def formatted(nano: int, family: QuantityFormat) -> str:
    """Format billionths in Kubernetes's canonical form, with suffixes of the family if possible."""
    if family is QuantityFormat.BINARY and nano % NANO == 0 and abs(nano) >= 1024 * NANO:
        return _binary(nano // NANO)
    return _exponential(nano, -9) if family is QuantityFormat.EXPONENT else _decimal(nano, -9)


def _exponential(mantissa: int, exponent: int) -> str:
    """Format `mantissa * 10**exponent` with the largest exponent divisible by three that keeps an integer."""
    while mantissa and mantissa % 1000 == 0:
        mantissa //= 1000
        exponent += 3
    return f"{mantissa}e{exponent}" if mantissa and exponent else str(mantissa)


def _decimal(mantissa: int, exponent: int) -> str:
    """Format `mantissa * 10**exponent` with the largest decimal suffix that keeps an integer."""
    if mantissa == 0:
        return "0"
    while mantissa % 1000 == 0 and exponent < 18:
        mantissa //= 1000
        exponent += 3
    return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"


def _binary(whole: int) -> str:
    """Format a whole number with the largest binary suffix that divides it, else in decimal form."""
    for suffix, factor in reversed(_BINARY.items()):
        if whole % factor == 0:
            return f"{whole // factor}{suffix}"
    return _decimal(whole, 0)
