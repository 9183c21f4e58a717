"""Requests in protobuf, encoded by hand in its wire format."""

from operator import attrgetter

import pytest

from batchyard.api.scheme import ServedKind
from batchyard.apiserver.built_in import built_in_resources
from batchyard.apiserver.protobuf import BadMessage, decode_protobuf_object
from unit.apiserver.api import Api


def field(number: int, content: bytes | str | int) -> bytes:
    """One field of a message; all lengths and numbers here are below 128, or are given as they are."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    raw = content.encode() if isinstance(content, str) else content
    tag = bytes([number << 3 | 2]) if number < 16 else bytes([(number << 3 | 2) & 0x7F | 0x80, number >> 4])
    length = bytes([len(raw)]) if len(raw) < 128 else bytes([len(raw) & 0x7F | 0x80, len(raw) >> 7])
    return tag + length + raw


def protobuf_envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\0" + field(1, field(1, api_version) + field(2, kind)) + field(2, raw)


def metadata(name: str) -> bytes:
    """Metadata as Go writes it: fields that are not pointers are present, though empty."""
    empty = b"".join(field(number, "") for number in (2, 3, 4, 5, 6))
    return field(1, name) + empty + field(7, 0) + field(8, b"")


def entry(key: str, value: str | bytes) -> bytes:
    return field(1, key) + field(2, value)


def test_empty_strings_and_times_are_omitted() -> None:
    sent = protobuf_envelope(
        "v1", "ConfigMap", field(1, metadata("m")) + field(2, entry("a", "1")) + field(2, entry("b", ""))
    )
    assert decode_protobuf_object(sent) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m"},
        "data": {"a": "1", "b": ""},
    }


def test_explicit_zero_is_kept() -> None:
    spec = field(2, 0) + field(7, 0) + field(10, 0)
    job = decode_protobuf_object(protobuf_envelope("batch/v1", "Job", field(1, metadata("j")) + field(2, spec)))
    assert job["spec"] == {"completions": 0, "backoffLimit": 0, "suspend": False}


def test_negative_numbers_are_decoded() -> None:
    below = b"\x10" + b"\xfe" + b"\xff" * 8 + b"\x01"
    assert decode_protobuf_object(protobuf_envelope("scheduling.k8s.io/v1", "PriorityClass", below))["value"] == -2


def test_quantities_and_inlined_fields_are_decoded() -> None:
    requests = field(2, entry("cpu", field(1, "500m")))
    volume = field(1, "scratch") + field(2, field(2, b""))
    container = field(1, "main") + field(8, requests)
    pod = decode_protobuf_object(protobuf_envelope("v1", "Pod", field(2, field(1, volume) + field(2, container))))
    assert pod["spec"]["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert pod["spec"]["containers"] == [{"name": "main", "resources": {"requests": {"cpu": "500m"}}}]


def test_bytes_are_decoded_as_base64() -> None:
    secret = decode_protobuf_object(protobuf_envelope("v1", "Secret", field(2, entry("word", b"\xff\0"))))
    assert secret["data"] == {"word": "/wA="}


def test_create_accepts_protobuf() -> None:
    sent = protobuf_envelope("v1", "Namespace", field(1, metadata("new")))
    headers = {"content-type": "application/vnd.kubernetes.protobuf"}
    created = Api().ask("POST", "/api/v1/namespaces", sent, headers=headers)
    assert (created.code, created.body["metadata"]["name"]) == (201, "new")


@pytest.mark.parametrize(
    "info", [each.served_kind for each in built_in_resources() if each.is_native], ids=attrgetter("kind")
)
def test_every_native_kind_is_decoded(info: ServedKind) -> None:
    assert decode_protobuf_object(protobuf_envelope(info.api_version, info.kind, b""))["kind"] == info.kind


def test_endpoint_slices_and_runtime_classes_are_decoded() -> None:
    endpoint = field(1, "10.0.0.1") + field(2, field(1, 1)) + field(6, "node-0")
    sent = field(2, endpoint) + field(3, field(1, "http") + field(3, 80)) + field(4, "IPv4")
    result = decode_protobuf_object(protobuf_envelope("discovery.k8s.io/v1", "EndpointSlice", sent))
    assert result["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "nodeName": "node-0"}]
    assert (result["ports"], result["addressType"]) == ([{"name": "http", "port": 80}], "IPv4")
    runtime = decode_protobuf_object(protobuf_envelope("node.k8s.io/v1", "RuntimeClass", field(2, "runsc")))
    assert runtime["handler"] == "runsc"


@pytest.mark.parametrize(
    "sent",
    [
        b"{}",
        b"k8s\0\xff",
        b"k8s\0" + b"\x0a\x7f",
        protobuf_envelope("kueue.x-k8s.io/v1beta2", "ClusterQueue", b""),
        protobuf_envelope("v1", "Pod", field(2, 7)),
        protobuf_envelope("v1", "ConfigMap", field(1, field(1, b"\xff\xfe"))),
        protobuf_envelope("v1", "Pod", b"\x0b"),
    ],
)
def test_invalid_protobuf_message_is_rejected(sent: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_protobuf_object(sent)


@pytest.mark.parametrize(
    ("embedded", "why"),
    [
        (b'{"f:\xf6": {}}', "embedded JSON is invalid"),
        (b"[" * 101 + b"]" * 101, "embedded JSON is nested more than 100 levels deep"),
    ],
)
def test_embedded_json_is_validated(embedded: bytes, why: str) -> None:
    about = field(1, "m") + field(17, field(1, "me") + field(7, field(1, embedded)))
    with pytest.raises(BadMessage, match=why):
        decode_protobuf_object(protobuf_envelope("v1", "ConfigMap", field(1, about)))
