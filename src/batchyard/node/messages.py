"""The last words of a container, as a kubelet takes them (pkg/kubelet/kuberuntime/kuberuntime_container.go)."""

import os

from batchyard.node.logs import Log
from batchyard.node.run import Run

_FILE_BYTES = 4096
_LOG_BYTES = 2048
_LOG_LINES = 80


def last_words(run: Run, log: Log, code: int) -> str:
    """The end of the file that was there for them; or of the log, where that is wanted of a container that failed."""
    text = _tail_of_file(run) if run.spec["terminationMessagePath"] else b""
    wants_log = run.spec["terminationMessagePolicy"] == "FallbackToLogsOnError" and code != 0
    if not text and wants_log:
        text = log.tail(_LOG_LINES, _LOG_BYTES)
    return text.decode(errors="replace")


def _tail_of_file(run: Run) -> bytes:
    try:
        file = os.open("termination-log", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=run.folder)
    except OSError:
        return b""
    try:
        return os.pread(file, _FILE_BYTES, max(0, os.fstat(file).st_size - _FILE_BYTES))
    finally:
        os.close(file)
