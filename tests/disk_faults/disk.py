"""A disk in memory: page cache and platter of each file and folder, faults, crashes and power losses.

Every write first reaches the page cache. A flush (fsync) of the file moves its writes to the platter. A power loss
keeps the platter, and any part of the writes that were not flushed: each sector of each write may be kept or lost. The
names of files are writes of their folder, which only a flush of the folder makes durable. The file system writes them
in order, and after an error it keeps them for the next flush or becomes read-only.

A disk is honest if it reports each error and keeps what it confirmed. The effects in `DISHONEST` break that.
"""

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

from fuzz.seeded_random import SeededRandom

#: The bytes that a power loss keeps or loses together.
SECTOR_BYTES: Final = 512
#: Calls of the store to the disk.
CALLS: Final = ("open", "read", "write", "truncate", "flush", "flush folder", "rename", "unlink")
ANY_CALL: Final = "any call"
#: The effects of a fault that each call can have.
EFFECTS: Final = {
    "open": ("EIO", "ENOSPC", "EMFILE", "EROFS"),
    "read": ("EIO", "flipped bit"),
    "write": ("EIO", "ENOSPC", "EROFS", "short", "lost", "misdirected", "torn"),
    "truncate": ("EIO", "EROFS", "lost"),
    "flush": ("EIO kept", "EIO clean", "EIO dropped", "EROFS", "ignored"),
    "flush folder": ("EIO kept", "EROFS"),
    "rename": ("EIO", "ENOSPC", "EROFS"),
    "unlink": ("EIO", "EROFS"),
    ANY_CALL: ("kill", "power loss"),
}
#: Effects by which the disk does not keep what it confirmed, or returns what was not written.
DISHONEST: Final = ("flipped bit", "lost", "misdirected", "torn", "ignored")
_CAPACITY_BYTES: Final = 1 << 24


class Fault(NamedTuple):
    """A fault at the nth call (from 0) of one sort within a step."""

    call: str
    number: int
    effect: str


class DirtyWrite(NamedTuple):
    """A write in the page cache: bytes at an offset, or a new length if `content` is None."""

    offset: int
    content: bytes | None
    fate: str = ""


