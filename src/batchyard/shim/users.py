"""Who a user is that an image or a pod names, by the image's own /etc/passwd and /etc/group.

Source: github.com/moby/sys/user (GetExecUser), which runc and containerd ask.
"""

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from batchyard.shim import images, linux

# --- pod users ---
#
# The users of pods on a machine whose node runs as root: ids without an account, which own nothing on the machine.
#
# Each pod has an id of its own. A user namespace maps the user of a container to that id, and the files that the
# container sees are mounts that map the machine's root to it (id-mapped mounts). So the files of pods belong to root on
# the disk, and root in a container is an ordinary user outside of it. If a filesystem cannot map owners, the pod's own
# files are given to its id, and the container has the rights of an ordinary user to all other files.
#
# Sources: Documentation/filesystems/idmappings.rst of Linux; keps.k8s.io/127 (user namespaces); systemd's UIDS-GIDS.md,
# which assigns no ids from 1879048192 to 2147352575.


_FIRST: Final = 0x70000000
_COUNT: Final = 1 << 27
#: Copies of mounts are attached here, in a mount namespace of this process alone: every user can reach this folder.
_STAGE: Final = "/tmp"
_STAGE_OPTIONS: Final = "mode=755,size=1m"


def id_of(pod: str) -> int:
    """Return the id of a pod, from its uid. OSError if root has too few ids here."""
    first, count = _FIRST, _COUNT
    if not _has_ids(first, count):
        first, count = _upper_ids()
    return first + zlib.crc32(pod.encode()) % count


def make_namespace(pod: str) -> int:
    """Return a user namespace, held open, whose root is the pod's id. OSError if this machine cannot make one."""
    return linux.make_user_namespace(*_lines((0, id_of(pod), 1)))


class PodUsers:
    """The user of one pod, and the files that a container of it sees, as mounts that map their owners."""

    def __init__(self, pod: str, namespace: int, own_folder: str) -> None:
        """`namespace` is the pod's, held open, `own_folder` its folder. This process leaves its mount namespace."""
        self.id = id_of(pod)
        self._namespace = namespace
        self._own_folder = own_folder
        self._places: dict[str, str] = {}
        self._copies: list[tuple[str, int]] = []
        linux.unshare(linux.NEWNS)
        linux.keep_mounts_to_oneself()

    def copy(self, source: str, *, is_shared: bool = False, is_of_machine: bool = False) -> str:
        """Copy a file or folder with all that is mounted in it; return where it is once this process is in the pod.

        A shared folder of the machine has files of other users, whose owners stay as they are. Nothing that is of the
        machine is given to the pod, wherever it is seen.
        """
        if source not in self._places:
            place = f"{_STAGE}/{len(self._copies)}"
            self._copies.append((place, self._mapped(source, is_shared, is_of_machine)))
            self._places[source] = place
        return self._places[source]

    def enter(self) -> None:
        """Attach the copies, and become root of the pod's user namespace."""
        folders = [stat.S_ISDIR(os.fstat(copy).st_mode) for _, copy in self._copies]
        linux.mount("tmpfs", _STAGE, "tmpfs", _STAGE_OPTIONS)
        for (place, copy), is_folder in zip(self._copies, folders, strict=True):
            if is_folder:
                os.mkdir(place)
            else:
                os.close(os.open(place, os.O_WRONLY | os.O_CREAT))
            linux.attach_mount(copy, place)
            os.close(copy)
        linux.become_user_of(self._namespace, 0, 0)

    def _mapped(self, source: str, is_shared: bool, is_of_machine: bool) -> int:
        """Return a copy with mapped owners, attached nowhere; with its own owners if they cannot be mapped."""
        copy = linux.clone_mount(source)
        try:
            linux.map_owners(copy, self._shared_namespace() if is_shared else self._namespace)
        except OSError:
            if images.is_within(source, self._own_folder) and not is_of_machine:
                give(source, self.id)
        return copy

    def _shared_namespace(self) -> int:
        """Return a user namespace that maps root to the pod's id, and all other users to themselves."""
        last = _last_id()
        return linux.make_user_namespace(*_lines((0, self.id, 1), (1, 1, min(self.id, last + 1) - 1)))


def give(path: str, owner: int) -> None:
    """Give root's files in a folder, and the folder, to another user.

    Files are reached by the folders that hold them, held open: a container may exchange a folder for a link meanwhile.
    """
    _give_one(path, owner)
    for _, folders, files, here in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            _give_one(name, owner, here)


def _give_one(name: str, owner: int, folder: int | None = None) -> None:
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        uid, gid = (owner if number == 0 else -1 for number in (found.st_uid, found.st_gid))
        os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)


def _lines(*rows: tuple[int, int, int]) -> tuple[str, str]:
    """Return the lines of uid_map and gid_map: the first id inside, the first outside, and how many."""
    text = "\n".join(f"{inside} {outside} {count}" for inside, outside, count in rows)
    return text, text


def _extents() -> list[tuple[int, int]]:
    """Return the ids that exist in this process's user namespace, users and groups alike: the first, and the end."""
    with open("/proc/self/uid_map", encoding="utf-8") as users, open("/proc/self/gid_map", encoding="utf-8") as groups:
        texts = users.read(), groups.read()
    found = [[tuple(map(int, line.split())) for line in text.splitlines()] for text in texts]
    rows = found[0] if found[0] == found[1] else []
    return [(first, first + count) for first, _, count in rows]


def _has_ids(first: int, count: int) -> bool:
    return any(start <= first and first + count <= end for start, end in _extents())


def _upper_ids() -> tuple[int, int]:
    """Return ids for pods where root has few of them, in a container for instance: the upper half of the most."""
    start, end = max(_extents(), key=lambda extent: extent[1] - extent[0], default=(0, 0))
    count = (end - start) // 4
    if count < 1:
        raise OSError(0, "root has no ids here that pods could have")
    return start + 2 * count, count


def _last_id() -> int:
    return max((end for start, end in _extents() if start <= 1), default=1) - 1


class Account(NamedTuple):
    """Whoever runs a container."""

    uid: int
    gid: int
    home: str


def account(named: str, passwd: str, group: str) -> Account:
    """Who `user` or `user:group` is, by name or number; root where nothing is said. ValueError where nobody knows."""
    user, _, own_group = named.partition(":")
    found = _user(user or "0", passwd)
    if not own_group:
        return found
    rows = [row for row in _rows(group, 3) if own_group in (row[0], row[2])]
    if not rows and not own_group.isdigit():
        raise ValueError(f"unable to find group {own_group}: no matching entries in group file")
    return found._replace(gid=int(rows[0][2] if rows else own_group))


def _user(user: str, passwd: str) -> Account:
    rows = [row for row in _rows(passwd, 6) if user in (row[0], row[2])]
    if rows:
        return Account(int(rows[0][2]), int(rows[0][3]), rows[0][5] or "/")
    if not user.isdigit():
        raise ValueError(f"unable to find user {user}: no matching entries in passwd file")
    return Account(int(user), 0, "/")


def _rows(text: str, fields: int) -> Iterator[list[str]]:
    """The entries that have so many fields, of which the third is a number, and the fourth too if there are more."""
    for line in text.splitlines():
        row = line.split(":")
        if len(row) >= fields and all(number.isdigit() for number in row[2 : 4 if fields > 3 else 3]):
            yield row
