"""Volumes of pods: their contents, and their mounts in containers.

Supported types are emptyDir, hostPath, configMap, secret, downwardAPI, projected and persistentVolumeClaim. Sources:
pkg/volume/{configmap,secret,downwardapi,projected,emptydir,hostpath}; pkg/volume/util (atomic_writer.go: valid paths;
nested_volumes.go; FsUserFrom); pkg/volume/volume_linux.go (the effect of an fsGroup on modes).
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme
from batchyard.api.meta import Obj
from batchyard.api.views.node import container_limits, pod_total_amounts
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local import errors
from batchyard.kubelet.local.environment import (
    PodFields,
    expand_path,
    field_value_for_file,
    pod_fields_of,
    resource_field_value,
)
from batchyard.kubelet.local.security import containers_of, fs_group, volume_file_group

# A plan describes the content of a volume, which batchyard.server.local_node.runtime creates.
#
# All files belong to the user that runs the node; most containers see that user as their own. For containers of an
# engine, non-public files also belong to a group that includes the container's user.


class VolumeFile(NamedTuple):
    """The content and permission bits of a file in a volume."""

    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class VolumeFiles:
    """A configMap, secret, downwardAPI or projected volume to create: read-only files, updated when sources change."""

    files: Mapping[str, VolumeFile]
    #: Directories in the volume where containers mount other volumes.
    mount_points: tuple[str, ...] = ()
    #: The group of the files; None for the group of the user that runs the node.
    group: int | None = None


@dataclass(frozen=True, slots=True)
class EmptyDirPlan:
    """An emptyDir volume to create; it exists as long as its pod."""

    #: Whether the volume is in memory (tmpfs).
    is_memory: bool = False
    #: The size limit; None for no limit.
    size_bytes: int | None = None
    mode: int = 0o777


@dataclass(frozen=True, slots=True)
class HostPathPlan:
    """A hostPath volume to create: a file or directory of the machine."""

    path: str
    #: The hostPath type; '' for anything.
    type: str = ""
    #: The machine's directories that pods may mount as hostPath volumes.
    allowed_folders: tuple[str, ...] = field(default=(), compare=False)
    #: Whether all containers mount it read-only.
    is_read_only: bool = False
    #: The permission bits of a directory that is created.
    mode: int = 0o755


VolumePlan: TypeAlias = VolumeFiles | EmptyDirPlan | HostPathPlan


class Mount(NamedTuple):
    """A volume, or a subPath of it, that is mounted in a container. Mount propagation is not supported.

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
        """The path of the mounted file or directory: absolute on the machine, or relative to the pod's directory."""
        return posixpath.join(self.folder, self.sub_path) if self.sub_path else self.folder

    def to_spec(self, source: str | None = None) -> dict[str, Any]:
        """Return the mount in the format of a container's Run spec; `source` replaces the mount's own source."""
        return {"source": source or self.source, "target": self.target, "readOnly": self.read_only}


def mounts_of(container: Mapping[str, Any], env: Mapping[str, str], plans: Mapping[str, VolumePlan]) -> list[Mount]:
    """Return a container's volume mounts, outer ones first. Raises ContainerError if one is invalid.

    `env` are the container's environment variables, `plans` the pod's volumes.
    """
    name: str = container["name"]
    try:
        mounts = [_resolve_mount(name, mount, env, plans) for mount in container.get("volumeMounts") or ()]
    except errors.InputError as error:
        raise errors.ContainerError(errors.CONFIG_ERROR, str(error)) from error
    return sorted(mounts, key=lambda mount: mount.target.count("/"))


def _resolve_mount(
    container: str, mount: Mapping[str, Any], variables: Mapping[str, str], plans: Mapping[str, VolumePlan]
) -> Mount:
    name: str = mount["name"]
    plan_of_volume = plans.get(name)
    if plan_of_volume is None:
        raise errors.InputError(
            f"cannot find volume {errors.quote_like_go(name)} to mount into container {errors.quote_like_go(container)}"
        )
    sub_path = _resolve_sub_path(mount, variables)
    if mount.get("recursiveReadOnly") == "Enabled":
        raise errors.InputError(
            "failed to resolve recursive read-only mode: "
            f"volume {errors.quote_like_go(name)} requested recursive read-only mode, "
            "but it is not supported by the runtime"
        )
    mount_target = posixpath.normpath("/" + mount["mountPath"].lstrip("/"))
    folder = plan_of_volume.path if isinstance(plan_of_volume, HostPathPlan) else f"volumes/{name}"
    is_read_only = bool(mount.get("readOnly")) or isinstance(plan_of_volume, VolumeFiles)
    is_read_only = is_read_only or (isinstance(plan_of_volume, HostPathPlan) and plan_of_volume.is_read_only)
    return Mount(name, container, folder, sub_path, mount_target, is_read_only)


