"""The time of a request grows at most sixfold when its size grows fourfold.

The tests lengthen each string, list and mapping of each kind, and each kind of body, patch, selector and expression.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import msgspec
import pytest

from batchyard.apiserver.request import ApiRequest, Response
from cost.cpu_growth import check_growth
from cost.fields import FieldLocation, places, with_value
from fuzz.requests import good_objects
from unit.apiserver.api import OWNER, Api, body_bytes

#: Initial numbers of letters of a string, items of a list and keys of a mapping.
LETTERS = 25_000
ITEMS = 400
TEXTS: Mapping[str, Callable[[int], str]] = {
    "letters": lambda n: "a" * n,
    "digits and a letter": lambda n: "1" * n + "x",
    "labels": lambda n: "a." * (n // 2) + "_",
    "signs": lambda n: "-" * n + "!",
    "brackets": lambda n: "[" * n,
    "references": lambda n: "$(" * (n // 2),
    "spaces": lambda n: "a" + " " * n,
    "parts": lambda n: "1h" * (n // 2),
    "lines": lambda n: "a,\n" * (n // 3),
}
STRINGS = {"string", "quantity", "time", "micro-time", "duration", "bytes", "int-or-string", "any"}
BY_KIND: dict[str, list[FieldLocation]] = defaultdict(list)
for _place in places():
    BY_KIND[f"{_place.info.plural}.{_place.version}.{_place.info.group}"].append(_place)


@cache
def good() -> Mapping[tuple[str, str], dict[str, Any]]:
    return {(obj["apiVersion"], obj["kind"]): obj for obj in good_objects()}


def base_of(place: FieldLocation) -> dict[str, Any]:
    api_version = place.info.api_version_for(place.version)
    result = good().get((api_version, place.info.kind))
    return result or {"apiVersion": api_version, "kind": place.info.kind, "metadata": {"name": "a"}}


class EmptyServer:
    """An empty API server."""

    def __init__(self) -> None:
        self.api = Api()

    def post(self, place: FieldLocation, value: Any) -> None:
        """Send an object with a value at a place, without storing it."""
        obj = with_value(base_of(place), place.steps, value)
        self.send("POST", path_of(place), msgspec.json.encode(obj), dryRun="All", fieldValidation="Strict")

    def post_of_size(self, place: FieldLocation, value: Callable[[int], Any], size: int) -> None:
        """Send an object with a value of some size at a place."""
        self.post(place, value(size))

    def get_of_size(self, method: str, parameter: str, value: Callable[[int], str], size: int) -> None:
        """Send a request with a query of some size."""
        self.send(method, MAPS, b"", **{parameter: value(size)})

    def head_of_size(self, name: str, value: Callable[[int], str], size: int) -> None:
        """Send a request with a header of some size."""
        self.api.server.handle(ApiRequest("GET", MAPS, {}, {name: value(size)}, b"", OWNER))

    def send(
        self, method: str, path: str, body: bytes, content_type: str = "application/json", **query: str
    ) -> Response:
        answer = self.api.server.handle(ApiRequest(method, path, query, {"content-type": content_type}, body, OWNER))
        assert isinstance(answer, Response)
        body_bytes(answer)
        return answer


def path_of(place: FieldLocation) -> str:
    api_version = place.info.api_version_for(place.version)
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    within = "/namespaces/default" if place.info.namespaced else ""
    return f"{root}{within}/{place.info.plural}"


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_long_field_values_take_linear_time(kind: str) -> None:
    server = EmptyServer()
    for place in BY_KIND[kind]:
        for named, value in values_of(place):
            size = LETTERS if place.field.expression in STRINGS else ITEMS
            check_growth(f"{place.named}: {named}", partial(server.post_of_size, place, value), size)


def values_of(place: FieldLocation) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Yield values for a place, by their size: texts, or items, or keys."""
    if place.field.expression in STRINGS:
        yield from TEXTS.items()
    elif place.field.is_list:
        yield "items", partial(items_of, place)
    elif place.field.is_map:
        yield "keys", partial(keys_of, place)


