"""Unix users of containers: the id and user namespace of each pod, and accounts in an image's /etc/passwd.

Source: github.com/moby/sys/user (GetExecUser), which runc and containerd use.
"""

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from batchyard.shim import linux
from batchyard.shim.images import image_kinds

# On a node that runs as root, each pod has its own id, without an account or files on the machine.
#
# A user namespace maps root in the container to the pod's id. The files that the container sees are id-mapped mounts,
# which map the machine's root to that id. So files of pods belong to root on disk, and root in a container is an
# unprivileged user on the machine. If a filesystem does not support id-mapped mounts, the pod's id becomes the owner of
# the pod's own files. The container then has an ordinary user's rights to all other files.
#
# Sources: Documentation/filesystems/idmappings.rst of Linux; keps.k8s.io/127 (user namespaces); systemd's UIDS-GIDS.md,
# which assigns no ids from 1879048192 to 2147352575.


_FIRST_POD_UID: Final = 0x70000000
_POD_UID_COUNT: Final = 1 << 27
#: The directory, accessible to all users, where mount copies are attached in this process's own mount namespace.
_STAGE_FOLDER: Final = "/tmp"
_STAGE_OPTIONS: Final = "mode=755,size=1m"


def pod_unix_id(pod: str) -> int:
    """Return the Unix user id for a pod, derived from `pod`, the pod's uid.

    Raises OSError if this user namespace has too few ids.
    """
    first_id, count = _FIRST_POD_UID, _POD_UID_COUNT
    if not _has_id_range(first_id, count):
        first_id, count = _fallback_pod_id_range()
    return first_id + zlib.crc32(pod.encode()) % count


def create_pod_user_namespace(pod: str) -> int:
    """Create a user namespace in which root is the Unix user of the pod with uid `pod`; return its descriptor.

    Raises OSError on failure.
    """
    return linux.make_user_namespace(*_format_id_maps((0, pod_unix_id(pod), 1)))


class PodUsers:
    """The Unix user of one pod, and id-mapped copies of the mounts that its containers see."""

    def __init__(self, pod: str, namespace: int, own_folder: str) -> None:
        """Move this process into a new mount namespace; `namespace` is a descriptor of the pod's user namespace.

        `own_folder` is the pod's directory, whose files may get the pod's user as owner.
        """
        self.id = pod_unix_id(pod)
        self._namespace = namespace
        self._own_folder = own_folder
        self._copied_paths: dict[str, str] = {}
        self._copies: list[tuple[str, int]] = []
        linux.unshare(linux.NEWNS)
        linux.isolate_later_mounts()

    def copy_mount(self, source: str, *, is_shared: bool = False, is_host_path: bool = False) -> str:
        """Copy the mount of a file or directory; return the copy's path, valid after `enter`.

        In the copy, root's files belong to the pod's user. If the filesystem has no id-mapped mounts, the owners of the
        pod's own files are changed on disk instead. With `is_shared`, files of users other than root keep their owners.
        With `is_host_path`, the source is not the pod's own, and its owners on disk never change.
        """
        if source not in self._copied_paths:
            path = f"{_STAGE_FOLDER}/{len(self._copies)}"
            self._copies.append((path, self._copy_mapped_mount(source, is_shared, is_host_path)))
            self._copied_paths[source] = path
        return self._copied_paths[source]

    def enter(self) -> None:
        """Attach the copied mounts in this mount namespace, and become root in the pod's user namespace."""
        is_folder_flags = [stat.S_ISDIR(os.fstat(copy).st_mode) for _, copy in self._copies]
        linux.mount("tmpfs", _STAGE_FOLDER, "tmpfs", _STAGE_OPTIONS)
        for (path, copy), is_folder in zip(self._copies, is_folder_flags, strict=True):
            if is_folder:
                os.mkdir(path)
            else:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
            linux.attach_mount(copy, path)
            os.close(copy)
        linux.become_user_of(self._namespace, 0, 0)

    def _copy_mapped_mount(self, source: str, is_shared: bool, is_host_path: bool) -> int:
        """Return the descriptor of a detached copy of a mount, with owners mapped to the pod's user.

        `is_shared` and `is_host_path` are those of `copy_mount`. If the filesystem does not support mapped owners, the
        copy is not mapped, and the pod's user becomes the owner of files that belong to the pod alone.
        """
        copied_mount_fd = linux.clone_mount(source)
        try:
            linux.map_file_owners(copied_mount_fd, self._create_shared_namespace() if is_shared else self._namespace)
        except OSError:
            if image_kinds.is_within(source, self._own_folder) and not is_host_path:
                change_owner(source, self.id)
        return copied_mount_fd

    def _create_shared_namespace(self) -> int:
        """Return a descriptor of a user namespace for the pod: its root is the pod's user.

        The ids below the id of the pod's user are mapped to themselves.
        """
        last_id = _last_mapped_id()
        return linux.make_user_namespace(*_format_id_maps((0, self.id, 1), (1, 1, min(self.id, last_id + 1) - 1)))


