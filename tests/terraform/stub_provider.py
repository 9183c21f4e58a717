"""A stub provider for Terraform: it has the schema of the google provider (`schema`), and makes up all other values.

Terraform uses it like any provider (https://developer.hashicorp.com/terraform/plugin/terraform-plugin-protocol,
version 5.0), so that the real `validate`, `plan`, `apply` and `destroy` run on a machine without the real one. It
checks the schema, but not the rules of the code and API of Google: values that are out of range pass.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Any

import grpc
import msgspec

from terraform.schema import Body, ProviderSchema, is_computed

_SOURCE = "registry.terraform.io"
#: A value that is unknown before the apply, in the encoding of Terraform.
_UNKNOWN = msgspec.msgpack.Ext(0, b"\0")
_NESTINGS = {"single": 1, "list": 2, "set": 3}
#: The made-up value for each type of attribute.
_MADE_UP = {"string": "made-up", "number": 0, "bool": False}

Answer = Callable[[Mapping[int, bytes]], bytes]


@contextmanager
def serving(schemas: Sequence[ProviderSchema], folder: Path) -> Iterator[str]:
    """Serve each provider on a socket in the folder; yields the value of TF_REATTACH_PROVIDERS."""
    servers, described = [], {}
    for schema in schemas:
        name = schema.made_from["provider"].split()[0]
        server = grpc.server(futures.ThreadPoolExecutor(4))
        socket = folder / f"{name.replace('/', '-')}.sock"
        server.add_generic_rpc_handlers((_handlers(schema),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        servers.append(server)
        address = {"Network": "unix", "String": str(socket)}
        row = {"Protocol": "grpc", "ProtocolVersion": 5, "Pid": getpid(), "Test": True, "Addr": address}
        described[f"{_SOURCE}/{name}"] = row
    try:
        yield json.dumps(described)
    finally:
        for server in servers:
            server.stop(None).wait()


def _handlers(schema: ProviderSchema) -> grpc.GenericRpcHandler:
    answers: dict[str, Answer] = {
        "GetSchema": lambda _request: _schemas(schema),
        "PrepareProviderConfig": lambda request: _bytes(1, request[1]),
        "Configure": _nothing,
        "ValidateResourceTypeConfig": _nothing,
        "UpgradeResourceState": lambda request: _bytes(1, _bytes(2, _fields(request[3])[1])),
        "ReadResource": lambda request: _bytes(1, request[2]),
        "PlanResourceChange": lambda request: _planned(schema, request),
        "ApplyResourceChange": lambda request: _applied(schema, request),
        "Stop": _nothing,
    }
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_over_the_wire(answer)) for name, answer in answers.items()
    }
    return grpc.method_handlers_generic_handler("tfplugin5.Provider", methods)


def _over_the_wire(answer: Answer) -> Callable[[bytes, object], bytes]:
    return lambda request, _context: answer(_fields(request))


def _nothing(request: Mapping[int, bytes]) -> bytes:
    return b""


# --- behavior ---


def _planned(schema: ProviderSchema, request: Mapping[int, bytes]) -> bytes:
    """Plan the requested values; values from the provider are unknown."""
    before, proposed = _value(request[2]), _value(request[3])
    if proposed is None:
        return _bytes(1, _dynamic(None))
    filled = proposed if before is not None else _filled(schema.body(_text(request[1])), proposed, lambda _: _UNKNOWN)
    return _bytes(1, _dynamic(filled)) + _number(5, 1)


def _applied(schema: ProviderSchema, request: Mapping[int, bytes]) -> bytes:
    """Apply the plan with made-up values for unknown ones."""
    planned = _value(request[3])
    if planned is not None:
        planned = _known(schema.body(_text(request[1])), planned)
    return _bytes(1, _dynamic(planned)) + _number(4, 1)


def _filled(body: Body, value: dict[str, Any], fill: Callable[[str], Any]) -> dict[str, Any]:
    """A body with filled-in values for all unset attributes from the provider."""
    return {name: _filled_entry(body[name], each, fill) for name, each in value.items()}


def _filled_entry(entry: Any, value: Any, fill: Callable[[str], Any]) -> Any:
    if isinstance(entry, str) or entry["is"] == "attribute":
        return fill(entry) if value is None and is_computed(entry) else value
    if isinstance(value, list):
        return [_filled(entry["of"], each, fill) for each in value]
    return value


def _known(body: Body, value: dict[str, Any]) -> dict[str, Any]:
    """A body without unknown values."""
    return {name: _known_entry(body[name], each) for name, each in value.items()}


def _known_entry(entry: Any, value: Any) -> Any:
    if isinstance(value, msgspec.msgpack.Ext):
        return _MADE_UP.get(entry.split()[0], {} if entry.startswith("map") else []) if isinstance(entry, str) else []
    if isinstance(entry, dict) and entry["is"] == "block" and isinstance(value, list):
        return [_known(entry["of"], each) for each in value]
    return value


# --- schemas in the protocol ---


def _schemas(schema: ProviderSchema) -> bytes:
    resources = b"".join(
        _bytes(2, _bytes(1, name.encode()) + _bytes(2, _schema(body))) for name, body in schema.resources.items()
    )
    return _bytes(1, _schema(schema.provider)) + resources


def _schema(body: Body) -> bytes:
    return _bytes(2, _block(body))


def _block(body: Body) -> bytes:
    parts = []
    for name, entry in body.items():
        if isinstance(entry, dict) and entry["is"] == "block":
            parts.append(_bytes(3, _nested(name, entry)))
        else:
            parts.append(_bytes(2, _attribute(name, entry)))
    return b"".join(parts)


def _attribute(name: str, entry: Any) -> bytes:
    flags = (entry if isinstance(entry, str) else entry["flags"]).split()
    stated = b"".join(
        _number(field, 1) for field, flag in ((4, "required"), (5, "optional"), (6, "computed")) if flag in flags
    )
    return _bytes(1, name.encode()) + _bytes(2, json.dumps(_type(entry)).encode()) + stated


def _nested(name: str, entry: Mapping[str, Any]) -> bytes:
    least = _number(4, 1) if "required" in entry["flags"] else b""
    most = _number(5, entry["max"]) if "max" in entry else b""
    nesting = _number(3, _NESTINGS[entry["nesting"]])
    return _bytes(1, name.encode()) + _bytes(2, _block(entry["of"])) + nesting + least + most


def _type(entry: Any) -> Any:
    """A type in the JSON of Terraform."""
    if isinstance(entry, dict):
        return [entry["nesting"], ["object", {name: _type(each) for name, each in entry["of"].items()}]]
    collection, _, element = entry.split()[0].removesuffix(")").rpartition("(")
    return [collection, element] if collection else element


# --- messages: fields by number ---


def _value(dynamic: bytes) -> Any:
    return msgspec.msgpack.decode(_fields(dynamic)[1])


def _dynamic(value: Any) -> bytes:
    return _bytes(1, msgspec.msgpack.encode(value))


def _text(field: bytes) -> str:
    return field.decode()


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _fields(message: bytes) -> dict[int, bytes]:
    """The byte fields of a message, the last of each number. Numeric fields are ignored."""
    result, at = dict[int, bytes](), 0
    while at < len(message):
        key, at = _read_varint(message, at)
        length, at = _read_varint(message, at)
        if key & 7 == 2:
            result[key >> 3] = message[at : at + length]
            at += length
    return result


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
