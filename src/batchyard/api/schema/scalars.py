"""Validators of scalars: strings, numbers, quantities, times.

A visitor takes a value and returns it if it is valid, else Flaws. Only quantities and times are normalized to
Kubernetes's form, always as strings. If only the type matters, the type itself (`str`, `bool`) is the visitor, so that
the parent compares without a call.
"""

import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from batchyard.api import meta
from batchyard.api.schema.violations import Flaw, Flaws, choice, flaw, nearest, shown, wrong_type
from batchyard.api.times import in_utc, micro_in_utc
from batchyard.base.instant import parse_duration
from batchyard.base.memory import memoized_if_short

Visitor: TypeAlias = Callable[[Any], Any]
PlainVisitor: TypeAlias = "Visitor | type"

#: Descriptions of types, for messages.
WORDS: Final = {
    "string": "a string",
    "bool": "true or false",
    "int": "an integer",
    "int32": "an integer",
    "int64": "an integer",
    "quantity": "a quantity such as 500m, 2 or 10Gi",
    "int-or-string": "an integer or a string",
    "time": "a time such as 2026-01-01T00:00:00Z",
    "micro-time": "a time such as 2026-01-01T00:00:00.000000Z",
    "duration": "a duration such as 90s or 1h30m",
    "bytes": "a base64 text",
    "any": "any value",
}
_RANGES: Final = {"int": 63, "int32": 31, "int64": 63}
_CACHE_SIZE: Final = 4096
_REWRITTEN: Final = frozenset({"quantity", "time", "micro-time"})
#: Descriptions of name patterns.
_PATTERN_WORDS: Final = {
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "lower case letters, digits and '-', a letter or digit first and last",
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": (
        "lower case letters, digits, '-' and '.', a letter or digit first and last"
    ),
}


def scalar_visitor(expression: str, facts: Mapping[str, Any]) -> PlainVisitor:
    """Return the visitor of a scalar type."""
    if expression == "string":
        return _string(facts) if facts.keys() - {"default"} else str
    if expression in _RANGES:
        return _integer(expression, facts)
    if expression == "bool":
        return bool
    if expression in _PARSERS:
        return _parsed(expression, *_PARSERS[expression])
    return _anything


def plain_flaws(wanted: type, value: Any) -> Flaws:
    """Return the flaws of a value that is not of a plain type."""
    if wanted is bool:
        spelt = {"true": "true", "yes": "true", "false": "false", "no": "false"}.get(str(value).lower())
        return wrong_type(value, WORDS["bool"], f"write {spelt} without quotes" if spelt else "")
    text = shown(value)
    is_scalar = isinstance(value, bool | int | float) and " " not in text
    return wrong_type(value, WORDS["string"], f'put it in quotes: "{text}"' if is_scalar else "")


def _anything(value: Any) -> Any:
    return value


def _integer(expression: str, facts: Mapping[str, Any]) -> Visitor:
    bits = _RANGES[expression]
    lowest, highest = facts.get("min", -(1 << bits)), facts.get("max", (1 << bits) - 1)

    def visit(value: Any) -> Any:
        if type(value) is not int:
            return _not_an_integer(value)
        if lowest <= value <= highest:
            return value
        if value < lowest:
            return flaw(f"Invalid value: {shown(value)}: must be at least {lowest}", f"use {lowest} or more")
        return flaw(f"Invalid value: {shown(value)}: must be at most {highest}", f"use {highest} or less")

    return visit


def _not_an_integer(value: Any) -> Flaws:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII):
        return wrong_type(value, "an integer", f"write {int(value)} without quotes")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return wrong_type(value, "an integer", f"write {int(value)}")
    return wrong_type(value, "an integer")


def _string(facts: Mapping[str, Any]) -> Visitor:
    def check(value: str) -> Any:
        return Flaws(_string_flaws(value, facts)) or value

    checked = memoized_if_short(_CACHE_SIZE)(check)

    def visit(value: Any) -> Any:
        if type(value) is not str:
            return plain_flaws(str, value)
        found = checked(value)
        return value if type(found) is str else found

    return visit


def _string_flaws(value: str, facts: Mapping[str, Any]) -> Iterator[Flaw]:
    allowed = facts.get("enum")
    if allowed is not None:
        if value not in allowed:
            yield _unsupported(value, allowed)
        return
    if len(value) < facts.get("minLength", 0):
        least = facts["minLength"]
        wanted = f"must have at least {least} characters" if least > 1 else "must not be empty"
        yield Flaw((), f"Invalid value: {shown(value)}: {wanted}", "fill it in")
    elif len(value) > facts.get("maxLength", len(value)):
        remedy = f"shorten it by {len(value) - facts['maxLength']}"
        yield Flaw((), f"Too long: may not be more than {facts['maxLength']} characters", remedy)
    elif "pattern" in facts and not _compiled(facts["pattern"]).search(value):
        words = _PATTERN_WORDS.get(facts["pattern"])
        remedy = f"use {words}" if words else "write it so that it matches"
        yield Flaw((), f"Invalid value: {shown(value)}: must match {facts['pattern']}", remedy)


def _unsupported(value: str, allowed: list[str]) -> Flaw:
    close = nearest(value, allowed)
    remedy = f"did you mean {close}?" if close else f"use {choice(allowed)}"
    shown_names = ", ".join(map(shown, allowed))
    return Flaw((), f"Unsupported value: {shown(value)}: supported values: {shown_names}", remedy)


