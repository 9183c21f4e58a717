"""Errors for pods that cannot get what they request, with the kubelet's messages where it has some.

    InputError          an input of a pod is not available; the caller adds what it belongs to
    ContainerError      a container cannot be created: reason and message of its `waiting` state
    VolumeError         a volume cannot be created: reported by a FailedMount Event, and retried

All three are retried until the missing object exists. Source: pkg/kubelet/kuberuntime, pkg/kubelet/images, pkg/volume.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.interfaces.client import Reader

CONFIG: Final = "CreateContainerConfigError"
"""The reason if the configuration of a container cannot be created."""
CREATE: Final = "CreateContainerError"
"""The reason if the runtime would reject the container."""


class InputError(Exception):
    """An input of a pod is not available; the text is the reason."""


class ContainerError(Exception):
    """A container cannot be created: the reason and message of its `waiting` state; the message of a `Failed` Event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class VolumeError(Exception):
    """A volume cannot be created; the text is the message of a Warning Event with reason FailedMount."""

    def __init__(self, volume: str, why: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')
        self.volume = volume


# --- quoting ---
# Quoting as by Go's `%q`, as in downward API files of labels and annotations.


_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def quoted(text: str) -> str:
    """Quote a text; unprintable characters become escapes."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if char.isprintable():
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


# --- configs ---
#
# ConfigMaps and Secrets as sources of environment variables and files.
#
# Source of the messages: pkg/kubelet/util/manager (NewNotFound of `configmap` and `secret`).


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
