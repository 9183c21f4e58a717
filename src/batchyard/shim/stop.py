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
from batchyard.shim.event_loop import Loop
from batchyard.shim.probes import ProbeOutcome, StartAttempt

# --- process trees ---
# Kills a process tree whose processes may fork at the same time.


def kill_all() -> None:
    """Kill and reap all descendants of this process, which must be a subreaper.

    They are first stopped with SIGSTOP, so that none can fork unnoticed.
    """
    stopped: set[int] = set()
    while fresh := [pid for pid in below(os.getpid()) if pid not in stopped]:
        for pid in fresh:
            _send(pid, signal.SIGSTOP)
        stopped.update(fresh)
    while found := below(os.getpid()):
        for pid in found:
            _send(pid, signal.SIGKILL)
        os.wait()


def below(root: int) -> list[int]:
    """Return the pids of a process's live descendants, parents first."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        forked = children(waiting.pop())
        found += [pid for pid in forked if not _is_dead(pid)]
        waiting += forked
    return found


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, those of all its threads."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in _numbers(f"/proc/{pid}/task/{thread}/children")]


def _numbers(path: str) -> list[int]:
    try:
        with open(path, "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _is_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in {b"Z", b"X"}
    except (OSError, IndexError):
        return True


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


_AFTER_HOOK_SECONDS = 2.0


def stop_signal(named: str) -> int:
    """Parse the stop signal of an image (`SIGQUIT`, `QUIT` or `3`); SIGTERM if it is empty or unknown."""
    name = named.strip().upper()
    if name.isdigit():
        return int(name)
    return signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}", signal.SIGTERM)


def signal_process_group(pid: int, number: int) -> None:
    """Send a signal to the command's process group, or only to the command if bubblewrap leads its session."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            for child in children(pid)[:1]:
                os.kill(child, number)


def signal_first_process(pid: int, number: int) -> None:
    """Send a signal only to the first process of a container, as container runtimes do."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class ContainerTermination:
    """The termination of one container, which starts with the first call of `obey`; `ask` sends the stop signal."""

    def __init__(
        self, pid: int, loop: Loop, hook: Mapping[str, Any] | None, attempt: StartAttempt, ask: Callable[[], None]
    ) -> None:
        self._pid = pid
        self._ask = ask
        self._loop = loop
        self._hook = hook
        self._attempt = attempt
        self._has_begun = False
        #: The times of SIGKILL by the grace period and by the minimum after a hook, in microseconds since the epoch.
        self._killed_at = 0
        self._killed_not_before = 0

    def obey(self, request: Mapping[str, Any], warn: Callable[[str, str], None]) -> None:
        """Terminate the container according to a stop request; a later request may shorten the grace period."""
        self._killed_at = request["at"] + int(request["grace"] * 1e6)
        if not self._has_begun:
            self._has_begun = True
            if self._hook and request["grace"] > 0:
                self._attempt(self._hook, request["grace"], lambda outcome: self._after_hook(outcome, warn))
            else:
                self._ask()
        self._look()

    def kill(self) -> None:
        """Kill the container's first process; the kernel (pid namespace) or the warden then kills the others."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _after_hook(self, outcome: ProbeOutcome, warn: Callable[[str, str], None]) -> None:
        if outcome.result not in {"success", "warning"}:
            warn("FailedPreStopHook", "PreStopHook failed")
        self._killed_not_before = linux.now() + int(_AFTER_HOOK_SECONDS * 1e6)
        self._ask()

    def _look(self) -> None:
        """Kill the container if its grace period has ended; otherwise check again at its end."""
        left = max(self._killed_at, self._killed_not_before) - linux.now()
        if left <= 0:
            self.kill()
        else:
            self._loop.after(left / 1e6, self._look)