def keys_of(place: FieldLocation, count: int) -> dict[str, Any]:
    """Return a mapping of `count` keys."""
    return {f"k{i}": value_of(place, i) for i in range(count)}


def items_of(place: FieldLocation, count: int) -> list[Any]:
    """Return items of a list with unique names, derived from the valid object where it has items."""
    holder: Any = base_of(place)
    for step in place.steps:
        try:
            holder = holder[step]
        except (KeyError, IndexError, TypeError):
            holder = None
            break
    first = holder[0] if isinstance(holder, list) and holder else None
    if isinstance(first, dict):
        return [
            {**first, **{key: f"{first[key]}-{i}" for key in ("name", "key") if key in first}} for i in range(count)
        ]
    return [value_of(place, i) for i in range(count)]


def value_of(place: FieldLocation, number: int) -> Any:
    """Return a value for a list or a mapping."""
    element = place.field.element
    if element.is_object:
        return {"name": f"n{number}", "key": f"n{number}"}
    if element.is_list:
        return [f"n{number}"]
    if element.is_map:
        return {f"n{number}": "1"}
    return number if element.expression in {"int", "int32", "int64"} else f"n{number}"


# --- bodies ---

MAPS = "/api/v1/namespaces/default/configmaps"
MAP = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"%b}}'
DEEP = 20_000
BODIES: Mapping[str, tuple[str, Callable[[int], bytes]]] = {
    "json: brackets": ("application/json", lambda n: b"[" * n),
    "json: pairs of brackets": ("application/json", lambda n: b"[" + b"[]," * n + b"[]]"),
    "json: braces": ("application/json", lambda n: b'{"a":' * n),
    "json: quotes": ("application/json", lambda n: b'"' * n),
    "json: backslashes": ("application/json", lambda n: b'{"a":"' + b"\\\\" * n + b'"}'),
    "json: escapes": ("application/json", lambda n: MAP % (b',"x":"' + b"\\u00e9" * n + b'"')),
    "json: digits": ("application/json", lambda n: b'{"a":' + b"9" * n + b"}"),
    "json: fractions": ("application/json", lambda n: b'{"a":0.' + b"9" * n + b"}"),
    "json: exponents": ("application/json", lambda n: b'{"a":1e' + b"9" * n + b"}"),
    "json: spaces": ("application/json", lambda n: b"{" + b" " * n + b"}"),
    "json: fields twice": ("application/json", lambda n: MAP % (b',"a":1' * n)),
    "json: unknown fields": ("application/json", lambda n: MAP % b"".join(b',"f%d":1' % i for i in range(n))),
    "json: finalizers": (
        "application/json",
        lambda n: MAP % (b',"finalizers":[' + b",".join(b'"a/b%d"' % i for i in range(n)) + b"]"),
    ),
    "json: managedFields": (
        "application/json",
        lambda n: MAP % (b',"managedFields":[' + b",".join(b'{"manager":"m%d"}' % i for i in range(n)) + b"]"),
    ),
    "yaml: items": ("application/yaml", lambda n: b"a: [" + b"a," * n + b"a]"),
    "yaml: lines": ("application/yaml", lambda n: b"a:\n" + b"- a\n" * n),
    "yaml: keys": ("application/yaml", lambda n: b"".join(b"k%d: v\n" % i for i in range(n))),
    "yaml: keys twice": ("application/yaml", lambda n: b"k: v\n" * n),
    "yaml: brackets": ("application/yaml", lambda n: b"[" * n),
    "yaml: dashes": ("application/yaml", lambda n: b"- " * n),
    "yaml: questions": ("application/yaml", lambda n: b"? " * n),
    "yaml: indentation": ("application/yaml", lambda n: b"".join(b" " * i + b"a:\n" for i in range(n // 200))),
    "yaml: documents": ("application/yaml", lambda n: b"---\na: b\n" * n),
    "yaml: comments": ("application/yaml", lambda n: b"# a\n" * n),
    "yaml: anchors": ("application/yaml", lambda n: b"".join(b"a%d: &a%d b\n" % (i, i) for i in range(n))),
    "yaml: aliases": ("application/yaml", lambda n: b"a: &a b\nb: [" + b"*a," * n + b"*a]"),
    "yaml: merges": ("application/yaml", lambda n: b"a: &a {b: c}\n" + b"<<: *a\n" * n),
    "yaml: a quoted text": ("application/yaml", lambda n: b'a: "' + b"\\x41\n " * n + b'"'),
    "yaml: a folded text": ("application/yaml", lambda n: b"a: >\n" + b"  b\n" * n),
    "yaml: a plain text": ("application/yaml", lambda n: b"a: b" + b"\n  b" * n),
    "yaml: tags": ("application/yaml", lambda n: b"a: [" + b"!b c," * n + b"c]"),
    "yaml: digits": ("application/yaml", lambda n: b"a: " + b"1" * n),
    "yaml: underscores": ("application/yaml", lambda n: b"a: 1" + b"_" * n),
    "yaml: colons": ("application/yaml", lambda n: b"a" + b":" * n),
    "yaml: directives": ("application/yaml", lambda n: b"%A b\n" * n + b"--- a"),
    "protobuf: fields": ("application/vnd.kubernetes.protobuf", lambda n: protobuf(b"\x1a\x01a" * n)),
    "protobuf: data": ("application/vnd.kubernetes.protobuf", lambda n: protobuf(b"\x12\x06\n\x01a\x12\x01b" * n)),
    "protobuf: labels": (
        "application/vnd.kubernetes.protobuf",
        lambda n: protobuf(field(1, b"".join(field(11, field(1, b"k%d" % i)) for i in range(n)))),
    ),
    "protobuf: nesting": ("application/vnd.kubernetes.protobuf", lambda n: protobuf(nested(n // 200))),
}


def varint(value: int) -> bytes:
    result = b""
    while value > 127:
        result, value = result + struct.pack("B", value & 127 | 128), value >> 7
    return result + struct.pack("B", value)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def nested(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = field(1, content)
    return content


def protobuf(content: bytes) -> bytes:
    about = field(1, b"v1") + field(2, b"ConfigMap")
    return b"k8s\0" + field(1, about) + field(2, content)


@pytest.mark.parametrize("named", BODIES)
def test_long_bodies_take_linear_time(named: str) -> None:
    server, (content_type, body) = EmptyServer(), BODIES[named]
    check_growth(named, lambda n: server.send("POST", MAPS, body(n), content_type, dryRun="All"), DEEP)


# --- patches ---

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a"},
    "spec": {"containers": [{"name": f"c{i}", "image": "x"} for i in range(50)]},
}
PATCH_ITEMS = 600


def containers(count: int) -> list[dict[str, Any]]:
    return [{"name": f"c{i}", "image": "y", "env": [{"name": f"e{i}", "value": "v"}]} for i in range(count)]


def labels(count: int) -> dict[str, str]:
    return {f"k{i}": "v" for i in range(count)}


PATCHES: Mapping[str, tuple[str, Callable[[int], Any]]] = {
    "json: adds": (
        "json-patch+json",
        lambda n: [{"op": "add", "path": f"/metadata/x{i}", "value": 1} for i in range(n)],
    ),
    "json: tests": ("json-patch+json", lambda n: [{"op": "test", "path": "/metadata/name", "value": "a"}] * n),
    "json: inserts": (
        "json-patch+json",
        lambda n: [{"op": "add", "path": "/spec/containers/0", "value": {"name": f"x{i}"}} for i in range(n)],
    ),
    "json: copies": (
        "json-patch+json",
        lambda n: [{"op": "copy", "from": "/spec", "path": f"/x{i}"} for i in range(n)],
    ),
    "json: moves": (
        "json-patch+json",
        lambda n: [{"op": "move", "from": "/spec/containers/0", "path": "/spec/containers/40"}] * n,
    ),
    "json: a long path": ("json-patch+json", lambda n: [{"op": "add", "path": "/a" * n * 10, "value": 1}]),
    "json: escapes": ("json-patch+json", lambda n: [{"op": "add", "path": "/" + "~1" * n * 10, "value": 1}]),
    "merge: labels": ("merge-patch+json", lambda n: {"metadata": {"labels": labels(n)}}),
    "merge: containers": ("merge-patch+json", lambda n: {"spec": {"containers": containers(n)}}),
    "merge: nulls": ("merge-patch+json", lambda n: {"metadata": {"annotations": dict.fromkeys(labels(n))}}),
    "strategic: containers": ("strategic-merge-patch+json", lambda n: {"spec": {"containers": containers(n)}}),
    "strategic: order": (
        "strategic-merge-patch+json",
        lambda n: {"spec": {"$setElementOrder/containers": [{"name": f"c{i}"} for i in range(n)]}},
    ),
    "strategic: deletions": (
        "strategic-merge-patch+json",
        lambda n: {"spec": {"containers": [{"$patch": "delete", "name": f"c{i}"} for i in range(n)]}},
    ),
    "strategic: finalizers": (
        "strategic-merge-patch+json",
        lambda n: {"metadata": {"finalizers": [f"a/b{i}" for i in range(n)]}},
    ),
    "strategic: removed finalizers": (
        "strategic-merge-patch+json",
        lambda n: {"metadata": {"$deleteFromPrimitiveList/finalizers": [f"a/b{i}" for i in range(n)]}},
    ),
    "apply: containers": ("apply-patch+yaml", lambda n: {**POD, "spec": {"containers": containers(n)}}),
    "apply: labels": ("apply-patch+yaml", lambda n: {**POD, "metadata": {"name": "a", "labels": labels(n)}}),
    "apply: finalizers": (
        "apply-patch+yaml",
        lambda n: {**POD, "metadata": {"name": "a", "finalizers": [f"a/b{i}" for i in range(n)]}},
    ),
    "apply: unknown fields": ("apply-patch+yaml", lambda n: {**POD, "spec": {**POD["spec"], **labels(n)}}),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("named", PATCHES)
def test_long_patches_take_linear_time(named: str) -> None:
    server, (content_type, patch) = EmptyServer(), PATCHES[named]
    server.api.post("/api/v1/namespaces/default/pods", POD)
    path = "/api/v1/namespaces/default/pods/a"
    query = {"dryRun": "All"} | ({"fieldManager": "b", "force": "true"} if named.startswith("apply") else {})

    def run(count: int) -> None:
        server.send("PATCH", path, msgspec.json.encode(patch(count)), f"application/{content_type}", **query)

    check_growth(named, run, PATCH_ITEMS)


# --- queries and headers ---


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "parameter",
    [
        *("labelSelector", "fieldSelector", "continue", "resourceVersion", "limit", "includeObject", "timeoutSeconds"),
        *("fieldManager", "fieldValidation", "dryRun", "propagationPolicy", "gracePeriodSeconds", "pretty"),
    ],
)
def test_long_parameters_take_linear_time(parameter: str, text: str) -> None:
    server = EmptyServer()
    for method in ("GET", "POST", "DELETE"):
        for of in (TEXTS[text], lambda n: "a in (" + "b," * (n // 2) + "c)", lambda n: "a=b," * (n // 4) + "a=b"):
            check_growth(f"{method} {parameter}", partial(server.get_of_size, method, parameter, of), 15_000)


@pytest.mark.parametrize("text", TEXTS)
def test_long_headers_take_linear_time(text: str) -> None:
    server = EmptyServer()
    for name in ("accept", "authorization", "impersonate-user", "user-agent", "content-type"):
        check_growth(name, partial(server.head_of_size, name, TEXTS[text]), 15_000)


# --- custom resources ---


def definition(**fields: Any) -> dict[str, Any]:
    schema = fields.pop("schema", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **fields}
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    spec = {"group": "a.example", "scope": "Namespaced", "names": names, "versions": [version]}
    metadata = {"name": "things.a.example"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


def with_rule(rule: str, **of: Any) -> dict[str, Any]:
    spec = {"type": "object", "x-kubernetes-validations": [{"rule": rule}], **of}
    return {"type": "object", "properties": {"spec": spec}}


RULES: Mapping[str, Callable[[int], str]] = {
    "a sum": lambda n: "1" + "+1" * n + " > 0",
    "brackets": lambda n: "(" * n + "true" + ")" * n,
    "conditions": lambda n: "true" + " && true" * n,
    "a text": lambda n: "'" + "a" * n + "' != ''",
    "a word": lambda n: "a" * n,
    "spaces": lambda n: "true" + " " * n,
    "iterations": lambda n: "[" + "1," * n + "1].all(x, x > 0)",
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.mark.parametrize("named", RULES)
def test_long_validation_rules_take_linear_time(named: str) -> None:
    server, rule = EmptyServer(), RULES[named]

    def run(count: int) -> None:
        sent = msgspec.json.encode(definition(schema=with_rule(rule(count))))
        server.send("POST", DEFINITIONS, sent, dryRun="All")

    check_growth(named, run, 500)


SCHEMAS: Mapping[str, Callable[[int], Any]] = {
    "properties": lambda n: {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}},
    "required": lambda n: {"type": "object", "required": [f"p{i}" for i in range(n)]},
    "an enum": lambda n: {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": [f"e{i}" for i in range(n)]}},
    },
    "all of": lambda n: {"type": "object", "allOf": [{"required": [f"p{i}"]} for i in range(n)]},
    "rules": lambda n: {"type": "object", "x-kubernetes-validations": [{"rule": "true"}] * (n // 20)},
    "a pattern": lambda n: {"type": "object", "properties": {"a": {"type": "string", "pattern": "a" * n}}},
}


@pytest.mark.parametrize("named", SCHEMAS)
def test_long_schemas_take_linear_time(named: str) -> None:
    server, schema = EmptyServer(), SCHEMAS[named]

    def run(count: int) -> None:
        server.send("POST", DEFINITIONS, msgspec.json.encode(definition(schema=schema(count))), dryRun="All")

    check_growth(named, run, ITEMS)


@pytest.mark.parametrize("text", TEXTS)
def test_long_printer_columns_take_linear_time(text: str) -> None:
    server = EmptyServer()

    def run(count: int) -> None:
        column = {"name": "a", "type": "string", "jsonPath": "." + TEXTS[text](count)}
        sent = msgspec.json.encode(definition(additionalPrinterColumns=[column]))
        server.send("POST", DEFINITIONS, sent, dryRun="All")

    check_growth(text, run, 10_000)


VALUES: Mapping[str, tuple[Any, Callable[[int], Any]]] = {
    "a set": (
        {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        lambda n: [f"i{i}" for i in range(n)],
    ),
    "a set of objects": (
        {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        lambda n: [{"a": {"b": i}} for i in range(n)],
    ),
    "a map": (
        {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
        lambda n: [{"name": f"i{i}"} for i in range(n)],
    ),
    "a pattern": ({"type": "string", "pattern": "^(a+)+$"}, lambda n: "a" * n * 50 + "!"),
    "a format": ({"type": "string", "format": "hostname"}, lambda n: "a." * n * 50),
    "an address": ({"type": "string", "format": "ipv6"}, lambda n: ":" * n * 50),
    "a date": ({"type": "string", "format": "date-time"}, lambda n: "1" * n * 50),
    "pruned fields": ({"type": "object"}, labels),
    "a rule over a list": (
        {
            "type": "array",
            "maxItems": 100_000,
            "items": {"type": "string", "maxLength": 20},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x != y || x == y))"}],
        },
        lambda n: [f"i{i}" for i in range(n)],
    ),
}


@pytest.mark.parametrize("named", VALUES)
def test_long_values_of_custom_resources_take_linear_time(named: str) -> None:
    server, (schema, value) = EmptyServer(), VALUES[named]
    created = definition(schema={"type": "object", "properties": {"spec": schema}})
    assert server.send("POST", DEFINITIONS, msgspec.json.encode(created)).code in (201, 422)

    def run(count: int) -> None:
        obj = {"apiVersion": "a.example/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": value(count)}
        server.send("POST", "/apis/a.example/v1/namespaces/default/things", msgspec.json.encode(obj), dryRun="All")

    check_growth(named, run, 1500)
