"""What is said when a pod cannot be given what it asks for, in a kubelet's words where it has some.

    InputError          a part of what a pod needs cannot be had; whoever asked for the part says of what
    ContainerError      a container cannot be made: the reason and message of its state `waiting`
    VolumeError         a volume cannot be made: told by an event FailedMount, and tried again

All three pass once what is missing is there. Source: pkg/kubelet/kuberuntime, pkg/kubelet/images, pkg/volume.
"""

from typing import Final

CONFIG: Final = "CreateContainerConfigError"
"""The reason where the configuration of a container cannot be made."""
CREATE: Final = "CreateContainerError"
"""The reason where its runtime would refuse to create it."""


class InputError(Exception):
    """A part of what a pod needs cannot be had; the text says why."""


class ContainerError(Exception):
    """A container cannot be made; goes into its state `waiting`, and into an event `Failed` as `Error: message`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class VolumeError(Exception):
    """A volume cannot be made; the text is that of an event of type Warning and reason FailedMount."""

    def __init__(self, volume: str, why: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')
        self.volume = volume


# --- quoting ---
#
# Texts quoted as Go's `%q` writes them, as in the files of labels and annotations.


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
    """A text in double quotes; what cannot be printed is written as an escape."""
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