@lru_cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of a CRD in Go syntax: `$` is the end of the text, and flags may come after `^`."""
    if pattern.startswith("^(?i)"):
        pattern = "(?i)^" + pattern.removeprefix("^(?i)")
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), re.ASCII)


def _parsed(expression: str, types: tuple[type, ...], parse: Callable[[Any], object]) -> Visitor:
    """Return the visitor of a grammar; the parser's ValueError has the problem and, after `; `, the remedy."""

    def visit(value: Any) -> Any:
        if type(value) not in types:
            return wrong_type(value, WORDS[expression])
        try:
            found = parse(value)
        except ValueError as wrong:
            problem, separator, remedy = str(wrong).rpartition("; ")
            problem, remedy = (problem, remedy) if separator else (remedy, "")
            return flaw(f"Invalid value: {problem}", remedy or f"write {WORDS[expression]}")
        return found if expression in _REWRITTEN and found != value else value

    return visit


def _parse_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.replace("\n", ""), strict_mode=True)
    except ValueError as wrong:
        raise ValueError(f"it is not base64 ({wrong}); encode it, or use stringData for plain text") from None


_PARSERS: Final[Mapping[str, tuple[tuple[type, ...], Callable[[Any], object]]]] = {
    "quantity": ((str, int, float), meta.canonical),
    "int-or-string": ((str, int), str),
    "time": ((str,), in_utc),
    "micro-time": ((str,), micro_in_utc),
    "duration": ((str,), parse_duration),
    "bytes": ((str,), _parse_base64),
}


# --- computed ---
#
# Defaults of types of Kubernetes itself that depend on other fields.
#
# Constant defaults are in the field tables. Each function returns the fields to add to an object of its type. Sources:
# Kubernetes's pkg/apis/core/v1/{defaults,conversion}.go, pkg/util/parsers.


Computed: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_NONE: Final[Mapping[str, Any]] = {}
#: An image reference: optional host, path, optional tag or digest. Without either, the tag is `latest`.
_PART: Final = r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+"
_REFERENCE: Final = re.compile(
    rf"(?:[a-zA-Z0-9.\-\[\]:]++/)?+{_PART}(?:/{_PART})*+(?::(?P<tag>[\w][\w.\-]{{0,127}}+))?+(?P<digest>@[\w+.:\-]++)?+",
    re.ASCII,
)
_REFERENCE_MAX: Final = 1024
_LATEST: Final = "latest"
#: The session affinity timeout of a Service.
_CLIENT_IP_SECONDS: Final = 10800


def pull_policy(image: str) -> str:
    """Return the pull policy of an image: `Always` for the tag `latest`, which is the default without a digest."""
    found = _REFERENCE.fullmatch(image) if len(image) <= _REFERENCE_MAX else None
    if found is None:
        return "IfNotPresent"
    tag = found["tag"] or ("" if found["digest"] else _LATEST)
    return "Always" if tag == _LATEST else "IfNotPresent"


def _container(container: Mapping[str, Any]) -> Mapping[str, Any]:
    if container.get("imagePullPolicy"):
        return _NONE
    return {"imagePullPolicy": pull_policy(container.get("image") or "")}


def _volume(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the source of a volume without one: an emptyDir; or the pull policy of an image volume."""
    if len(volume) == 1 and "name" in volume:
        return {"emptyDir": {}}
    image = volume.get("image")
    if image is not None and not image.get("pullPolicy"):
        return {"image": {**image, "pullPolicy": pull_policy(image.get("reference") or "")}}
    return _NONE


def _pod_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the service account name in both fields; the newer field takes precedence."""
    name = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if not name or (spec.get("serviceAccountName") == name and spec.get("serviceAccount") == name):
        return _NONE
    return {"serviceAccountName": name, "serviceAccount": name}


def _service_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    added: dict[str, Any] = {}
    ports = spec.get("ports") or ()
    if any(port.get("targetPort") in {None, 0, ""} for port in ports):
        added["ports"] = [
            {**port, "targetPort": port["port"]} if port.get("targetPort") in {None, 0, ""} else port for port in ports
        ]
    kind, affinity = spec.get("type"), spec.get("sessionAffinityConfig")
    if (
        spec.get("sessionAffinity") == "ClientIP"
        and ((affinity or {}).get("clientIP") or {}).get("timeoutSeconds") is None
    ):
        added["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": _CLIENT_IP_SECONDS}}
    if spec.get("internalTrafficPolicy") is None and kind != "ExternalName":
        added["internalTrafficPolicy"] = "Cluster"
    if kind in {"NodePort", "LoadBalancer"} and not spec.get("externalTrafficPolicy"):
        added["externalTrafficPolicy"] = "Cluster"
    if kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is None:
        added["allocateLoadBalancerNodePorts"] = True
    return added


def _endpoint_slice(endpoint_slice: Mapping[str, Any]) -> Mapping[str, Any]:
    ports = endpoint_slice.get("ports") or ()
    if all("name" in port for port in ports):
        return _NONE
    return {"ports": [port if "name" in port else {**port, "name": ""} for port in ports]}


def _network_policy_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the default policy types: ingress, and egress if there are egress rules."""
    if spec.get("policyTypes"):
        return _NONE
    return {"policyTypes": ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]}


#: The functions by type.
COMPUTED: Final[Mapping[str, Computed]] = {
    "Container": _container,
    "EphemeralContainer": _container,
    "EndpointSlice": _endpoint_slice,
    "NetworkPolicySpec": _network_policy_spec,
    "PodSpec": _pod_spec,
    "ServiceSpec": _service_spec,
    "Volume": _volume,
}
