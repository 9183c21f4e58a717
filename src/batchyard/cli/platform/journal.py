"""The journal of a platform's folder: one JSON line per event, synced to disk before the next event."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from batchyard.api.times import format_time
from batchyard.server.clocks.wall import wall_clock

#: The folder for our own files, below the rendered folder.
OWN_FOLDER: Final = ".batchyard"
_FILE: Final = "steps.jsonl"


class StepJournal:
    """The journal of a rendered folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OWN_FOLDER / _FILE

    def note(self, **fields: object) -> None:
        """Append a line; it survives a power failure once this returns."""
        line = json.dumps({"at": format_time(wall_clock()), **fields}) + "\n"
        is_new = not self._path.exists()
        with self._path.open("ab") as file:
            if file.tell() and not self._ends_whole():
                file.write(b"\n")  # an earlier write was cut off
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync_folder(self._path.parent)

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """All complete lines, oldest first."""
        if not self._path.exists():
            return
        for line in self._path.read_text("utf-8", "replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry

    def target(self) -> Mapping[str, Any] | None:
        """The cluster of this folder's platform.

        None before anything was created or found complete, and after the platform was destroyed.
        """
        meant = target = None
        for entry in self.entries():
            what = entry.get("event"), entry.get("verb")
            if what[0] == "target":
                meant = entry
            elif what[0] == "begun" or what == ("finished", "create"):
                target = target or meant
            elif what == ("finished", "destroy"):
                target = None
        return target

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
