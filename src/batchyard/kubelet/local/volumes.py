"""Volumes of pods: their contents, and their mounts in containers.

Supported types are emptyDir, hostPath, configMap, secret, downwardAPI and projected. Sources:
pkg/volume/{configmap,secret,downwardapi,projected,emptydir,hostpath}; pkg/volume/util (atomic_writer.go: valid paths;
nested_volumes.go; FsUserFrom); pkg/volume/volume_linux.go (the effect of an fsGroup on modes).
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta
from batchyard.api.meta import Obj
from batchyard.api.views.node import container_limits, pod_total
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.environment import PodFields, expand_path, pod_fields_of, text_of_field, text_of_resource
from batchyard.kubelet.local.errors import (
    CONFIG,
    ConfigData,
    ContainerError,
    InputError,
    VolumeError,
    find_config_map,
    find_secret,
    no_config_map,
    no_secret,
    quoted,
)
from batchyard.kubelet.local.security import containers_of, fs_group, shared_group

# --- volume plans ---
# A plan describes the content of a volume, which batchyard.server.local_node.runtime creates.
#
# All files belong to the user that runs the node; most containers see that user as their own. For containers of an
# engine, non-public files also belong to a group that includes the container's user.


class VolumeFile(NamedTuple):
    """The content and mode of a file in a volume."""

    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class VolumeFiles:
    """The plan of a volume with files, which are read-only for containers and refreshed when their sources change."""

    files: Mapping[str, VolumeFile]
    #: Directories in the volume where containers mount other volumes.
    mount_points: tuple[str, ...] = ()
    #: The group of the files; None for the group of the user that runs the node.
    group: int | None = None


@dataclass(frozen=True, slots=True)
class EmptyDirPlan:
    """The plan of an emptyDir volume, which exists as long as its pod."""

    #: Whether the volume is in memory (tmpfs).
    is_memory: bool = False
    #: The size limit; None for no limit.
    size_bytes: int | None = None
    mode: int = 0o777


@dataclass(frozen=True, slots=True)
class HostPathPlan:
    """The plan of a hostPath volume: a file or directory of the machine."""

    path: str
    #: The hostPath type; '' for anything.
    type: str = ""
    #: The machine's directories that pods may mount as hostPath volumes.
    allowed: tuple[str, ...] = field(default=(), compare=False)


Plan: TypeAlias = VolumeFiles | EmptyDirPlan | HostPathPlan


class Mount(NamedTuple):
    """The mount of a volume, or of a subPath of it, in a container. Mount propagation is not supported.

    Source: pkg/kubelet/kubelet_pods.go (makeMounts); pkg/kubelet/container/helpers.go (ExpandContainerVolumeMounts).
    """

    volume: str
    container: str
    #: The volume's path: `volumes/NAME` in the pod's directory, or an absolute path of the machine.
    folder: str
    #: The normalized subPath; '' for the whole volume.
    sub_path: str
    target: str
    read_only: bool

    @property
    def source(self) -> str:
        """The path of the mounted file or directory, relative to the pod's directory or absolute."""
        return posixpath.join(self.folder, self.sub_path) if self.sub_path else self.folder

    def row(self, source: str | None = None) -> dict[str, Any]:
        """Return the mount in the format of a run's spec, optionally with a resolved source."""
        return {"source": source or self.source, "target": self.target, "readOnly": self.read_only}


def mounts_of(container: Mapping[str, Any], variables: Mapping[str, str], plans: Mapping[str, Plan]) -> list[Mount]:
    """Return the volume mounts of a container, outer ones first; ContainerError if one is invalid.

    `variables` are the container's environment variables, `plans` the pod's volumes.
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
    """Return the normalized subPath of a mount; InputError if it is absolute or contains '..'."""
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


Token: TypeAlias = Callable[[str, str, str, int], str]
"""Returns a token for (namespace, ServiceAccount, audience, seconds); the audience '' is the API server.