class SimulatedFile:
    """The content of a file in the page cache and on the platter, and the writes between the two."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cache = bytearray()
        self.platter = bytearray()
        self.dirty: list[DirtyWrite] = []

    def write(self, dirty: DirtyWrite) -> None:
        """Write to the page cache."""
        _apply(self.cache, dirty)
        self.dirty.append(dirty)

    def evict_clean_pages(self) -> None:
        """Read the file from the platter again, except for the writes that wait for a flush."""
        self.cache = bytearray(self.platter)
        for dirty in self.dirty:
            _apply(self.cache, dirty)


def _apply(content: bytearray, dirty: DirtyWrite) -> None:
    if dirty.content is None:
        del content[dirty.offset :]
    if len(content) < dirty.offset:
        content.extend(bytes(dirty.offset - len(content)))
    if dirty.content is not None:
        content[dirty.offset : dirty.offset + len(dirty.content)] = dirty.content


class FolderChange(NamedTuple):
    """A change of names that a flush of the folder makes durable at once: `new` names a file, `old` names none."""

    old: str
    new: str
    file: SimulatedFile | None


class SimulatedDisk:
    """Files by path, the faults of the current step, and whether the program on this disk still runs."""

    def __init__(self, seed: object, log_path: str = "") -> None:
        self.log_path = log_path
        self.random = SeededRandom("disk", seed)
        self.files: dict[str, SimulatedFile] = {}
        self._platter_files: dict[str, SimulatedFile] = {}
        self._folder_changes: list[FolderChange] = []
        self._faults: list[Fault] = []
        self._calls_of_step: Counter[str] = Counter()
        self._is_read_only = False
        self._is_full = False
        #: "kill" or "power loss" after the program ended by it; no later call has an effect.
        self.halted = ""
        #: How often each fault had its effect.
        self.effects: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        #: Whether a flush of the log failed with changes since the program started.
        self.is_flush_failed = False
        self.is_dishonest = False

    # --- steps ---

    def begin_step(self, faults: tuple[Fault, ...]) -> None:
        """Replace the faults, and count calls from 0."""
        self._faults = list(faults)
        self._calls_of_step.clear()

    def restart(self) -> None:
        """End the power loss or kill, and make the disk writable with free space."""
        if self.halted == "power loss":
            self._lose_power()
        self.halted, self.is_flush_failed = "", False
        self._is_read_only = self._is_full = False

    def evict_clean_pages(self) -> None:
        """Drop the clean pages of all files from the page cache."""
        for file in self.files.values():
            file.evict_clean_pages()

    def flip_bit(self) -> None:
        """Flip a bit of a file on the platter, at rest."""
        files = [file for _, file in sorted(self._platter_files.items()) if file.platter]
        if files:
            file = self.random.one_of(files)
            position = self.random.below(len(file.platter))
            file.platter[position] ^= 1 << self.random.below(8)
            file.evict_clean_pages()
            self.is_dishonest = True
            self.effects["bit rot"] += 1

    def _lose_power(self) -> None:
        keeps = self.random.one_of((0, 30, 70, 100))
        for file in {id(file): file for file in (*self.files.values(), *self._platter_files.values())}.values():
            for dirty in file.dirty:
                for piece in _sectors(dirty):
                    if self.random.happens(keeps):
                        self._move_to_platter(file, piece)
            file.dirty.clear()
        # A file system writes the changes of its folders in order.
        for change in self._folder_changes[: self.random.below(len(self._folder_changes) + 1)]:
            self._change_names(self._platter_files, change)
        self._folder_changes.clear()
        self.files = dict(self._platter_files)
        self.evict_clean_pages()

    # --- calls ---

    def open(self, path: str, *, writes: bool, creates: bool, is_exclusive: bool = False) -> SimulatedFile:
        """Open a file; create it if it is missing and `creates`."""
        self._enter("open")
        file = self.files.get(path)
        if file is not None and is_exclusive:
            raise OSError(errno.EEXIST, "File exists")
        if writes and self._is_read_only:
            raise OSError(errno.EROFS, "Read-only file system")
        if file is None:
            if not creates:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            if self._is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            file = SimulatedFile(path)
            self._change_folder(FolderChange("", path, file))
        return file

    def read(self, file: SimulatedFile, offset: int, length: int) -> bytes:
        """Return bytes from the page cache."""
        effect = self._enter("read")
        content = bytes(file.cache[offset : offset + length])
        if effect == "flipped bit" and content:
            flipped = bytearray(content)
            flipped[self.random.below(len(flipped))] ^= 1 << self.random.below(8)
            return bytes(flipped)
        return content

    def write(self, file: SimulatedFile, offset: int, content: bytes) -> int:
        """Write bytes; return their number, which is smaller if the write is short."""
        effect = self._enter("write", writes=True)
        if effect == "short" and len(content) > SECTOR_BYTES:
            content = content[: self.random.below(len(content))]
        if offset + len(content) > max(len(file.cache), 0) and self._is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if content:
            file.write(DirtyWrite(offset, content, effect if effect in DISHONEST else ""))
        return len(content)

    def truncate(self, file: SimulatedFile, length: int) -> None:
        """Set the length of a file."""
        effect = self._enter("truncate", writes=True)
        file.write(DirtyWrite(length, None, effect if effect in DISHONEST else ""))

    def flush(self, file: SimulatedFile) -> None:
        """Flush a file (fsync)."""
        effect = self._enter("flush")
        if effect == "ignored":
            return
        if effect.startswith(("EIO", "EROFS")):
            self.is_flush_failed |= bool(file.dirty) and file.name == self.log_path
            if effect != "EIO kept":
                file.dirty.clear()
            if effect == "EIO dropped":
                file.cache = bytearray(file.platter)
            raise OSError(errno.EIO, "Input/output error")
        for dirty in file.dirty:
            self._move_to_platter(file, dirty)
        file.dirty.clear()

    def flush_folder(self, folder: str) -> None:
        """Flush the names of a folder (fsync of its file descriptor)."""
        effect = self._enter("flush folder")
        changes = [
            change for change in self._folder_changes if str(PurePath(change.new or change.old).parent) == folder
        ]
        if effect:
            raise OSError(errno.EIO, "Input/output error")
        for change in changes:
            self._folder_changes.remove(change)
            self._change_names(self._platter_files, change)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace the file at the new path."""
        self._enter("rename", writes=True)
        self._change_folder(FolderChange(old, new, self._existing(old)))

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._enter("unlink", writes=True)
        self._existing(path)
        self._change_folder(FolderChange(path, "", None))

    def _existing(self, path: str) -> SimulatedFile:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return self.files[path]

    def _enter(self, call: str, *, writes: bool = False) -> str:
        """Count a call; return the effect of its fault, or raise its error."""
        if self.halted:
            raise OSError(errno.EIO, "Input/output error")
        self.calls[call] += 1
        effect = self._effect_of(ANY_CALL) or self._effect_of(call)
        if effect in ("kill", "power loss"):
            self.halted = effect
            raise OSError(errno.EIO, "Input/output error")
        self._is_read_only |= effect == "EROFS"
        self._is_full |= effect == "ENOSPC"
        if effect == "ENOSPC" and call in ("open", "rename"):
            raise OSError(errno.ENOSPC, "No space left on device")
        if self._is_read_only and writes:
            raise OSError(errno.EROFS, "Read-only file system")
        if effect in ("EIO", "EMFILE") and call != "flush":
            raise OSError(getattr(errno, effect), {"EIO": "Input/output error"}.get(effect, "Too many open files"))
        return effect

    def _effect_of(self, call: str) -> str:
        number = self._calls_of_step[call]
        self._calls_of_step[call] += 1
        for fault in self._faults:
            if (fault.call, fault.number) == (call, number):
                if fault.effect in DISHONEST:
                    if self.is_dishonest:
                        return ""
                    self.is_dishonest = True
                self.effects[f"{call}: {fault.effect}"] += 1
                return fault.effect
        return ""

    # --- platter ---

    def _change_folder(self, change: FolderChange) -> None:
        self._change_names(self.files, change)
        self._folder_changes.append(change)

    @staticmethod
    def _change_names(files: dict[str, SimulatedFile], change: FolderChange) -> None:
        files.pop(change.old, None)
        if change.file is not None:
            files[change.new] = change.file

    def _move_to_platter(self, file: SimulatedFile, dirty: DirtyWrite) -> None:
        if dirty.fate == "lost":
            return
        if dirty.fate == "torn" and dirty.content is not None:
            dirty = DirtyWrite(dirty.offset, dirty.content[: self.random.below(len(dirty.content))])
        if dirty.fate == "misdirected" and dirty.content is not None:
            file = self.random.one_of(
                [other for _, other in sorted(self._platter_files.items()) if other.platter] or [file]
            )
            sectors = max(1, len(file.platter) // SECTOR_BYTES)
            dirty = DirtyWrite(self.random.below(sectors) * SECTOR_BYTES, dirty.content)
            _apply(file.platter, dirty)
            file.evict_clean_pages()
            return
        _apply(file.platter, dirty)


def _sectors(dirty: DirtyWrite) -> Iterator[DirtyWrite]:
    """The parts of a write that reach the platter independently."""
    if dirty.content is None:
        yield dirty
        return
    begin = 0
    while begin < len(dirty.content):
        end = begin + SECTOR_BYTES - (dirty.offset + begin) % SECTOR_BYTES
        yield DirtyWrite(dirty.offset + begin, dirty.content[begin:end], dirty.fate)
        begin = end
