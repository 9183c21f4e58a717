"""Errors that prevent the start of a pod, and the contents of ConfigMaps and Secrets that pods refer to.

    InputError          a pod's input is not available; the caller adds the container or volume that needs it
    ContainerError      a container cannot be created: reason and message of its `waiting` state
    VolumeError         a volume cannot be created: reported by a FailedMount Event, and retried

A start with such an error is retried. Source: pkg/kubelet/kuberuntime, pkg/kubelet/images, pkg/volume.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.interfaces.client import Reader

CONFIG_ERROR: Final = "CreateContainerConfigError"
"""The waiting reason of a container whose configuration cannot be created."""
CREATE_ERROR: Final = "CreateContainerError"
"""The waiting reason of a container that the container runtime would reject."""


class InputError(Exception):
    """A pod's ConfigMap, Secret, volume, path or field is missing, invalid or not supported; the text is the reason."""


class ContainerError(Exception):
    """A container cannot be created; has the reason and message of its `waiting` state and of a `Failed` Event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class VolumeError(Exception):
    """A volume cannot be created; the text is the message of a Warning Event with reason FailedMount."""

    def __init__(self, volume: str, reason: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {reason}')
        self.volume = volume


# Quoting in the format of Go's `%q`, which downward API files of labels and annotations use.


_GO_ESCAPES: Final = {
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


def quote_like_go(text: str) -> str:
    """Quote a text as Go's `%q` does; unprintable characters become escapes."""
    return f'"{"".join(map(_escape_character, text))}"'


def _escape_character(char: str) -> str:
    code_point = ord(char)
    if char in _GO_ESCAPES:
        return _GO_ESCAPES[char]
    if char.isprintable():
        return char
    if code_point < 0x80:
        return f"\\x{code_point:02x}"
    return f"\\u{code_point:04x}" if code_point <= 0xFFFF else f"\\U{code_point:08x}"


# Source of the messages: pkg/kubelet/util/manager (NewNotFound of `configmap` and `secret`).


class ConfigData(NamedTuple):
    """The data of a ConfigMap or Secret: as values of environment variables, and as contents of files."""

    #: Values for environment variables. Bytes that are not UTF-8 use surrogate escapes, as in `os.environ`.
    variable_values: Mapping[str, str]
    #: Contents for files.
    file_contents: Mapping[str, bytes]


def find_config_map(reader: Reader, namespace: str, name: str) -> ConfigData | None:
    """Return a ConfigMap's data; None if the ConfigMap does not exist.

    Environment variables come from `data` only, files from `data` and `binaryData`.
    """
    obj = reader.get(Key(scheme.CONFIG_MAP, namespace, name))
    if obj is None:
        return None
    variable_values: Mapping[str, str] = obj.get("data") or {}
    return ConfigData(
        variable_values,
        {**{key: text.encode() for key, text in variable_values.items()}, **_decode_entries(obj.get("binaryData"))},
    )


def find_secret(reader: Reader, namespace: str, name: str) -> ConfigData | None:
    """Return a Secret's decoded data; None if the Secret does not exist."""
    obj = reader.get(Key(scheme.SECRET, namespace, name))
    if obj is None:
        return None
    contents = _decode_entries(obj.get("data"))
    return ConfigData({key: value.decode("utf-8", "surrogateescape") for key, value in contents.items()}, contents)


def missing_config_map_message(name: str) -> str:
    """Return the kubelet's message for a missing ConfigMap."""
    return f'configmap "{name}" not found'


def missing_secret_message(name: str) -> str:
    """Return the kubelet's message for a missing Secret."""
    return f'secret "{name}" not found'


def _decode_entries(base64_entries: Mapping[str, Any] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value or "") for key, value in (base64_entries or {}).items()}
