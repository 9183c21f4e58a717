"""Validators of scalar fields (strings, numbers, quantities, times), and defaults that depend on other fields.

A visitor is a validating function: it returns the value if it is valid, else SchemaViolations. Quantities and times are
normalized to Kubernetes's form. If every string or boolean is valid, the type itself (`str`, `bool`) is the visitor,
which saves a call.
"""

import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from batchyard.api.meta import canonical_quantity
from batchyard.api.schema import violations
from batchyard.api.times import convert_micro_time_to_utc, convert_to_utc
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import parse_duration
from batchyard.base.primitives import memoized_if_short

ValueVisitor: TypeAlias = Callable[[Any], Any]
VisitorOrType: TypeAlias = "ValueVisitor | type"

#: Descriptions of scalar types for error messages.
TYPE_DESCRIPTIONS: Final = {
    "string": "a string",
    "bool": "true or false",
    "int": "an integer",
    "int32": "an integer",
    "int64": "an integer",
    "number": "a number such as 2 or 0.5",
    "quantity": "a quantity such as 500m, 2 or 10Gi",
    "int-or-string": "an integer or a string",
    "time": "a time such as 2026-01-01T00:00:00Z",
    "micro-time": "a time such as 2026-01-01T00:00:00.000000Z",
    "duration": "a duration such as 90s or 1h30m",
    "bytes": "a base64 text",
    "any": "any value",
}
_INTEGER_BITS: Final = {"int": 63, "int32": 31, "int64": 63}
_STRING_CACHE_SIZE: Final = 4096
_NORMALIZED_SCALAR_TYPES: Final = frozenset({"quantity", "time", "micro-time"})
#: Descriptions of the patterns of names.
_PATTERN_DESCRIPTIONS: Final = {
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "lowercase letters, digits and '-', and start and end with a letter or digit",
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": (
        "lowercase letters, digits, '-' and '.', and start and end with a letter or digit"
    ),
}


def scalar_visitor(scalar_type: str, constraints: Mapping[str, Any]) -> VisitorOrType:
    """Return the function that validates a scalar type with constraints such as `min` or `pattern`.

    Returns `bool` for a boolean, and `str` for a string without constraints.
    """
    if scalar_type == "string":
        return _string_visitor(constraints) if constraints.keys() - {"default"} else str
    if scalar_type in _INTEGER_BITS:
        return _integer_visitor(scalar_type, constraints)
    if scalar_type == "bool":
        return bool
    if scalar_type in _PARSER_BY_TYPE:
        return _parser_visitor(scalar_type, *_PARSER_BY_TYPE[scalar_type])
    return _accept_any


def string_or_boolean_violation(expected_type: type, value: Any) -> violations.SchemaViolations:
    """Return the violation of a value that is not of `expected_type` (`str` or `bool`), in a list."""
    if expected_type is bool:
        boolean_text = {"true": "true", "yes": "true", "false": "false", "no": "false"}.get(str(value).lower())
        remedy = f"write {boolean_text} without quotes" if boolean_text else ""
        return violations.wrong_type_violation(value, TYPE_DESCRIPTIONS["bool"], remedy)
    text = violations.format_value(value)
    remedy = f'put the value in quotes: "{text}"' if isinstance(value, bool | int | float) and " " not in text else ""
    return violations.wrong_type_violation(value, TYPE_DESCRIPTIONS["string"], remedy)


def _accept_any(value: Any) -> Any:
    return value


def _integer_visitor(expression: str, constraints: Mapping[str, Any]) -> ValueVisitor:
    bit_count = _INTEGER_BITS[expression]
    minimum, maximum = constraints.get("min", -(1 << bit_count)), constraints.get("max", (1 << bit_count) - 1)

    def visit(value: Any) -> Any:
        if type(value) is not int:
            return _not_an_integer_violations(value)
        if minimum <= value <= maximum:
            return value
        if value < minimum:
            return violations.single_violation(
                f"Invalid value: {violations.format_value(value)}: must be at least {minimum}", f"use {minimum} or more"
            )
        return violations.single_violation(
            f"Invalid value: {violations.format_value(value)}: must be at most {maximum}", f"use {maximum} or less"
        )

    return visit


def _not_an_integer_violations(value: Any) -> violations.SchemaViolations:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII):
        return violations.wrong_type_violation(value, "an integer", f"write {int(value)} without quotes")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return violations.wrong_type_violation(value, "an integer", f"write {int(value)}")
    return violations.wrong_type_violation(value, "an integer")


