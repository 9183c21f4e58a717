"""The objects of a submitted command: a Job in a queue, and the ConfigMaps with its working directory.

They are ordinary manifests: `kubectl apply` accepts them on any cluster with Kueue.
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
from batchyard.server.platform.data_dir import JOURNAL

#: The bytes of the archive per ConfigMap, whose limit is 1 MiB.
PART: Final = 900 * 1024
CHECKPOINTS: Final = "/checkpoints"
CHECKPOINT_VARIABLE: Final = "CHECKPOINT_DIR"
CONTAINER: Final = "main"
_INSTANCE: Final = "app.kubernetes.io/instance"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_PARTS: Final = "/batchyard/parts"
_WORK: Final = "/batchyard/work"
_NAME_MAX: Final = 40
#: Unpacks the archive with tools of the image, then execs the command: signals and exit codes are the command's.
_UNPACK: Final = """\
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
    """The Job to create. Quantities in Kubernetes notation; '' and None for unset values."""

    argv: Sequence[str]
    name: str
    queue: str
    image: str
    namespace: str = ""
    priority: str = ""
    cpu: str = ""
    memory: str = ""
    #: Devices by resource, such as nvidia.com/gpu.
    devices: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    completions: int = 1
    parallelism: int = 1
    backoff_limit: int = 0
    #: A folder of the node that is kept after the pods end.
    checkpoint_folder: str = ""


def job_of(asked: JobRequest, archive: bytes | None) -> Obj:
    """The Job. With an archive its pods mount the ConfigMaps of `parts_of`."""
    spec: dict[str, Any] = {
        "suspend": True,  # until its Workload is admitted
        "completions": asked.completions,
        "parallelism": asked.parallelism,
        **({"completionMode": "Indexed"} if asked.completions > 1 else {}),
        "backoffLimit": asked.backoff_limit,
        # Do not count a lost or drained node as a failure of the command.
        "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
        "template": {"spec": _pod_spec(asked, archive)},
    }
    labels = {well_known.QUEUE_NAME: asked.queue}
    if asked.priority:
        labels[well_known.PRIORITY_CLASS] = asked.priority
    metadata = _metadata(asked, asked.name, labels)
    if asked.annotations:
        metadata["annotations"] = dict(asked.annotations)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def parts_of(asked: JobRequest, archive: bytes) -> Sequence[Obj]:
    """The ConfigMaps that hold an archive, in order."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(asked, _part_name(asked, number), {}),
            "immutable": True,
            "binaryData": {_part_key(number): base64.b64encode(archive[first : first + PART]).decode()},
        }
        for number, first in enumerate(range(0, len(archive), PART))
    ]


def owned(part: Obj, job: Mapping[str, Any]) -> Obj:
    """A ConfigMap with the created Job as its owner, so that it is garbage-collected with the Job."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {**part, "metadata": {**part["metadata"], "ownerReferences": [owner]}}


def unpacking(parts: str = _PARTS, work: str = _WORK) -> str:
    """The POSIX shell script that unpacks `parts` into the folder `work` and then execs its arguments."""
    return _UNPACK.format(parts=parts, work=work)


def stem_of(argv: Sequence[str]) -> str:
    """The name stem for a command: that of its first script, else of its program."""
    script = next((each for each in argv if re.search(r"\.(py|sh)$", each)), argv[0])
    words = re.sub(r"\.\w+$", "", script.rpartition("/")[2]).lower()
    return re.sub(r"[^a-z0-9]+", "-", words)[:_NAME_MAX].strip("-") or "job"


def _metadata(asked: JobRequest, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    where = {"namespace": asked.namespace} if asked.namespace else {}
    return {"name": name, **where, "labels": {_INSTANCE: asked.name, _MANAGED_BY: "batchyard-submit", **labels}}


def _pod_spec(asked: JobRequest, archive: bytes | None) -> dict[str, Any]:
    environment = dict(asked.environment)
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    container: dict[str, Any] = {"name": CONTAINER, "image": asked.image, "command": list(asked.argv)}
    if archive is not None:
        container["command"] = ["sh", "-c", unpacking(), "batchyard-submit", *asked.argv]
        container["workingDir"] = _WORK
        mounts += [{"name": "parts", "mountPath": _PARTS, "readOnly": True}, {"name": "work", "mountPath": _WORK}]
        volumes += [{"name": "parts", "projected": {"sources": _sources(asked, archive)}}]
        volumes += [{"name": "work", "emptyDir": {}}]
    if asked.checkpoint_folder:
        environment.setdefault(CHECKPOINT_VARIABLE, CHECKPOINTS)
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINTS})
        host_path = {"path": asked.checkpoint_folder, "type": "DirectoryOrCreate"}
        volumes.append({"name": "checkpoints", "hostPath": host_path})
    if environment:
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    if wanted := _resources(asked):
        container["resources"] = {"requests": wanted, "limits": wanted}
    if mounts:
        container["volumeMounts"] = mounts
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if volumes:
        spec["volumes"] = volumes
    if asked.node_selector:
        spec["nodeSelector"] = dict(asked.node_selector)
    # Nodes with devices are often tainted against pods that request none.
    devices = [{"key": each, "operator": "Exists", "effect": "NoSchedule"} for each in asked.devices]
    if tolerations := [*devices, *map(dict, asked.tolerations)]:
        spec["tolerations"] = tolerations
    return spec