def _resolve_sub_path(mount: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    path: str = mount.get("subPath") or ""
    if mount.get("subPathExpr"):
        path, missing_names = expand_path(mount["subPathExpr"], variables)
        if missing_names:
            raise errors.InputError(f"missing value for {', '.join(missing_names)}")
    if path.startswith("/"):
        raise errors.InputError(f"error SubPath `{path}` must not be an absolute path")
    if ".." in path.split("/"):
        raise errors.InputError(f"unable to provision SubPath `{path}`: must not contain '..'")
    normalized_path = posixpath.normpath(path)
    return "" if normalized_path == "." else normalized_path


TokenIssuer: TypeAlias = Callable[[str, str, str, int], str]
"""Returns a token for (namespace, ServiceAccount, audience, lifetime in seconds); audience '' is the API server.

InputError if the ServiceAccount does not exist.
"""

_DEFAULT_FILE_MODE: Final = 0o644
_TOKEN_EXPIRATION_SECONDS: Final = 3600
#: The mode bits that files get if the pod has an fsGroup.
_GROUP_READ_BITS: Final = 0o440
_PATH_LENGTH_MAX: Final = 4096
_FILE_NAME_LENGTH_MAX: Final = 255
_SUPPORTED_VOLUME_TYPES: Final = (
    "emptyDir, configMap, secret, downwardAPI, projected, hostPath and persistentVolumeClaim"
)
_PROVISIONER: Final = "batchyard.dev/folder"
#: The names of the folders of provisioned volumes: `pvc-` and the uid of a claim.
_FOLDER_NAME: Final = re.compile(r"pvc-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class VolumeSources(NamedTuple):
    """What volume contents are made from: an object reader, a token issuer, and the allowed hostPath directories."""

    reader: Reader
    issue_token: TokenIssuer
    #: The machine's directories that pods may mount by hostPath.
    host_paths: Sequence[str] = ()
    #: The folder that has a folder for each volume of a claim; '' if claims are not supported.
    claims_folder: str = ""


def volume_plans(pod: Obj, sources: VolumeSources) -> dict[str, VolumePlan]:
    """Return a plan of what to create for each volume of a pod, by volume name.

    Raises VolumeError if a volume cannot be created.
    """
    return {volume["name"]: volume_plan(pod, volume, sources) for volume in pod["spec"].get("volumes") or ()}


def volume_plans_without_contents(pod: Obj, sources: VolumeSources) -> dict[str, VolumePlan]:
    """Return a pod's volumes by name, without file contents: the pod's sandbox has already created the volumes.

    Raises ContainerError if a claim is not bound any more.
    """
    volumes = pod["spec"].get("volumes") or ()
    try:
        return {volume["name"]: _plan_without_contents(pod, volume, sources) for volume in volumes}
    except errors.InputError as error:
        raise errors.ContainerError(errors.CONFIG_ERROR, str(error)) from error


def _plan_without_contents(pod: Obj, volume: Mapping[str, Any], sources: VolumeSources) -> VolumePlan:
    if volume.get("hostPath"):
        path = _normalize_host_path(volume["hostPath"]["path"])
        return HostPathPlan(path, allowed_folders=tuple(sources.host_paths))
    if volume.get("persistentVolumeClaim"):
        return _claim_plan(pod, volume["persistentVolumeClaim"], sources)
    kind = _volume_type(volume)
    return EmptyDirPlan((volume.get(kind) or {}).get("medium") == "Memory") if kind == "emptyDir" else VolumeFiles({})


def volume_plan(pod: Obj, volume: Mapping[str, Any], sources: VolumeSources) -> VolumePlan:
    """Return what to create for one volume. Raises VolumeError if that is impossible or its type is not supported."""
    name: str = volume["name"]
    try:
        return _build_plan(pod, volume, sources)
    except errors.InputError as error:
        raise errors.VolumeError(name, str(error)) from error


def _build_plan(pod: Obj, volume: Mapping[str, Any], sources: VolumeSources) -> VolumePlan:
    kind = _volume_type(volume)
    source: Mapping[str, Any] = volume.get(kind) or {}
    default_mode = source.get("defaultMode", _DEFAULT_FILE_MODE)
    match kind:
        case "emptyDir":
            return _empty_dir_plan(pod, source, sources.reader)
        case "hostPath":
            return _host_path_plan(source, sources.host_paths)
        case "persistentVolumeClaim":
            return _new_claim_plan(pod, source, sources)
        case "projected":
            files_by_path = _projected_files(source.get("sources") or (), pod, sources, default_mode)
        case "configMap" | "secret" | "downwardAPI":
            files_by_path = _FILE_BUILDERS[kind](source, pod, sources, default_mode)
        case _:
            raise errors.InputError(
                f"volumes of type {kind} are not supported here: use one of {_SUPPORTED_VOLUME_TYPES}"
            )
    mode_bits = 0 if fs_group(pod) is None else _GROUP_READ_BITS
    files = {_validate_path(path): file._replace(mode=file.mode | mode_bits) for path, file in files_by_path.items()}
    return VolumeFiles(files, tuple(dict.fromkeys(_mount_points(pod, volume["name"]))), volume_file_group(pod))


def _volume_type(volume: Mapping[str, Any]) -> str:
    return next((field for field in volume if field != "name" and volume[field] is not None), "emptyDir")


def memory_volumes(plans: Mapping[str, VolumePlan]) -> list[dict[str, Any]]:
    """Return the emptyDir volumes with medium Memory and their size limits, in the format of a sandbox's spec."""
    empty_dirs = {name: plan for name, plan in plans.items() if isinstance(plan, EmptyDirPlan) and plan.is_memory}
    return [{"volume": name, "bytes": plan.size_bytes} for name, plan in empty_dirs.items()]


def limited_volumes(plans: Mapping[str, VolumePlan]) -> list[dict[str, Any]]:
    """Return the emptyDir volumes on disk that have a size limit, with the limit, in the format of a sandbox's spec."""
    empty_dirs = {name: plan for name, plan in plans.items() if isinstance(plan, EmptyDirPlan) and not plan.is_memory}
    return [{"volume": name, "bytes": plan.size_bytes} for name, plan in empty_dirs.items() if plan.size_bytes]


def _projected_files(
    projected_sources: Iterable[Mapping[str, Any]], pod: Obj, sources: VolumeSources, mode: int
) -> dict[str, VolumeFile]:
    files: dict[str, VolumeFile] = {}
    error_messages: list[str] = []
    for projected_source in projected_sources:
        try:
            files.update(_projected_source_files(projected_source, pod, sources, mode))
        except errors.InputError as error:
            error_messages.append(str(error))
    _raise_errors(error_messages)
    return files


def _projected_source_files(
    projected_source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int
) -> dict[str, VolumeFile]:
    kind = next((field for field in projected_source if projected_source[field] is not None), "")
    if not kind:
        return {}
    if kind not in _FILE_BUILDERS:
        raise errors.InputError(f"{kind} cannot be projected here: use one of {_PROJECTED_SOURCE_TYPES}")
    return _FILE_BUILDERS[kind](projected_source[kind], pod, sources, mode)


def _raise_errors(error_messages: Sequence[str]) -> None:
    distinct_messages = list(dict.fromkeys(error_messages))
    if distinct_messages:
        raise errors.InputError(
            distinct_messages[0] if len(distinct_messages) == 1 else f"[{', '.join(distinct_messages)}]"
        )


def _config_map_files(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    name = source.get("name") or ""
    config_data = errors.find_config_map(sources.reader, _namespace(pod), name)
    if config_data is None and not source.get("optional"):
        raise errors.InputError(errors.missing_config_map_message(name))
    return _entry_files(source, config_data, mode, "configmap references non-existent config key")


def _secret_files(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    """Return the files of a Secret by path; volumes name the Secret by `secretName`, projected sources by `name`."""
    name = source.get("secretName") or source.get("name") or ""
    config_data = errors.find_secret(sources.reader, _namespace(pod), name)
    if config_data is None and not source.get("optional"):
        raise errors.InputError(errors.missing_secret_message(name))
    return _entry_files(source, config_data, mode, "references non-existent secret key")


def _entry_files(
    source: Mapping[str, Any], config: errors.ConfigData | None, mode: int, error_text: str
) -> dict[str, VolumeFile]:
    contents_by_key: Mapping[str, bytes] = config.file_contents if config is not None else {}
    if not source.get("items"):
        return {key: VolumeFile(content, mode) for key, content in sorted(contents_by_key.items())}
    files: dict[str, VolumeFile] = {}
    for item in source["items"]:
        if item["key"] in contents_by_key:
            files[item["path"]] = VolumeFile(contents_by_key[item["key"]], _value_or_default(item.get("mode"), mode))
        elif not source.get("optional"):
            raise errors.InputError(f"{error_text}: {item['key']}")
    return files


def _downward_files(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    pod_fields = pod_fields_of(pod, (), sources.reader)
    files: dict[str, VolumeFile] = {}
    error_messages: list[str] = []
    for item in source.get("items") or ():
        try:
            lines = _downward_api_value(pod_fields, item).split("\n")
        except errors.InputError as error:
            error_messages.append(str(error))
        else:
            content = "\n".join(sorted(lines)).encode()
            files[posixpath.normpath(item["path"])] = VolumeFile(content, _value_or_default(item.get("mode"), mode))
    _raise_errors(error_messages)
    return files


def _downward_api_value(pod_fields: PodFields, item: Mapping[str, Any]) -> str:
    if item.get("fieldRef"):
        return field_value_for_file(pod_fields.pod, item["fieldRef"]["fieldPath"])
    return resource_field_value(pod_fields, item["resourceFieldRef"]) if item.get("resourceFieldRef") else ""


def _token_file(source: Mapping[str, Any], pod: Obj, sources: VolumeSources, mode: int) -> dict[str, VolumeFile]:
    """Return a ServiceAccount token as a file; if the pod has a shared group, only user and group can read it."""
    service_account = pod["spec"].get("serviceAccountName") or "default"
    expiration_seconds = _value_or_default(source.get("expirationSeconds"), _TOKEN_EXPIRATION_SECONDS)
    token = sources.issue_token(_namespace(pod), service_account, source.get("audience") or "", expiration_seconds)
    is_group_readable = volume_file_group(pod) is not None
    return {source["path"]: VolumeFile(token.encode(), 0o640 if is_group_readable else mode)}


_FILE_BUILDERS: Final[Mapping[str, Callable[[Mapping[str, Any], Obj, VolumeSources, int], dict[str, VolumeFile]]]] = {
    "configMap": _config_map_files,
    "secret": _secret_files,
    "downwardAPI": _downward_files,
    "serviceAccountToken": _token_file,
}
_PROJECTED_SOURCE_TYPES: Final = "configMap, secret, downwardAPI and serviceAccountToken"


def _validate_path(path: str) -> str:
    components = path.split("/")
    if not path:
        raise errors.InputError('invalid path: must not be empty: ""')
    if path.startswith("/"):
        raise errors.InputError(f"invalid path: must be relative path: {path}")
    if len(path) > _PATH_LENGTH_MAX:
        raise errors.InputError(f"invalid path: must be less than or equal to {_PATH_LENGTH_MAX} characters")
    if ".." in components:
        raise errors.InputError(f"invalid path: must not contain '..': {path}")
    if any(len(component) > _FILE_NAME_LENGTH_MAX for component in components):
        raise errors.InputError(
            f"invalid path: filenames must be less than or equal to {_FILE_NAME_LENGTH_MAX} characters"
        )
    if components[0].startswith(".."):
        raise errors.InputError(f"invalid path: must not start with '..': {path}")
    return posixpath.normpath(path)


def _mount_points(pod: Obj, volume: str) -> Iterator[str]:
    """Yield the outermost directories of a volume in which containers mount other volumes."""
    for container in containers_of(pod):
        mounted_volumes = [(m["name"], posixpath.normpath(m["mountPath"])) for m in container.get("volumeMounts") or ()]
        mount_targets = sorted(target for _, target in mounted_volumes)
        for mount_path in (target for name, target in mounted_volumes if name == volume):
            previous_prefix = ""
            for target in mount_targets:
                if target.startswith(f"{mount_path}/") and not (previous_prefix and target.startswith(previous_prefix)):
                    previous_prefix = f"{target}/"
                    yield target[len(mount_path) + 1 :]


def _empty_dir_plan(pod: Obj, source: Mapping[str, Any], reader: Reader) -> EmptyDirPlan:
    medium: str = source.get("medium") or ""
    if medium not in {"", "Memory"}:
        raise errors.InputError(
            f"storage medium {errors.quote_like_go(medium)} is not supported here: use Memory, or none"
        )
    size_limit = max(0, meta.amount("memory", source.get("sizeLimit") or "0")) or None
    mode = 0o1777 if source.get("stickyBit") else 0o777
    if medium:
        size_limits = [
            size for size in (size_limit, _pod_memory_limit(pod), _allocatable_node_memory(pod, reader)) if size
        ]
        return EmptyDirPlan(True, min(size_limits, default=None), mode)
    return EmptyDirPlan(False, size_limit, mode)


def _pod_memory_limit(pod: Obj) -> int:
    """Return the memory limit of a pod in bytes; 0 if the pod has none and at least one container has none either."""
    spec = pod["spec"]
    total_memory = pod_total_amounts(spec, container_limits).get("memory", 0)
    pod_level_limit = container_limits(spec).get("memory", 0)
    is_limited = pod_level_limit or all(container_limits(container).get("memory") for container in containers_of(pod))
    return total_memory // meta.NANO if is_limited else 0


def _allocatable_node_memory(pod: Obj, reader: Reader) -> int:
    node = pod_fields_of(pod, (), reader).node or {}
    allocatable: Mapping[str, Any] = (node.get("status") or {}).get("allocatable") or {}
    return meta.amount("memory", allocatable.get("memory") or "0")


#: What permits pods to use a path of the machine.
HOST_PATH_REMEDY: Final = (
    "list the path, or a folder above it, in spec.local.hostPaths of the Cluster, or use up --host-path"
)


def _host_path_plan(source: Mapping[str, Any], allowed_folders: Sequence[str]) -> HostPathPlan:
    path: str = source["path"]
    if ".." in path.split("/"):
        raise errors.InputError(f"invalid HostPath `{path}`: must not contain '..'")
    normalized_path = _normalize_host_path(path)
    if not is_within_any(normalized_path, allowed_folders):
        raise errors.InputError(f"hostPath {path} is not allowed here: {HOST_PATH_REMEDY}")
    return HostPathPlan(normalized_path, source.get("type") or "", tuple(allowed_folders))


def _new_claim_plan(pod: Obj, source: Mapping[str, Any], sources: VolumeSources) -> HostPathPlan:
    """Return the plan of a claim's volume for a pod that starts: its claim must not be about to be deleted."""
    claim = sources.reader.get(meta.Key(scheme.PERSISTENT_VOLUME_CLAIM, _namespace(pod), source["claimName"]))
    if claim is not None and "deletionTimestamp" in claim["metadata"]:
        raise errors.InputError("PVC is being deleted")
    return _claim_plan(pod, source, sources)


def _claim_plan(pod: Obj, source: Mapping[str, Any], sources: VolumeSources) -> HostPathPlan:
    """Return the plan of a claim's volume: its own folder, or an allowed path of the machine (hostPath, local).

    The name of a provisioned volume is the name of its folder, whatever else the volume says.
    """
    name, is_read_only = source["claimName"], bool(source.get("readOnly"))
    claim = sources.reader.get(meta.Key(scheme.PERSISTENT_VOLUME_CLAIM, _namespace(pod), name))
    if claim is None:
        raise errors.InputError(f'persistentvolumeclaim "{name}" not found')
    volume_name = claim["spec"].get("volumeName") or ""
    volume = sources.reader.get(meta.Key(scheme.PERSISTENT_VOLUME, "", volume_name)) if volume_name else None
    if volume is None or (claim.get("status") or {}).get("phase") != "Bound":
        raise errors.InputError("PVC is not bound")
    if (volume["spec"].get("claimRef") or {}).get("uid") != claim["metadata"]["uid"]:
        raise errors.InputError("PVC is not bound")
    if claim["spec"].get("volumeMode") == "Block":
        raise errors.InputError("volumes of mode Block are not supported here")
    for field_name in ("hostPath", "local"):
        if volume["spec"].get(field_name):
            return replace(_host_path_plan(volume["spec"][field_name], sources.host_paths), is_read_only=is_read_only)
    if not sources.claims_folder or not _FOLDER_NAME.fullmatch(volume_name) or not _is_provisioned_folder(volume):
        raise errors.InputError(
            f"the volume {volume_name} is not supported here: use a class of the provisioner {_PROVISIONER}"
        )
    path = posixpath.join(sources.claims_folder, volume_name)
    return HostPathPlan(path, "DirectoryOrCreate", (sources.claims_folder,), is_read_only, 0o777)


def _is_provisioned_folder(volume: Obj) -> bool:
    return meta.annotation(volume, "pv.kubernetes.io/provisioned-by") == _PROVISIONER


def _normalize_host_path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def is_within_any(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of the directories or lies in one; all paths are absolute."""
    normalized_folders = (posixpath.normpath(folder) for folder in folders)
    return any(path == root or path.startswith(root if root == "/" else f"{root}/") for root in normalized_folders)


def _namespace(pod: Obj) -> str:
    return pod["metadata"].get("namespace") or ""


def _value_or_default(value: int | None, default: int) -> int:
    return default if value is None else value