def _string_visitor(constraints: Mapping[str, Any]) -> ValueVisitor:
    def check_string(value: str) -> Any:
        return violations.SchemaViolations(_string_violations(value, constraints)) or value

    cached_check_string = memoized_if_short(_STRING_CACHE_SIZE)(check_string)

    def visit(value: Any) -> Any:
        if type(value) is not str:
            return string_or_boolean_violation(str, value)
        result = cached_check_string(value)
        return value if type(result) is str else result

    return visit


def _string_violations(value: str, constraints: Mapping[str, Any]) -> Iterator[violations.SchemaViolation]:
    enum_values = constraints.get("enum")
    if enum_values is not None:
        if value not in enum_values:
            yield _unsupported_value_violation(value, enum_values)
        return
    if len(value) < constraints.get("minLength", 0):
        minimum_length = constraints["minLength"]
        requirement = f"must have at least {minimum_length} characters" if minimum_length > 1 else "must not be empty"
        yield violations.SchemaViolation(
            (), f"Invalid value: {violations.format_value(value)}: {requirement}", "write a longer value"
        )
    elif len(value) > constraints.get("maxLength", len(value)):
        remedy = f"shorten the value by {count_with_noun(len(value) - constraints['maxLength'], 'character')}"
        yield violations.SchemaViolation(
            (), f"Too long: may not be more than {constraints['maxLength']} characters", remedy
        )
    elif "pattern" in constraints and not _compile_pattern(constraints["pattern"]).search(value):
        description = _PATTERN_DESCRIPTIONS.get(constraints["pattern"])
        remedy = f"use {description}" if description else "write a value that matches this regular expression"
        yield violations.SchemaViolation(
            (), f"Invalid value: {violations.format_value(value)}: must match {constraints['pattern']}", remedy
        )


def _unsupported_value_violation(value: str, enum_values: list[str]) -> violations.SchemaViolation:
    nearest_value = violations.find_nearest_name(value, enum_values)
    remedy = f"did you mean {nearest_value}?" if nearest_value else f"use {violations.join_alternatives(enum_values)}"
    shown_values = ", ".join(map(violations.format_value, enum_values))
    return violations.SchemaViolation(
        (), f"Unsupported value: {violations.format_value(value)}: supported values: {shown_values}", remedy
    )


