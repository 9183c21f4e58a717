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
