"""ConfigMaps and Secrets as sources of environment variables and files.

Source of the messages: pkg/kubelet/util/manager (NewNotFound of `configmap` and `secret`).
"""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.interfaces.client import Reader


class ConfigData(NamedTuple):
    """The entries of a ConfigMap or Secret."""

    #: Values for environment variables. Bytes that are not UTF-8 use surrogate escapes, as in `os.environ`.
    texts: Mapping[str, str]
    #: Contents for files.
    contents: Mapping[str, bytes]


def find_config_map(reader: Reader, namespace: str, name: str) -> ConfigData | None:
    """Return a ConfigMap; None if it does not exist. Its binary data is not available to variables."""
    obj = reader.get(Key(scheme.CONFIG_MAP, namespace, name))
    if obj is None:
        return None
    texts: Mapping[str, str] = obj.get("data") or {}
    return ConfigData(texts, {**{key: text.encode() for key, text in texts.items()}, **_decoded(obj.get("binaryData"))})


def find_secret(reader: Reader, namespace: str, name: str) -> ConfigData | None:
    """Return a Secret; None if it does not exist."""
    obj = reader.get(Key(scheme.SECRET, namespace, name))
    if obj is None:
        return None
    contents = _decoded(obj.get("data"))
    return ConfigData({key: value.decode("utf-8", "surrogateescape") for key, value in contents.items()}, contents)


def no_config_map(name: str) -> str:
    """Return the kubelet's message for a missing ConfigMap."""
    return f'configmap "{name}" not found'


def no_secret(name: str) -> str:
    """Return the kubelet's message for a missing Secret."""
    return f'secret "{name}" not found'


def _decoded(encoded: Mapping[str, Any] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value or "") for key, value in (encoded or {}).items()}
