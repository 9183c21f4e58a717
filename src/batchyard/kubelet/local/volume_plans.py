"""Where a container has the volumes of its pod.

Mount propagation has no meaning here: nothing is mounted while a container runs. Source: pkg/kubelet/kubelet_pods.go
(makeMounts); pkg/kubelet/container/helpers.go (ExpandContainerVolumeMounts).
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from batchyard.kubelet.local.environment import expand_path
from batchyard.kubelet.local.errors import CONFIG, ContainerError, InputError, quoted

# --- plans ---
#
# What a volume is to hold: a plan, which batchyard.server.local_node.volumes carries out.
#
# Whoever runs the node owns all of it, and is, from inside, the user of each container but of those of an engine: files
# that are not everybody's are also of a group that such a container's user is in.


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


class Mount(NamedTuple):
    """A volume, or a part of it, at a path of a container."""

    volume: str
    container: str
    #: The volume: `volumes/NAME` in the folder of the pod, or an absolute path of the machine.
    folder: str
    #: What of it, in its shortest form; '' for all.
    sub_path: str
    target: str
    read_only: bool

    @property
    def source(self) -> str:
        """What is to be mounted, relative to the folder of the pod if it is not absolute."""
        return posixpath.join(self.folder, self.sub_path) if self.sub_path else self.folder

    def row(self, source: str | None = None) -> dict[str, Any]:
        """The mount as the spec of a run has it; from another source if that was found to be the real one."""
        return {"source": source or self.source, "target": self.target, "readOnly": self.read_only}


def mounts_of(container: Mapping[str, Any], variables: Mapping[str, str], plans: Mapping[str, Plan]) -> list[Mount]:
    """The mounts of a container, outer ones first; ContainerError if one cannot be.

    `variables` are its environment, `plans` the volumes of its pod.
    """
    name: str = container["name"]
    try:
        mounts = [_mount(name, mount, variables, plans) for mount in container.get("volumeMounts") or ()]
    except InputError as error:
        raise ContainerError(CONFIG, str(error)) from error
    return sorted(mounts, key=lambda mount: mount.target.count("/"))


def _mount(container: str, mount: Mapping[str, Any], variables: Mapping[str, str], plans: Mapping[str, Plan]) -> Mount:
    volume: str = mount["name"]
    plan = plans.get(volume)
    if plan is None:
        raise InputError(f"cannot find volume {quoted(volume)} to mount into container {quoted(container)}")
    sub_path = _sub_path(mount, variables)
    if mount.get("recursiveReadOnly") == "Enabled":
        raise InputError(
            "failed to resolve recursive read-only mode: "
            f"volume {quoted(volume)} requested recursive read-only mode, but it is not supported by the runtime"
        )
    target = posixpath.normpath("/" + mount["mountPath"].lstrip("/"))
    folder = plan.path if isinstance(plan, HostPath) else f"volumes/{volume}"
    return Mount(volume, container, folder, sub_path, target, bool(mount.get("readOnly")) or isinstance(plan, Files))


def _sub_path(mount: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """What of the volume is meant; InputError if that would lie outside of it."""
    path: str = mount.get("subPath") or ""
    if mount.get("subPathExpr"):
        path, missing = expand_path(mount["subPathExpr"], variables)
        if missing:
            raise InputError(f"missing value for {', '.join(missing)}")
    if path.startswith("/"):
        raise InputError(f"error SubPath `{path}` must not be an absolute path")
    if ".." in path.split("/"):
        raise InputError(f"unable to provision SubPath `{path}`: must not contain '..'")
    whole = posixpath.normpath(path)
    return "" if whole == "." else whole
