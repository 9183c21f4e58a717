"""What a volume is to hold: a plan, which batchyard.live.volume_files carries out.

Whoever runs the node owns all of it, and is, from inside, the user of each container but of those of an engine: files
that are not everybody's are also of a group that such a container's user is in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class File(NamedTuple):
    """A file of a volume."""

    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Files:
    """Files by their path in the volume. Containers cannot change them; they change when what they are made of does."""

    files: Mapping[str, File]
    #: Folders in it at which containers have other volumes.
    mount_points: tuple[str, ...] = ()
    #: The group that the files belong to; None: that of whoever runs the node.
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Empty:
    """An empty folder, for as long as the pod is there."""

    #: Whether it lies in memory.
    is_memory: bool = False
    #: How large it may grow; None: as it can.
    size_bytes: int | None = None
    mode: int = 0o777


@dataclass(frozen=True, slots=True)
class HostPath:
    """A file or folder of the machine."""

    path: str
    #: What is to be there, as the API says it; '' for anything.
    type: str = ""
    #: The folders of the machine that pods may have.
    allowed: tuple[str, ...] = field(default=(), compare=False)


Plan: TypeAlias = Files | Empty | HostPath