def _resources(asked: JobRequest) -> dict[str, str]:
    plain = {"cpu": asked.cpu, "memory": asked.memory}
    devices = {resource: str(count) for resource, count in asked.devices.items() if count}
    return {**{resource: amount for resource, amount in plain.items() if amount}, **devices}


def _sources(asked: JobRequest, archive: bytes) -> list[dict[str, Any]]:
    """The projected sources: all parts in one folder."""
    return [{"configMap": {"name": _part_name(asked, each)}} for each in range(-(-len(archive) // PART))]


def _part_name(asked: JobRequest, number: int) -> str:
    return f"{asked.name}-files-{number}"


def _part_key(number: int) -> str:
    return f"part-{number:03}"


# --- packing ---
#
# Packs a folder as a reproducible archive, which a Job unpacks as its working directory.


#: The archive is stored in ConfigMaps, which API servers hold in memory: it is for programs, not for data.
PACKED_MAX: Final = 8 * 1024 * 1024
#: Larger folders are rejected before packing.
FILES_MAX: Final = 100 * 1024 * 1024
LEFT_OUT: Final = frozenset({".git", "__pycache__", ".venv", ".batchyard"})
#: Folders with one of these are virtual environments, or data directories with a platform's keys.
_MARKS: Final = ("pyvenv.cfg", JOURNAL)
_NAMED_MAX: Final = 5
#: The earliest time that zip files, such as wheels, can store.
_MODIFIED: Final = 315_532_800  # 1980-01-01


class PackingError(Exception):
    """A folder cannot be shipped; the message has the reason and the remedy."""


class PackedFolder(NamedTuple):
    """An archive (tar, gzip), its number of files, and the paths that were left out."""

    content: bytes
    files: int
    left_out: Sequence[str]


class _Found(NamedTuple):
    """A folder entry to ship: its relative name and its size."""

    name: str
    path: Path
    size: int


def pack(folder: Path) -> PackedFolder:
    """Return the archive of a folder; PackingError if it is too large, unreadable, or has links to outside."""
    root = folder.resolve()
    if not root.is_dir():
        raise PackingError(f"{folder}: folder not found")
    left_out: list[str] = []
    try:
        found = list(_found_in(root, root, left_out))
        size = sum(each.size for each in found)
        if size > FILES_MAX:
            raise PackingError(_too_large(folder, size, FILES_MAX, "", found))
        content = gzip.compress(_archive(found), mtime=0)
    except OSError as error:
        raise PackingError(f"{error.filename or folder}: {error.strerror}") from error
    if len(content) > PACKED_MAX:
        raise PackingError(_too_large(folder, len(content), PACKED_MAX, " packed", found))
    files = sum(not stat.S_ISDIR(each.path.lstat().st_mode) for each in found)
    return PackedFolder(content, files, left_out)


def _found_in(folder: Path, root: Path, left_out: list[str]) -> Iterator[_Found]:
    """The entries below a folder in order of their names; excluded ones are appended to `left_out`."""
    for path in sorted(folder.iterdir()):
        name = path.relative_to(root).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            _check_link(path, root)
            yield _Found(name, path, 0)
        elif stat.S_ISDIR(mode):
            if path.name in LEFT_OUT or any((path / mark).exists() for mark in _MARKS):
                left_out.append(f"{name}/")
                continue
            yield _Found(name, path, 0)
            yield from _found_in(path, root, left_out)
        elif stat.S_ISREG(mode):
            yield _Found(name, path, path.lstat().st_size)
        else:  # a socket, a pipe, a device
            left_out.append(name)


def _check_link(path: Path, root: Path) -> None:
    """PackingError unless a symbolic link is relative and stays within the folder; links are shipped as links."""
    target = path.readlink()
    if target.is_absolute() or not (path.parent / target).resolve().is_relative_to(root):
        message = f"it points to {target}, outside {root}" if not target.is_absolute() else f"it points to {target}"
        raise PackingError(f"{path}: {message}: links must be relative and stay within the folder")


def _archive(found: Sequence[_Found]) -> bytes:
    """The tar of the entries: only names, contents, links and the executable bit."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for each in found:
            mode = each.path.lstat().st_mode
            member = tarfile.TarInfo(each.name)
            member.mtime = _MODIFIED
            member.mode = 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644
            content = b""
            if stat.S_ISLNK(mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.fspath(each.path.readlink())
            elif stat.S_ISDIR(mode):
                member.type = tarfile.DIRTYPE
            else:
                content = each.path.read_bytes()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _too_large(folder: Path, size: int, most: int, how: str, found: Sequence[_Found]) -> str:
    largest = sorted(found, key=lambda each: (-each.size, each.name))[:_NAMED_MAX]
    named = ", ".join(f"{each.name} ({megabytes(each.size)})" for each in largest)
    message = f"{folder}: {megabytes(size)}{how}, more than the limit of {megabytes(most)}; the largest files: {named}"
    return f"{message}; keep large files on a volume, such as with --checkpoint-dir, or in the image"


def megabytes(size: int) -> str:
    """Format a size in bytes as MB, or kB if small (decimal)."""
    return f"{size / 1_000_000:.1f} MB" if size >= 100_000 else f"{size / 1000:.1f} kB"
