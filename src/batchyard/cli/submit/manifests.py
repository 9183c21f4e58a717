"""The manifests of a submitted command: a Job in a queue, and ConfigMaps with its packed working directory.

Any cluster with Kueue accepts the manifests.
"""

import base64
import gzip
import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.server.platform.data_dir import JOURNAL_FILE

#: The maximum number of archive bytes in one ConfigMap, which may hold at most 1 MiB.
PART_SIZE: Final = 900 * 1024
CHECKPOINT_FOLDER: Final = "/checkpoints"
CHECKPOINT_ENV: Final = "CHECKPOINT_DIR"
CONTAINER: Final = "main"
_INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
_MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
_PARTS_FOLDER: Final = "/batchyard/parts"
_WORK_FOLDER: Final = "/batchyard/work"
_NAME_LENGTH_MAX: Final = 40
#: The script that unpacks the archive with tools of the image, then execs the command to keep signals and exit codes.
_UNPACK_SCRIPT: Final = """\
cd {work} || exit
parts() {{ cat {parts}/part-*; }}
unpack='import sys, tarfile
archive = tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz")
archive.extraction_filter = lambda member, path: member
archive.extractall()'
if command -v tar >/dev/null && command -v gzip >/dev/null; then parts | gzip -dc | tar -xf -
elif command -v python3 >/dev/null; then parts | python3 -c "$unpack"
elif command -v python >/dev/null; then parts | python -c "$unpack"
else echo "batchyard submit: the image has neither tar and gzip nor Python to unpack the folder with" >&2; false
fi || exit 126
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The Job that the user wants to run, with quantities in Kubernetes notation; '' for unset values."""

    argv: Sequence[str]
    name: str
    queue: str
    image: str
    namespace: str = ""
    priority: str = ""
    cpu: str = ""
    memory: str = ""
    #: The number of devices by resource name, such as nvidia.com/gpu.
    devices: Mapping[str, int] = field(default_factory=dict)
    #: The model of the devices, which `Cluster.prepare` replaces by a node selector; '' for any.
    gpu_model: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    completions: int = 1
    parallelism: int = 1
    backoff_limit: int = 0
    #: A folder of the node for checkpoints, which is kept after the pods end.
    checkpoint_folder: str = ""
    #: Whether the pods are tasks of an array: each has its own retries, and a failed one does not stop the others.
    is_array: bool = False
    #: The name of the framework that runs the pods, such as `pytorch`; '' for a Job.
    framework: str = ""


