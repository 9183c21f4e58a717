"""CPU and memory usage of the local node's containers and of the machine, from periodic readings.

As in metrics-server, usage is read every 15 seconds; a new container is measured from its start. Source:
metrics-server's pkg/storage.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.containers import (
    RUN,
    SANDBOX,
    ContainerRuntime,
    MeasuredUsage,
)
from batchyard.kubelet.local.runs import RUNNING, ObservedRun, run_of
from batchyard.shim import stop

_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KIBI: Final = 1024


class UsageReading(NamedTuple):
    """A reading of usage at an instant: cumulative CPU time in microseconds, and memory in bytes."""

    at: Instant
    cpu: int
    memory: int


def of_container(now: Instant, keeper: int, group: Mapping[str, str]) -> UsageReading:
    """Read the usage of a container by the pid of its shim and its cgroups (paths by cgroup controller; may be {})."""
    inside = _members(group.values()) if group else stop.below(keeper)
    cpu = _cpu_of_group(group)
    memory = _memory_of_group(group["memory"]) if "memory" in group else None
    return UsageReading(
        now,
        sum(map(_cpu_of_process, inside)) if cpu is None else cpu,
        sum(map(_memory_of_process, inside)) if memory is None else memory,
    )


def of_machine(now: Instant) -> UsageReading:
    """Read the CPU time and memory usage of this machine."""
    ticks = [int(word) for word in _text(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]]
    busy = sum(ticks) - sum(ticks[3:5])  # without idle and iowait
    known = _rows(Path("/proc/meminfo"))
    memory = known["MemTotal:"] - known["MemFree:"] - known.get("Inactive(file):", 0)
    return UsageReading(now, busy * SECOND // _TICK, memory * _KIBI)


def _cpu_of_group(group: Mapping[str, str]) -> int | None:
    """Return the CPU time of a container's cgroup in microseconds; None if the cgroup does not account for it."""
    for path in map(Path, group.values()):
        if "usage_usec" in (rows := _rows(path / "cpu.stat")):
            return rows["usage_usec"]
        if nanoseconds := _text(path / "cpuacct.usage"):
            return int(nanoseconds) // 1000
    return None


def _memory_of_group(path: str) -> int | None:
    """Return the working set of a cgroup in bytes; None if the cgroup does not exist."""
    rows = _rows(Path(path, "memory.stat"))
    for file, inactive in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
        if text := _text(Path(path, file)):
            return max(0, int(text) - rows.get(inactive, 0))
    return None


def _members(folders: Iterable[str]) -> list[int]:
    return [int(pid) for folder in list(folders)[:1] for pid in _text(Path(folder, "cgroup.procs")).split()]


def _cpu_of_process(pid: int) -> int:
    """Return the CPU time of a process and its reaped children in microseconds."""
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * SECOND // _TICK


def _memory_of_process(pid: int) -> int:
    fields = _text(Path(f"/proc/{pid}/statm")).split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0


def _rows(path: Path) -> dict[str, int]:
    """Parse a file whose lines are a name and a number, such as /proc/meminfo."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _text(path: Path) -> str:
    """Read a file as text; return '' if it cannot be read."""
    with suppress(OSError):
        return path.read_text("ascii", "replace")
    return ""


_EVERY: Final = 15.0  # seconds
#: The shortest interval that gives a usable rate.
_LEAST: Final = SECOND

#: The last two readings, older first.
_Readings: TypeAlias = tuple[UsageReading, UsageReading]


class LocalUsage:
    """The usage of the local node's containers and of the machine: the last two readings of each."""

    def __init__(
        self, machine: ContainerRuntime, loop: asyncio.AbstractEventLoop, clock: Callable[[], Instant]
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._loop = loop
        self._containers: dict[Key, _Readings] = {}
        first = of_machine(clock())
        self._node: _Readings = (first, first)
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(_EVERY, self._look)

    def of_pod(self, uid: str) -> MeasuredUsage | None:
        """Return the usage of each running container of a pod; None before it is known."""
        runs = [run for run in map(run_of, self._machine.runs(uid)) if run.phase == RUNNING and run.container]
        rates = {run.container: _rate(self._readings(run)) for run in runs}
        if not rates or any(rate is None for rate in rates.values()):
            return None
        found = {name: rate for name, rate in rates.items() if rate is not None}
        return MeasuredUsage(
            {name: rate.usage for name, rate in found.items()}, min(rate.window for rate in found.values())
        )

    def of_node(self) -> MeasuredUsage | None:
        """Return the usage of the machine, under the name ''; None before it is known."""
        old, new = self._node
        if new.at - old.at < _LEAST:
            self._node = (old, of_machine(self._clock()))
        rate = _rate(self._node)
        return None if rate is None else MeasuredUsage({"": rate.usage}, rate.window)

    def close(self) -> None:
        """Stop the periodic readings."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _readings(self, run: ObservedRun) -> _Readings:
        """Return the last two readings of a run; for a new run, zero usage at its start and a new reading."""
        key = key_of(run.obj)
        found = self._containers.get(key)
        if found is None or found[1].at - found[0].at < _LEAST:
            found = (UsageReading(run.started_at, 0, 0), of_container(self._clock(), *self._asked(run)))
            self._containers[key] = found
        return found

    def _asked(self, run: ObservedRun) -> tuple[int, Mapping[str, str]]:
        """Return the pid of a run's shim, and the run's cgroups, as arguments for `of_container`."""
        key = key_of(run.obj)
        sandbox: Obj | None = self._machine.run(Key(RUN, key.namespace, SANDBOX))
        groups: Mapping[str, Any] = ((sandbox or {}).get("status") or {}).get("cgroup") or {}
        own = {name: f"{path}/{run.container}-{run.attempt}" for name, path in groups.items()}
        return run.status["keeper"], own

    def _look(self) -> None:
        self._timer = self._loop.call_later(_EVERY, self._look)
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._read())

    async def _read(self) -> None:
        """Read the usage of all running containers, in a thread because there may be many."""
        runs = [run for run in map(run_of, self._machine.runs()) if run.phase == RUNNING and run.container]
        asked = {key_of(run.obj): self._asked(run) for run in runs}
        begun = {key_of(run.obj): UsageReading(run.started_at, 0, 0) for run in runs}
        read = await self._loop.run_in_executor(
            None, lambda: {key: of_container(self._clock(), *of) for key, of in asked.items()}
        )
        known = {key: readings[1] for key, readings in self._containers.items()}
        self._containers = {key: (known.get(key, begun[key]), reading) for key, reading in read.items()}
        self._node = (self._node[1], of_machine(self._clock()))


class _Rate:
    """The usage between two readings: CPU in thousandths of a core, memory in bytes, interval in microseconds."""

    def __init__(self, old: UsageReading, new: UsageReading) -> None:
        self.window = new.at - old.at
        thousandths = max(0, new.cpu - old.cpu) * 1000 // self.window
        self.usage = {"cpu": thousandths, "memory": new.memory}


def _rate(readings: _Readings) -> _Rate | None:
    old, new = readings
    return None if new.at - old.at < _LEAST else _Rate(old, new)
