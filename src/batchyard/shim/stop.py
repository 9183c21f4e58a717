"""Container termination: the preStop hook, the stop signal, and SIGKILL after the grace period.

The stop signal is SIGTERM, or the signal in the image's metadata. The grace period includes the time of the hook; after
a hook, at least two seconds remain before SIGKILL. Source: pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from batchyard.shim import linux
from batchyard.shim.event_loop import ShimEventLoop
from batchyard.shim.probes import ProbeOutcome, StartAttempt

# Kills a process tree whose processes may fork at the same time.


def kill_descendants() -> None:
    """Kill and reap all descendants of this process, which must be a subreaper.

    They are first stopped with SIGSTOP, so that none can fork unnoticed.
    """
    stopped_pids: set[int] = set()
    while unstopped_pids := [pid for pid in descendants_of(os.getpid()) if pid not in stopped_pids]:
        for pid in unstopped_pids:
            _send_signal(pid, signal.SIGSTOP)
        stopped_pids.update(unstopped_pids)
    while remaining_pids := descendants_of(os.getpid()):
        for pid in remaining_pids:
            _send_signal(pid, signal.SIGKILL)
        os.wait()


def descendants_of(root_pid: int) -> list[int]:
    """Return the pids of a process's live descendants, parents first."""
    descendant_pids: list[int] = []
    pending_pids = [root_pid]
    while pending_pids:
        child_pids = children_of(pending_pids.pop())
        descendant_pids += [pid for pid in child_pids if not _is_dead(pid)]
        pending_pids += child_pids
    return descendant_pids


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, including those of its other threads; empty if the process has ended."""
    try:
        thread_ids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in thread_ids for child in _read_pids(f"/proc/{pid}/task/{thread}/children")]


def _read_pids(path: str) -> list[int]:
    try:
        with open(path, "rb") as file:
            return [int(pid_text) for pid_text in file.read().split()]
    except OSError:
        return []


def _is_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in {b"Z", b"X"}
    except (OSError, IndexError):
        return True


def _send_signal(pid: int, signal_number: int) -> None:
    try:
        os.kill(pid, signal_number)
    except OSError:
        return


_GRACE_AFTER_HOOK_SECONDS = 2.0


def parse_stop_signal(text: str) -> int:
    """Return the number of a stop signal (`SIGQUIT`, `QUIT` or `3`); SIGTERM if the text is empty or unknown."""
    name = text.strip().upper()
    if name.isdigit():
        return int(name)
    return signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}", signal.SIGTERM)


def signal_process_group(pid: int, signal_number: int) -> None:
    """Send a signal to the process group that `pid` leads or, if it leads none (bubblewrap), to its first child."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal_number)
        else:
            for child in children_of(pid)[:1]:
                os.kill(child, signal_number)


def signal_first_process(pid: int, signal_number: int) -> None:
    """Send a signal to process `pid`, the first of a container, as container runtimes do."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal_number)


class ContainerTermination:
    """The termination of one container, begun by the first `request_stop`: preStop hook, stop signal and SIGKILL."""

    def __init__(
        self,
        pid: int,
        loop: ShimEventLoop,
        hook: Mapping[str, Any] | None,
        start_attempt: StartAttempt,
        send_stop_signal: Callable[[], None],
    ) -> None:
        self._pid = pid
        self._send_stop_signal = send_stop_signal
        self._loop = loop
        self._hook = hook
        self._start_attempt = start_attempt
        self._has_begun = False
        #: The times of SIGKILL by the grace period and by the minimum after a hook, in microseconds since the epoch.
        self._kill_at = 0
        self._kill_not_before = 0

    def request_stop(self, stop_request: Mapping[str, Any], warn: Callable[[str, str], None]) -> None:
        """Start the container's termination by a stop request; a later request only changes the time of SIGKILL."""
        self._kill_at = stop_request["at"] + int(stop_request["grace"] * 1e6)
        if not self._has_begun:
            self._has_begun = True
            if self._hook and stop_request["grace"] > 0:
                self._start_attempt(
                    self._hook, stop_request["grace"], lambda outcome: self._stop_after_hook(outcome, warn)
                )
            else:
                self._send_stop_signal()
        self._kill_when_due()

    def kill(self) -> None:
        """Kill the container's first process; the pid namespace or the supervising parent then kills the others."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _stop_after_hook(self, outcome: ProbeOutcome, warn: Callable[[str, str], None]) -> None:
        if outcome.result not in {"success", "warning"}:
            warn("FailedPreStopHook", "PreStopHook failed")
        self._kill_not_before = linux.now() + int(_GRACE_AFTER_HOOK_SECONDS * 1e6)
        self._send_stop_signal()

    def _kill_when_due(self) -> None:
        remaining_microseconds = max(self._kill_at, self._kill_not_before) - linux.now()
        if remaining_microseconds <= 0:
            self.kill()
        else:
            self._loop.call_later(remaining_microseconds / 1e6, self._kill_when_due)
