"""Container termination: the preStop hook, SIGTERM, and SIGKILL after the grace period.

An image may name another stop signal than SIGTERM.

The grace period includes the time of the hook, and at least two seconds remain for SIGTERM after a hook
(pkg/kubelet/kuberuntime/kuberuntime_container.go).
"""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from batchyard.shim import linux
from batchyard.shim.event_loop import Loop
from batchyard.shim.probes import ProbeOutcome, StartAttempt

# --- descendants ---
# Termination of a process tree whose processes may fork meanwhile.


def kill_all() -> None:
    """Kill and reap all descendants of this process, which is a subreaper.

    Stop them before killing them, so that none can fork unnoticed.
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
    """Return the descendants of a process, parents first, without zombies."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        forked = children(waiting.pop())
        found += [pid for pid in forked if not _is_dead(pid)]
        waiting += forked
    return found


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
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
    """Return the stop signal of an image (`SIGQUIT`, `QUIT` or `3`); SIGTERM if it names none."""
    name = named.strip().upper()
    if name.isdigit():
        return int(name)
    return signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}", signal.SIGTERM)


def signal_process_group(pid: int, number: int) -> None:
    """Signal the command's process group. With a terminal the session is bubblewrap's, so signal the command alone."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            for child in children(pid)[:1]:
                os.kill(child, number)


def signal_first_process(pid: int, number: int) -> None:
    """Signal only the first process of a container, as container runtimes do."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class ContainerTermination:
    """The termination of one container, idle until `obey` is called; `ask` sends the stop signal."""

    def __init__(
        self, pid: int, loop: Loop, hook: Mapping[str, Any] | None, attempt: StartAttempt, ask: Callable[[], None]
    ) -> None:
        self._pid = pid
        self._ask = ask
        self._loop = loop
        self._hook = hook
        self._attempt = attempt
        self._has_begun = False
        #: Microseconds since the epoch.
        self._killed_at = 0
        self._killed_not_before = 0

    def obey(self, request: Mapping[str, Any], warn: Callable[[str, str], None]) -> None:
        """Terminate the container as a stop request says; a later request may shorten the grace period."""
        self._killed_at = request["at"] + int(request["grace"] * 1e6)
        if not self._has_begun:
            self._has_begun = True
            if self._hook and request["grace"] > 0:
                self._attempt(self._hook, request["grace"], lambda outcome: self._after_hook(outcome, warn))
            else:
                self._ask()
        self._look()

    def kill(self) -> None:
        """Kill the first process; the pid namespace or the warden ends the others."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _after_hook(self, outcome: ProbeOutcome, warn: Callable[[str, str], None]) -> None:
        if outcome.result not in {"success", "warning"}:
            warn("FailedPreStopHook", "PreStopHook failed")
        self._killed_not_before = linux.now() + int(_AFTER_HOOK_SECONDS * 1e6)
        self._ask()

    def _look(self) -> None:
        """Kill the container if its grace period is over; otherwise check again then."""
        left = max(self._killed_at, self._killed_not_before) - linux.now()
        if left <= 0:
            self.kill()
        else:
            self._loop.after(left / 1e6, self._look)
