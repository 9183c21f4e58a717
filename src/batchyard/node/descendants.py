"""Ending a tree of processes that may fork while it is being ended."""

import os
import signal


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
