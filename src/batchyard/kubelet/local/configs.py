"""ConfigMaps and Secrets as pods use them: variables, and files.

Source of the words: pkg/kubelet/util/manager (NewNotFound of `configmap` and `secret`).
"""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.interfaces.client import Reader


class Config(NamedTuple):
    """The entries of a ConfigMap or Secret."""

    #: What a variable may be set to. Bytes that are no UTF-8 are kept as Python keeps those of an environment.
    texts: Mapping[str, str]
    #: What a file may hold.
    contents: Mapping[str, bytes]


def find_config_map(reader: Reader, namespace: str, name: str) -> Config | None:
    """A ConfigMap; None if there is none. No variable is set to its binary data."""
    obj = reader.get(Key(scheme.CONFIG_MAP, namespace, name))
    if obj is None:
        return None
    texts: Mapping[str, str] = obj.get("data") or {}
    return Config(texts, {**{key: text.encode() for key, text in texts.items()}, **_decoded(obj.get("binaryData"))})


def find_secret(reader: Reader, namespace: str, name: str) -> Config | None:
    """A Secret; None if there is none."""
    obj = reader.get(Key(scheme.SECRET, namespace, name))
    if obj is None:
        return None
    contents = _decoded(obj.get("data"))
    return Config({key: value.decode("utf-8", "surrogateescape") for key, value in contents.items()}, contents)


def no_config_map(name: str) -> str:
    """What is said where there is none."""
    return f'configmap "{name}" not found'


def no_secret(name: str) -> str:
    """What is said where there is none."""
    return f'secret "{name}" not found'


def _decoded(encoded: Mapping[str, Any] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value or "") for key, value in (encoded or {}).items()}
