"""The end of the processes that outlive a platform."""

import fcntl
import os
import signal
from pathlib import Path

import pytest

from batchyard.server.local_node.orphans import OrphanedPods


def open_descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_spawner_that_ends_before_its_signal_leaves_no_open_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_as_ended(_pidfd: int, _signal_number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(signal, "pidfd_send_signal", fail_as_ended)
    lock_path = tmp_path / "node" / "spawner.lock"
    lock_path.parent.mkdir()
    lock_path.write_text(str(os.getpid()), "ascii")
    with lock_path.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        descriptors = open_descriptors()
        assert OrphanedPods(tmp_path).end()
        assert open_descriptors() == descriptors
