"""Ending a container that is told to: its preStop hook, SIGTERM, and SIGKILL when its grace has passed.

An image may name another signal than SIGTERM.

A hook's time is part of the grace, and after a hook there are at least two seconds for SIGTERM
(pkg/kubelet/kuberuntime/kuberuntime_container.go).
"""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from batchyard.shim import clock
from batchyard.shim.event_loop import Loop
from batchyard.shim.health import Try
from batchyard.shim.probes import Outcome

# --- descendants ---
#
# Ending a tree of processes that may fork while it is being ended.


def kill_all() -> None:
    """Kill all below this process, which adopts orphans, and reap them.

    They are stopped before they are killed, so that none forks behind the back of who looks for them.
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
    """The processes below one, parents first, those that only wait to be reaped left out."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        forked = children(waiting.pop())
        found += [pid for pid in forked if not _is_dead(pid)]
        waiting += forked
    return found


def children(pid: int) -> list[int]:
    """What all threads of a process have forked and not reaped."""
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


def stop_signal(said: str) -> int:
    """The signal that an image names for its end: `SIGQUIT`, `QUIT` or `3`; SIGTERM where it names none."""
    name = said.strip().upper()
    if name.isdigit():
        return int(name)
    return signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}", signal.SIGTERM)


def ask_group(pid: int, number: int) -> None:
    """Signal the command's group; where it has a terminal, whose session is bubblewrap's, the command alone."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            for child in children(pid)[:1]:
                os.kill(child, number)


def ask_first(pid: int, number: int) -> None:
    """Signal the first process of a container alone, as runtimes do: it hears what it waits for, nothing else."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class Ending:
    """The end of one container; nothing happens until it is told to end, of which `ask` tells it."""

    def __init__(
        self, pid: int, loop: Loop, hook: Mapping[str, Any] | None, attempt: Try, ask: Callable[[], None]
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

    def obey(self, wish: Mapping[str, Any], warn: Callable[[str, str], None]) -> None:
        """End it as a wish says; a later wish may hurry."""
        self._killed_at = wish["at"] + int(wish["grace"] * 1e6)
        if not self._has_begun:
            self._has_begun = True
            if self._hook and wish["grace"] > 0:
                self._attempt(self._hook, wish["grace"], lambda outcome: self._after_hook(outcome, warn))
            else:
                self._ask()
        self._look()

    def kill(self) -> None:
        """End it now: what is around its first process ends what else there is."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _after_hook(self, outcome: Outcome, warn: Callable[[str, str], None]) -> None:
        if outcome.result not in {"success", "warning"}:
            warn("FailedPreStopHook", "PreStopHook failed")
        self._killed_not_before = clock.now() + int(_AFTER_HOOK_SECONDS * 1e6)
        self._ask()

    def _look(self) -> None:
        """Kill it if it is time, or look again then."""
        left = max(self._killed_at, self._killed_not_before) - clock.now()
        if left <= 0:
            self.kill()
        else:
            self._loop.after(left / 1e6, self._look)