def change_owner(path: str, owner_id: int) -> None:
    """Replace root by `owner_id` as the user and as the group of all files in a directory tree.

    Files are accessed relative to open directories, because a container may replace a directory by a symbolic link.
    """
    _change_file_owner(path, owner_id)
    for _, folders, files, folder_fd in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            _change_file_owner(name, owner_id, folder_fd)


def _change_file_owner(name: str, owner_id: int, folder_fd: int | None = None) -> None:
    with suppress(FileNotFoundError):
        file_status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        uid, gid = (owner_id if current_id == 0 else -1 for current_id in (file_status.st_uid, file_status.st_gid))
        os.chown(name, uid, gid, dir_fd=folder_fd, follow_symlinks=False)


def _format_id_maps(*mappings: tuple[int, int, int]) -> tuple[str, str]:
    """Format the uid_map and gid_map of a user namespace; a mapping is (first id inside, first id outside, count)."""
    text = "\n".join(f"{inside} {outside} {count}" for inside, outside, count in mappings)
    return text, text


def _read_id_ranges() -> list[tuple[int, int]]:
    """Return the half-open ranges of ids that this user namespace maps for users and groups; empty if they differ."""
    with open("/proc/self/uid_map", encoding="utf-8") as users, open("/proc/self/gid_map", encoding="utf-8") as groups:
        map_texts = users.read(), groups.read()
    id_mappings = [[tuple(map(int, line.split())) for line in text.splitlines()] for text in map_texts]
    id_ranges = id_mappings[0] if id_mappings[0] == id_mappings[1] else []
    return [(first, first + count) for first, _, count in id_ranges]


def _has_id_range(first_id: int, id_count: int) -> bool:
    return any(start <= first_id and first_id + id_count <= end for start, end in _read_id_ranges())


def _fallback_pod_id_range() -> tuple[int, int]:
    """Return the third quarter of the largest range of mapped ids (first id, count). Raises OSError if it is empty."""
    range_start, end = max(_read_id_ranges(), key=lambda extent: extent[1] - extent[0], default=(0, 0))
    id_count = (end - range_start) // 4
    if id_count < 1:
        raise OSError(
            0,
            "the user namespace of this machine's root maps too few ids to assign one to each pod; map more ids to it",
        )
    return range_start + 2 * id_count, id_count


def _last_mapped_id() -> int:
    return max((end for start, end in _read_id_ranges() if start <= 1), default=1) - 1


class ImageAccount(NamedTuple):
    """The uid, gid and home directory of the Unix account that runs an image's containers."""

    uid: int
    gid: int
    home: str


def resolve_account(user_and_group: str, passwd: str, group: str) -> ImageAccount:
    """Return the account of an image's user, such as `user:group` (names or ids). Raises ValueError for unknown names.

    `passwd` and `group` are the contents of the image's files /etc/passwd and /etc/group.
    """
    user_text, _, group_name = user_and_group.partition(":")
    image_account = _find_account(user_text or "0", passwd)
    if not group_name:
        return image_account
    group_entries = [entry for entry in _parse_account_entries(group, 3) if group_name in (entry[0], entry[2])]
    if not group_entries and not group_name.isdigit():
        raise ValueError(f"unable to find group {group_name}: no matching entries in group file")
    return image_account._replace(gid=int(group_entries[0][2] if group_entries else group_name))


def _find_account(user: str, passwd: str) -> ImageAccount:
    passwd_entries = [entry for entry in _parse_account_entries(passwd, 6) if user in (entry[0], entry[2])]
    if passwd_entries:
        return ImageAccount(int(passwd_entries[0][2]), int(passwd_entries[0][3]), passwd_entries[0][5] or "/")
    if not user.isdigit():
        raise ValueError(f"unable to find user {user}: no matching entries in passwd file")
    return ImageAccount(int(user), 0, "/")


def _parse_account_entries(text: str, fields_min: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        entry = line.split(":")
        if len(entry) >= fields_min and all(value.isdigit() for value in entry[2 : 4 if fields_min > 3 else 3]):
            yield entry