@lru_cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of a schema. As in Go, `^(?i)` ignores case, and a final `$` matches only at the end."""
    if pattern.startswith("^(?i)"):
        pattern = "(?i)^" + pattern.removeprefix("^(?i)")
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), re.ASCII)


def _parser_visitor(expression: str, accepted_types: tuple[type, ...], parse: Callable[[Any], object]) -> ValueVisitor:
    """Return a validating function that calls `parse`; its ValueErrors have the form `problem; remedy` or `problem`."""

    def visit(value: Any) -> Any:
        if type(value) not in accepted_types:
            return violations.wrong_type_violation(value, TYPE_DESCRIPTIONS[expression])
        try:
            result = parse(value)
        except ValueError as wrong:
            problem, separator, remedy = str(wrong).rpartition("; ")
            problem, remedy = (problem, remedy) if separator else (remedy, "")
            return violations.single_violation(
                f"Invalid value: {problem}", remedy or f"write {TYPE_DESCRIPTIONS[expression]}"
            )
        return result if expression in _NORMALIZED_SCALAR_TYPES and result != value else value

    return visit


def _parse_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.replace("\n", ""), strict_mode=True)
    except ValueError as wrong:
        raise ValueError(
            f"the value is not base64 ({wrong}); "
            "encode it, or put plain text into stringData (Secret) or data (ConfigMap)"
        ) from None


_PARSER_BY_TYPE: Final[Mapping[str, tuple[tuple[type, ...], Callable[[Any], object]]]] = {
    "number": ((int, float), float),
    "quantity": ((str, int, float), canonical_quantity),
    "int-or-string": ((str, int), str),
    "time": ((str,), convert_to_utc),
    "micro-time": ((str,), convert_micro_time_to_utc),
    "duration": ((str,), parse_duration),
    "bytes": ((str,), _parse_base64),
}


# Defaults of fields of Kubernetes types that depend on other fields.
#
# Constant defaults are in the field tables. Each function returns the fields to add to an object of its type. Sources:
# Kubernetes's pkg/apis/core/v1/{defaults,conversion}.go, pkg/util/parsers.


DefaultsComputer: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_NO_DEFAULT_FIELDS: Final[Mapping[str, Any]] = {}
#: An image reference: optional host, path, optional tag and digest. Without tag and digest, the tag is `latest`.
_PATH_COMPONENT: Final = r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+"
_IMAGE_REFERENCE_PATTERN: Final = re.compile(
    rf"(?:[a-zA-Z0-9.\-\[\]:]++/)?+{_PATH_COMPONENT}(?:/{_PATH_COMPONENT})*+(?::(?P<tag>[\w][\w.\-]{{0,127}}+))?+(?P<digest>@[\w+.:\-]++)?+",
    re.ASCII,
)
_IMAGE_REFERENCE_LENGTH_MAX: Final = 1024
_LATEST_TAG: Final = "latest"
#: The default session affinity timeout of a Service.
_CLIENT_IP_TIMEOUT_SECONDS: Final = 10800


def default_pull_policy(image: str) -> str:
    """Return the default imagePullPolicy of an image.

    `Always` for a valid reference with the tag `latest`, or with neither tag nor digest; else `IfNotPresent`.
    """
    image_match = _IMAGE_REFERENCE_PATTERN.fullmatch(image) if len(image) <= _IMAGE_REFERENCE_LENGTH_MAX else None
    if image_match is None:
        return "IfNotPresent"
    tag = image_match["tag"] or ("" if image_match["digest"] else _LATEST_TAG)
    return "Always" if tag == _LATEST_TAG else "IfNotPresent"


def _container_defaults(container: Mapping[str, Any]) -> Mapping[str, Any]:
    if container.get("imagePullPolicy"):
        return _NO_DEFAULT_FIELDS
    return {"imagePullPolicy": default_pull_policy(container.get("image") or "")}


def _volume_source_defaults(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(volume) == 1 and "name" in volume:
        return {"emptyDir": {}}
    image = volume.get("image")
    if image is not None and not image.get("pullPolicy"):
        return {"image": {**image, "pullPolicy": default_pull_policy(image.get("reference") or "")}}
    return _NO_DEFAULT_FIELDS


def _pod_spec_defaults(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    name = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if not name or (spec.get("serviceAccountName") == name and spec.get("serviceAccount") == name):
        return _NO_DEFAULT_FIELDS
    return {"serviceAccountName": name, "serviceAccount": name}


def _service_spec_defaults(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    added_fields: dict[str, Any] = {}
    ports = spec.get("ports") or ()
    if any(port.get("targetPort") in {None, 0, ""} for port in ports):
        added_fields["ports"] = [
            {**port, "targetPort": port["port"]} if port.get("targetPort") in {None, 0, ""} else port for port in ports
        ]
    kind, affinity = spec.get("type"), spec.get("sessionAffinityConfig") or {}
    if spec.get("sessionAffinity") == "ClientIP" and (affinity.get("clientIP") or {}).get("timeoutSeconds") is None:
        added_fields["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": _CLIENT_IP_TIMEOUT_SECONDS}}
    if spec.get("internalTrafficPolicy") is None and kind != "ExternalName":
        added_fields["internalTrafficPolicy"] = "Cluster"
    if kind in {"NodePort", "LoadBalancer"} and not spec.get("externalTrafficPolicy"):
        added_fields["externalTrafficPolicy"] = "Cluster"
    if kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is None:
        added_fields["allocateLoadBalancerNodePorts"] = True
    return added_fields


def _endpoint_slice_defaults(endpoint_slice: Mapping[str, Any]) -> Mapping[str, Any]:
    ports = endpoint_slice.get("ports") or ()
    if all("name" in port for port in ports):
        return _NO_DEFAULT_FIELDS
    return {"ports": [port if "name" in port else {**port, "name": ""} for port in ports]}


def _network_policy_defaults(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    if spec.get("policyTypes"):
        return _NO_DEFAULT_FIELDS
    return {"policyTypes": ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]}


#: The functions that return defaults, by the name of the Kubernetes type.
COMPUTED_DEFAULTS: Final[Mapping[str, DefaultsComputer]] = {
    "Container": _container_defaults,
    "EphemeralContainer": _container_defaults,
    "EndpointSlice": _endpoint_slice_defaults,
    "NetworkPolicySpec": _network_policy_defaults,
    "PodSpec": _pod_spec_defaults,
    "ServiceSpec": _service_spec_defaults,
    "Volume": _volume_source_defaults,
}
