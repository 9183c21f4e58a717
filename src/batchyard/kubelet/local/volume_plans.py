"""Volume plans and mounts of containers.

Mount propagation has no effect here, since nothing is mounted while a container runs. Source:
pkg/kubelet/kubelet_pods.go (makeMounts); pkg/kubelet/container/helpers.go (ExpandContainerVolumeMounts).
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from batchyard.kubelet.local.environment import expand_path
from batchyard.kubelet.local.errors import CONFIG, ContainerError, InputError, quoted

# --- plans ---
# Volume plans: the content of a volume, which batchyard.server.local_node.volumes creates.
#
# All files belong to the user that runs the node, which containers see as their own user, except containers of an
# engine. For these, non-public files also belong to a group that the container's user is in.


class VolumeFile(NamedTuple):
    """A file of a volume."""

    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class VolumeFiles:
    """Files by path, read-only for containers, and refreshed when their sources change."""

    files: Mapping[str, VolumeFile]
    #: Directories in it where containers mount other volumes.
    mount_points: tuple[str, ...] = ()
    #: The group of the files; None for the group of the user that runs the node.
    group: int | None = None


@dataclass(frozen=True, slots=True)
class EmptyDirPlan:
    """An emptyDir, which exists as long as the pod."""

    #: Whether it is in memory.
    is_memory: bool = False
    #: The size limit; None for no limit.
    size_bytes: int | None = None
    mode: int = 0o777


@dataclass(frozen=True, slots=True)
class HostPathPlan:
    """A file or directory of the machine."""

    path: str
    #: The hostPath type; '' for anything.
    type: str = ""
    #: The machine's directories that pods may mount.
    allowed: tuple[str, ...] = field(default=(), compare=False)


Plan: TypeAlias = VolumeFiles | EmptyDirPlan | HostPathPlan


class Mount(NamedTuple):
    """A volume, or a subPath of it, mounted at a path of a container."""

    volume: str
    container: str
    #: The volume: `volumes/NAME` in the pod's directory, or an absolute path of the machine.
    folder: str
    #: The normalized subPath; '' for the whole volume.
    sub_path: str
    target: str
    read_only: bool

    @property
    def source(self) -> str:
        """The source path, relative to the pod's directory unless it is absolute."""
        return posixpath.join(self.folder, self.sub_path) if self.sub_path else self.folder

    def row(self, source: str | None = None) -> dict[str, Any]:
        """Return the mount in the format of a run's spec, optionally with a resolved source."""
        return {"source": source or self.source, "target": self.target, "readOnly": self.read_only}


def mounts_of(container: Mapping[str, Any], variables: Mapping[str, str], plans: Mapping[str, Plan]) -> list[Mount]:
    """Return the mounts of a container, outer ones first; ContainerError if one is invalid.

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
    folder = plan.path if isinstance(plan, HostPathPlan) else f"volumes/{volume}"
    return Mount(
        volume, container, folder, sub_path, target, bool(mount.get("readOnly")) or isinstance(plan, VolumeFiles)
    )


def _sub_path(mount: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """Return the normalized subPath; InputError if it leads out of the volume."""
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
