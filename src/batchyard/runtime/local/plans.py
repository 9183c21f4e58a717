"""What a volume is to hold: a plan, which batchyard.live.volume_files carries out.

Nobody is said to own anything: whoever runs the node owns all of it, and is, from inside, the user of each container.
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