def job_manifest(job_request: JobRequest, archive: bytes | None) -> Obj:
    """Return the manifest of the Job; with an archive, its pods mount the ConfigMaps of `archive_config_maps`."""
    spec: dict[str, Any] = {
        "suspend": True,  # Kueue resumes the Job when it admits the Workload
        "completions": job_request.completions,
        "parallelism": job_request.parallelism,
        **({"completionMode": "Indexed"} if job_request.completions > 1 or job_request.is_array else {}),
        "backoffLimitPerIndex" if job_request.is_array else "backoffLimit": job_request.backoff_limit,
        # Do not count a lost or drained node as a failure of the command.
        "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
        "template": {"spec": _pod_spec(job_request, archive)},
    }
    labels = {well_known.QUEUE_NAME: job_request.queue} if job_request.queue else {}
    if job_request.priority:
        labels[well_known.PRIORITY_CLASS] = job_request.priority
    metadata = _metadata(job_request, job_request.name, labels)
    if job_request.annotations:
        metadata["annotations"] = dict(job_request.annotations)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def archive_config_maps(job_request: JobRequest, archive: bytes) -> Sequence[Obj]:
    """Return ConfigMaps with the successive parts of the packed working directory."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(job_request, _archive_config_map_name(job_request, number), {}),
            "immutable": True,
            "binaryData": {_archive_part_key(number): base64.b64encode(archive[start : start + PART_SIZE]).decode()},
        }
        for number, start in enumerate(range(0, len(archive), PART_SIZE))
    ]


def with_job_owner(config_map: Obj, job: Mapping[str, Any]) -> Obj:
    """Return a ConfigMap that the created Job owns, so that the ConfigMap is deleted with the Job."""
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {**config_map, "metadata": {**config_map["metadata"], "ownerReferences": [owner]}}


def unpack_script(parts_folder: str = _PARTS_FOLDER, work_folder: str = _WORK_FOLDER) -> str:
    """Return the shell script that unpacks the archive into `work_folder`, then execs the command in its arguments."""
    return _UNPACK_SCRIPT.format(parts=parts_folder, work=work_folder)


def job_name_prefix(argv: Sequence[str]) -> str:
    """Return a prefix for the Job's name, at most 40 characters: the command's first script, or else its program."""
    script = next((argument for argument in argv if re.search(r"\.(py|sh)$", argument)), argv[0])
    script_stem = re.sub(r"\.\w+$", "", script.rpartition("/")[2]).lower()
    return re.sub(r"[^a-z0-9]+", "-", script_stem)[:_NAME_LENGTH_MAX].strip("-") or "job"


def _metadata(job_request: JobRequest, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    namespace_field = {"namespace": job_request.namespace} if job_request.namespace else {}
    own_labels = {_INSTANCE_LABEL: job_request.name, _MANAGED_BY_LABEL: "batchyard-submit"}
    return {"name": name, **namespace_field, "labels": {**own_labels, **labels}}


def _pod_spec(job_request: JobRequest, archive: bytes | None) -> dict[str, Any]:
    environment = dict(job_request.environment)
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    container: dict[str, Any] = {"name": CONTAINER, "image": job_request.image, "command": list(job_request.argv)}
    if archive is not None:
        container["command"] = ["sh", "-c", unpack_script(), "batchyard-submit", *job_request.argv]
        container["workingDir"] = _WORK_FOLDER
        mounts.append({"name": "parts", "mountPath": _PARTS_FOLDER, "readOnly": True})
        mounts.append({"name": "work", "mountPath": _WORK_FOLDER})
        volumes += [{"name": "parts", "projected": {"sources": _volume_sources(job_request, archive)}}]
        volumes += [{"name": "work", "emptyDir": {}}]
    if job_request.checkpoint_folder:
        environment.setdefault(CHECKPOINT_ENV, CHECKPOINT_FOLDER)
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINT_FOLDER})
        host_path = {"path": job_request.checkpoint_folder, "type": "DirectoryOrCreate"}
        volumes.append({"name": "checkpoints", "hostPath": host_path})
    if environment:
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    if resources := _container_resources(job_request):
        container["resources"] = {"requests": resources, "limits": resources}
    if mounts:
        container["volumeMounts"] = mounts
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if volumes:
        spec["volumes"] = volumes
    if job_request.node_selector:
        spec["nodeSelector"] = dict(job_request.node_selector)
    # Nodes with devices are often tainted against pods that request none.
    devices = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"} for resource in job_request.devices]
    if tolerations := [*devices, *map(dict, job_request.tolerations)]:
        spec["tolerations"] = tolerations
    return spec


def _container_resources(job_request: JobRequest) -> dict[str, str]:
    cpu_and_memory = {"cpu": job_request.cpu, "memory": job_request.memory}
    device_amounts = {resource: str(count) for resource, count in job_request.devices.items() if count}
    return {**{resource: amount for resource, amount in cpu_and_memory.items() if amount}, **device_amounts}


def _volume_sources(job_request: JobRequest, archive: bytes) -> list[dict[str, Any]]:
    return [
        {"configMap": {"name": _archive_config_map_name(job_request, number)}}
        for number in range(-(-len(archive) // PART_SIZE))
    ]


def _archive_config_map_name(job_request: JobRequest, part_number: int) -> str:
    return f"{job_request.name}-files-{part_number}"


def _archive_part_key(part_number: int) -> str:
    return f"part-{part_number:03}"


# Packs a folder into a reproducible archive, which the Job unpacks as its working directory.


#: The maximum size of an archive in bytes: ConfigMaps are for programs, not data, as API servers hold them in memory.
PACKED_MAX: Final = 8 * 1024 * 1024
#: The maximum size of a folder in bytes; larger folders are rejected before packing.
FOLDER_SIZE_MAX: Final = 100 * 1024 * 1024
EXCLUDED_FOLDERS: Final = frozenset({".git", "__pycache__", ".venv", ".batchyard"})
#: Files that mark excluded folders: virtual environments, and data directories with a platform's keys.
_EXCLUDING_FILES: Final = ("pyvenv.cfg", JOURNAL_FILE)
_FILES_SHOWN_MAX: Final = 5
#: The modification time of all files in the archive: the earliest that zip files, such as wheels, can store.
_FIXED_MODIFICATION_TIME: Final = 315_532_800  # 1980-01-01


class PackingError(Exception):
    """The folder cannot be packed; the message has the reason and the remedy."""


class PackedFolder(NamedTuple):
    """A packed working directory: the gzip-compressed tar archive, the number of files, and the excluded paths."""

    content: bytes
    file_count: int
    excluded_paths: Sequence[str]


class _FolderEntry(NamedTuple):
    name: str
    path: Path
    size: int


def pack(folder: Path) -> PackedFolder:
    """Pack a folder into an archive; raise PackingError if it is too large, unreadable, or has links to the outside."""
    root = folder.resolve()
    if not root.is_dir():
        raise PackingError(f"{folder} is not a folder: choose an existing folder")
    excluded_paths: list[str] = []
    try:
        folder_entries = list(_entries_below(root, root, excluded_paths))
        total_size = sum(entry.size for entry in folder_entries)
        if total_size > FOLDER_SIZE_MAX:
            raise PackingError(_too_large_message(folder, total_size, FOLDER_SIZE_MAX, "", folder_entries))
        content = gzip.compress(_make_archive(folder_entries), mtime=0)
    except OSError as error:
        raise PackingError(f"{error.filename or folder}: {error.strerror}: check its permissions") from error
    if len(content) > PACKED_MAX:
        raise PackingError(_too_large_message(folder, len(content), PACKED_MAX, " packed", folder_entries))
    file_count = sum(not stat.S_ISDIR(entry.path.lstat().st_mode) for entry in folder_entries)
    return PackedFolder(content, file_count, excluded_paths)


def _entries_below(folder: Path, root: Path, excluded_paths: list[str]) -> Iterator[_FolderEntry]:
    """Yield the files, folders and links to pack, sorted by name; append skipped paths to `excluded_paths`."""
    for path in sorted(folder.iterdir()):
        name = path.relative_to(root).as_posix()
        file_mode = path.lstat().st_mode
        if stat.S_ISLNK(file_mode):
            _check_symbolic_link(path, root)
            yield _FolderEntry(name, path, 0)
        elif stat.S_ISDIR(file_mode):
            if path.name in EXCLUDED_FOLDERS or any((path / mark).exists() for mark in _EXCLUDING_FILES):
                excluded_paths.append(f"{name}/")
                continue
            yield _FolderEntry(name, path, 0)
            yield from _entries_below(path, root, excluded_paths)
        elif stat.S_ISREG(file_mode):
            yield _FolderEntry(name, path, path.lstat().st_size)
        else:  # a socket, a pipe, a device
            excluded_paths.append(name)


def _check_symbolic_link(path: Path, root: Path) -> None:
    target = path.readlink()
    if target.is_absolute() or not (path.parent / target).resolve().is_relative_to(root):
        message = f"link to {target}, outside {root}" if not target.is_absolute() else f"absolute link to {target}"
        raise PackingError(f"{path}: {message}: links must be relative and stay within the folder")


def _make_archive(entries: Sequence[_FolderEntry]) -> bytes:
    """Return a reproducible tar archive of the entries: with fixed times, without owners, and only two file modes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            file_mode = entry.path.lstat().st_mode
            tar_member = tarfile.TarInfo(entry.name)
            tar_member.mtime = _FIXED_MODIFICATION_TIME
            tar_member.mode = 0o755 if stat.S_ISDIR(file_mode) or file_mode & stat.S_IXUSR else 0o644
            content = b""
            if stat.S_ISLNK(file_mode):
                tar_member.type, tar_member.linkname = tarfile.SYMTYPE, os.fspath(entry.path.readlink())
            elif stat.S_ISDIR(file_mode):
                tar_member.type = tarfile.DIRTYPE
            else:
                content = entry.path.read_bytes()
            tar_member.size = len(content)
            archive.addfile(tar_member, io.BytesIO(content))
    return buffer.getvalue()


def _too_large_message(folder: Path, size: int, limit: int, size_kind: str, entries: Sequence[_FolderEntry]) -> str:
    largest_entries = sorted(entries, key=lambda entry: (-entry.size, entry.name))[:_FILES_SHOWN_MAX]
    largest_names = ", ".join(f"{entry.name} ({format_megabytes(entry.size)})" for entry in largest_entries)
    message = (
        f"{folder}: {format_megabytes(size)}{size_kind}, more than the limit of {format_megabytes(limit)}; "
        f"the largest files: {largest_names}"
    )
    return f"{message}; keep large files on a volume, such as with --checkpoint-dir, or in the image"


def format_megabytes(size: int) -> str:
    """Format a number of bytes in decimal MB, or in kB below 0.1 MB."""
    return f"{size / 1_000_000:.1f} MB" if size >= 100_000 else f"{size / 1000:.1f} kB"
