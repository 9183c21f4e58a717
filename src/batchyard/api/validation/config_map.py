"""Rules of ConfigMaps and Secrets. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, names

BYTES_MAX: Final = 1024 * 1024
#: The keys that Secrets of a type must have.
_KEYS_OF_TYPE: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_ACCOUNT: Final = "kubernetes.io/service-account.name"


def config_map_faults(config_map: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a ConfigMap."""
    yield from metadata.metadata_faults(config_map)
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    yield from _key_faults(data, "data")
    yield from _key_faults(binary, "binaryData")
    for key in binary:
        if key in data:
            yield faults.invalid(f"data[{key}]", key, "duplicate of key present in binaryData", "drop one of the two")
    if sum(len(value.encode()) for value in data.values()) + _decoded_size(binary) > BYTES_MAX:
        yield _too_large("")


def config_map_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed ConfigMap: an immutable one stays."""
    yield from config_map_faults(new)
    yield from _kept_faults(new, old, ("data", "binaryData"))


def secret_faults(secret: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Secret."""
    yield from metadata.metadata_faults(secret)
    given = secret.get("data") or {}
    yield from _key_faults(given, "data")
    if _decoded_size(given) > BYTES_MAX:
        yield _too_large("data")
    kind = secret.get("type") or "Opaque"
    for key in _KEYS_OF_TYPE.get(kind, ()):
        if key not in given:
            yield faults.required(f"data[{key}]", "", f"give {key}, or drop the type {kind}")
    if kind == "kubernetes.io/basic-auth" and not ("username" in given or "password" in given):
        for key in ("username", "password"):
            yield faults.required(f"data[{key}]", "", "give a username or a password")
    account = (secret["metadata"].get("annotations") or {}).get(_ACCOUNT)
    if kind == "kubernetes.io/service-account-token" and not account:
        yield faults.required(f"metadata.annotations[{_ACCOUNT}]", "", "name the ServiceAccount")


def secret_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Secret: its type stays, and an immutable one stays as it is."""
    yield from secret_faults(new)
    if (new.get("type") or "Opaque") != (old.get("type") or "Opaque"):
        yield faults.immutable("type", new.get("type"))
    yield from _kept_faults(new, old, ("data",))


def _key_faults(data: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Keys can be names of files."""
    for key in data:
        for message in names.config_key(key):
            yield faults.invalid(f"{path}[{key}]", key, message, "use letters, digits, '-', '_' and '.'")


def _decoded_size(encoded: Mapping[str, str]) -> int:
    """How many bytes values of base64 stand for: those count, not their letters."""
    return sum(len(value) * 3 // 4 - value.count("=") for value in encoded.values())


def _too_large(path: str) -> FieldError:
    """All values together are at most one MiB."""
    return faults.too_long(path, BYTES_MAX, "split it, or keep large content in a volume")


def _kept_faults(new: Mapping[str, Any], old: Mapping[str, Any], fields: tuple[str, ...]) -> Iterator[FieldError]:
    """What is immutable stays immutable, and as it is."""
    if not old.get("immutable"):
        return
    message, remedy = "field is immutable when `immutable` is set", "delete the object and create it anew"
    if not new.get("immutable"):
        yield faults.forbidden("immutable", message, remedy)
    for field in fields:
        if (new.get(field) or {}) != (old.get(field) or {}):
            yield faults.forbidden(field, message, remedy)