InputError if the ServiceAccount does not exist.
"""

_MODE: Final = 0o644
_TOKEN_SECONDS: Final = 3600
#: The mode bits that files get if the pod has an fsGroup.
_GROUP_READS: Final = 0o440
_PATH_MAX: Final = 4096
_NAME_MAX: Final = 255
_KINDS: Final = "emptyDir, configMap, secret, downwardAPI, projected and hostPath"


class VolumeSources(NamedTuple):
    """The inputs of volume contents: the object reader, the token issuer, and the allowed hostPath directories."""

    reader: Reader
    token: Token
    #: The machine's directories that pods may mount by hostPath.
    host_paths: Sequence[str] = ()


def volume_plans(pod: Obj, sources: VolumeSources) -> dict[str, Plan]:
    """Return the plan of each volume of a pod, by name; VolumeError for the first one that cannot be created."""
    return {volume["name"]: volume_plan(pod, volume, sources) for volume in pod["spec"].get("volumes") or ()}


def outlines(pod: Obj, host_paths: Sequence[str]) -> dict[str, Plan]:
    """Return the volume plans without contents, for a pod whose sandbox already has its volumes.

    `host_paths` are the machine's directories that pods may mount as hostPath volumes.
    """
    return {volume["name"]: _outline(volume, host_paths) for volume in pod["spec"].get("volumes") or ()}


def _outline(volume: Mapping[str, Any], host_paths: Sequence[str]) -> Plan:
    if volume.get("hostPath"):
        return HostPathPlan(_host_folder(volume["hostPath"]["path"]), allowed=tuple(host_paths))
    kind = _kind_of(volume)
    return EmptyDirPlan((volume.get(kind) or {}).get("medium") == "Memory") if kind == "emptyDir" else VolumeFiles({})


def volume_plan(pod: Obj, volume: Mapping[str, Any], sources: VolumeSources) -> Plan:
    """Return the plan of one volume; VolumeError if it cannot be created or its type is not supported."""
    name: str = volume["name"]
    try:
        return _plan(pod, volume, sources)
    except InputError as error:
        raise VolumeError(name, str(error)) from error


def _plan(pod: Obj, volume: Mapping[str, Any], sources: VolumeSources) -> Plan:
    kind = _kind_of(volume)
    source: Mapping[str, Any] = volume.get(kind) or {}
    match kind:
        case "emptyDir":
            return _empty(pod, source, sources.reader)
        case "hostPath":
            return _host_path(source, sources.host_paths)
        case "projected":
            made = _of_all(source.get("sources") or (), pod, sources, source.get("defaultMode", _MODE))
        case "configMap" | "secret" | "downwardAPI":
            made = _SOURCES[kind](source, pod, sources, source.get("defaultMode", _MODE))
        case _:
            raise InputError(f"volumes of type {kind} are not supported here: use one of {_KINDS}")
    mask = 0 if fs_group(pod) is None else _GROUP_READS
    files = {_checked(path): file._replace(mode=file.mode | mask) for path, file in made.items()}
    return VolumeFiles(files, tuple(dict.fromkeys(_mount_points(pod, volume["name"]))), shared_group(pod))


def _kind_of(volume: Mapping[str, Any]) -> str:
    return next((field for field in volume if field != "name" and volume[field] is not None), "emptyDir")


def memory_volumes(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Return the emptyDir volumes in memory with their sizes, in the format of a sandbox's spec."""
    empty = {name: plan for name, plan in plans.items() if isinstance(plan, EmptyDirPlan) and plan.is_memory}
    return [{"volume": name, "bytes": plan.size_bytes} for name, plan in empty.items()]


