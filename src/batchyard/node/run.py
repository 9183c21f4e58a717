"""A run's folder, as its keeper has it: claimed once for ever, locked as long as the keeper lives, its state told."""

import errno
import os
import socket
from typing import Any

from batchyard.node import folder


class Run:
    """A run that this process keeps."""

    def __init__(self, node: int, path: str) -> None:
        """The run in a folder, its path relative to the node's. OSError where there is none."""
        self.node = node
        self.path = path
        self.folder = folder.open_folder(path, node)
        self.lock: int | None = None
        self.spec: dict[str, Any] = {}
        self.state: dict[str, Any] = {}

    def claim(self) -> bool:
        """Whether this process may keep the run: nobody does, or ever did, and its wish can be read."""
        self.lock = folder.lock(self.folder, "lock")
        spec = folder.read_json(self.folder, "spec.json")
        if self.lock is None or spec is None:
            return False
        try:
            os.close(os.open("claimed", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.folder))
        except FileExistsError:
            return False
        self.spec = spec
        return True

    def write(self, **changes: object) -> bool:
        """Add to the state, and write it. Whether it could be written."""
        self.state |= changes
        try:
            folder.write_json(self.folder, "state.json", self.state)
        except OSError as failure:
            if failure.errno != errno.ENOENT:
                folder.complain(self.node, f"{self.path}: state.json cannot be written: {failure}")
            return False
        return True

    def announce(self, patience: float = 0.0) -> bool:
        """Tell the platform that the state changed; False where it is there and cannot take it for so many seconds.

        Nobody there is fine: the platform reads the folders when it starts.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(patience)
            try:
                sender.connect(folder.address(self.node, "events"))
                sender.send(self.path.encode())
            except (BlockingIOError, TimeoutError):
                return False
            except OSError:
                return True
        return True

    def stop_wish(self) -> dict[str, Any] | None:
        """When and how the platform wants the run to end; None where it does not."""
        return folder.read_json(self.folder, "stop.json")

    def is_gone(self) -> bool:
        """Whether the folder was removed."""
        return folder.is_gone(self.folder)

    def release(self) -> None:
        """In a child of the keeper: hold the run's lock no longer, so that it ends with the keeper."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None