def limited_volumes(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Return the emptyDir volumes on disk that have a size limit, in the format of a sandbox's spec."""
    empty = {name: plan for name, plan in plans.items() if isinstance(plan, EmptyDirPlan) and not plan.is_memory}
    return [{"volume": name, "bytes": plan.size_bytes} for name, plan in empty.items() if plan.size_bytes]


# --- files ---


def _of_all(parts: Iterable[Mapping[str, Any]], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    """Return the files of a projected volume; one InputError reports the errors of all sources."""
    files: dict[str, VolumeFile] = {}
    wrong: list[str] = []
    for part in parts:
        try:
            files.update(_of_part(part, pod, sources, mode))
        except InputError as error:
            wrong.append(str(error))
    _raise_all(wrong)
    return files


def _of_part(part: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    kind = next((field for field in part if part[field] is not None), "")
    if not kind:
        return {}
    if kind not in _SOURCES:
        raise InputError(f"{kind} cannot be projected here: use one of {_PROJECTED}")
    return _SOURCES[kind](part[kind], pod, sources, mode)


def _raise_all(wrong: Sequence[str]) -> None:
    """Raise InputError with all error messages, in the format of Go's aggregate errors; do nothing without errors."""
    messages = list(dict.fromkeys(wrong))
    if messages:
        raise InputError(messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]")


def _of_config_map(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    name = source.get("name") or ""
    config = find_config_map(sources.reader, _namespace(pod), name)
    if config is None and not source.get("optional"):
        raise InputError(no_config_map(name))
    return _of_config(source, config, mode, "configmap references non-existent config key")


def _of_secret(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    """Return the files of a Secret, named by `secretName` in a volume and by `name` in a projected source."""
    name = source.get("secretName") or source.get("name") or ""
    config = find_secret(sources.reader, _namespace(pod), name)
    if config is None and not source.get("optional"):
        raise InputError(no_secret(name))
    return _of_config(source, config, mode, "references non-existent secret key")


def _of_config(
    source: Mapping[str, Any], config: ConfigData | None, mode: int, no_such_key: str
) -> dict[str, VolumeFile]:
    """Return the entries of a ConfigMap or Secret as files: those in `items`, or all; InputError for a missing key."""
    contents: Mapping[str, bytes] = config.contents if config is not None else {}
    if not source.get("items"):
        return {key: VolumeFile(content, mode) for key, content in sorted(contents.items())}
    files: dict[str, VolumeFile] = {}
    for item in source["items"]:
        if item["key"] in contents:
            files[item["path"]] = VolumeFile(contents[item["key"]], _or(item.get("mode"), mode))
        elif not source.get("optional"):
            raise InputError(f"{no_such_key}: {item['key']}")
    return files


def _of_pod(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    """Return the files of a downwardAPI volume; one InputError reports the errors of all items."""
    facts = pod_fields_of(pod, (), sources.reader)
    files: dict[str, VolumeFile] = {}
    wrong: list[str] = []
    for item in source.get("items") or ():
        try:
            lines = _text(facts, item).split("\n")
        except InputError as error:
            wrong.append(str(error))
        else:
            content = "\n".join(sorted(lines)).encode()
            files[posixpath.normpath(item["path"])] = VolumeFile(content, _or(item.get("mode"), mode))
    _raise_all(wrong)
    return files


def _text(facts: PodFields, item: Mapping[str, Any]) -> str:
    if item.get("fieldRef"):
        return text_of_field(facts.pod, item["fieldRef"]["fieldPath"])
    return text_of_resource(facts, item["resourceFieldRef"]) if item.get("resourceFieldRef") else ""


def _of_token(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    """Return the file with a ServiceAccount token; it is not world-readable if the pod's user or group is known."""
    account = pod["spec"].get("serviceAccountName") or "default"
    seconds = _or(source.get("expirationSeconds"), _TOKEN_SECONDS)
    token = sources.token(_namespace(pod), account, source.get("audience") or "", seconds)
    is_private = shared_group(pod) is not None
    return {source["path"]: VolumeFile(token.encode(), 0o640 if is_private else mode)}


_SOURCES: Final[Mapping[str, Callable[[Mapping[str, Any], Obj, VolumeSources, int], dict[str, VolumeFile]]]] = {
    "configMap": _of_config_map,
    "secret": _of_secret,
    "downwardAPI": _of_pod,
    "serviceAccountToken": _of_token,
}
_PROJECTED: Final = "configMap, secret, downwardAPI and serviceAccountToken"


def _checked(path: str) -> str:
    """Validate and normalize the path of a file in a volume; InputError if it is invalid."""
    parts = path.split("/")
    if not path:
        raise InputError('invalid path: must not be empty: ""')
    if path.startswith("/"):
        raise InputError(f"invalid path: must be relative path: {path}")
    if len(path) > _PATH_MAX:
        raise InputError(f"invalid path: must be less than or equal to {_PATH_MAX} characters")
    if ".." in parts:
        raise InputError(f"invalid path: must not contain '..': {path}")
    if any(len(part) > _NAME_MAX for part in parts):
        raise InputError(f"invalid path: filenames must be less than or equal to {_NAME_MAX} characters")
    if parts[0].startswith(".."):
        raise InputError(f"invalid path: must not start with '..': {path}")
    return posixpath.normpath(path)


def _mount_points(pod: Obj, volume: str) -> Iterator[str]:
    """Yield the outermost directories of a volume where containers mount other volumes."""
    for container in containers_of(pod):
        mounts = [(m["name"], posixpath.normpath(m["mountPath"])) for m in container.get("volumeMounts") or ()]
        targets = sorted(target for _, target in mounts)
        for own in (target for name, target in mounts if name == volume):
            last = ""
            for target in targets:
                if target.startswith(f"{own}/") and not (last and target.startswith(last)):
                    last = f"{target}/"
                    yield target[len(own) + 1 :]


# --- directories ---


def _empty(pod: Obj, source: Mapping[str, Any], reader: Reader) -> EmptyDirPlan:
    medium: str = source.get("medium") or ""
    if medium not in {"", "Memory"}:
        raise InputError(f"storage medium {quoted(medium)} is not supported here: use Memory, or none")
    limit = max(0, meta.amount("memory", source.get("sizeLimit") or "0")) or None
    mode = 0o1777 if source.get("stickyBit") else 0o777
    if medium:
        sizes = [size for size in (limit, _memory_of_pod(pod), _memory_of_node(pod, reader)) if size]
        return EmptyDirPlan(True, min(sizes, default=None), mode)
    return EmptyDirPlan(False, limit, mode)


def _memory_of_pod(pod: Obj) -> int:
    """Return the memory limit of a pod in bytes; 0 if the pod or one of its containers has no limit."""
    spec = pod["spec"]
    total = pod_total(spec, container_limits).get("memory", 0)
    whole = container_limits(spec).get("memory", 0)
    is_limited = whole or all(container_limits(container).get("memory") for container in containers_of(pod))
    return total // meta.NANO if is_limited else 0


def _memory_of_node(pod: Obj, reader: Reader) -> int:
    node = pod_fields_of(pod, (), reader).node or {}
    allocatable: Mapping[str, Any] = (node.get("status") or {}).get("allocatable") or {}
    return meta.amount("memory", allocatable.get("memory") or "0")


def _host_path(source: Mapping[str, Any], allowed: Sequence[str]) -> HostPathPlan:
    path: str = source["path"]
    if ".." in path.split("/"):
        raise InputError(f"invalid HostPath `{path}`: must not contain '..'")
    whole = _host_folder(path)
    if not lies_below(whole, allowed):
        remedy = "name it, or a folder above it, in spec.local.hostPaths of the Cluster"
        raise InputError(f"hostPath {path} is not allowed here: {remedy}")
    return HostPathPlan(whole, source.get("type") or "", tuple(allowed))


def _host_folder(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def lies_below(path: str, folders: Iterable[str]) -> bool:
    """Report whether a path is one of the directories or lies in one; all paths are absolute."""
    roots = (posixpath.normpath(folder) for folder in folders)
    return any(path == root or path.startswith(root if root == "/" else f"{root}/") for root in roots)


def _namespace(pod: Obj) -> str:
    return pod["metadata"].get("namespace") or ""


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
