"""CPU and memory usage of this machine and of its pods' containers, from periodic readings.

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
from batchyard.interfaces import containers
from batchyard.kubelet.local.runs import RUNNING, ObservedRun, run_of
from batchyard.shim import stop

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_BYTES_PER_KIBIBYTE: Final = 1024


class UsageReading(NamedTuple):
    """A reading of cumulative CPU time in microseconds and memory in bytes, of a container or of the machine."""

    at: Instant
    cpu: int
    memory: int


def read_container_usage(now: Instant, shim_pid: int, cgroup: Mapping[str, str]) -> UsageReading:
    """Read a container's usage from its cgroup, given the cgroup's path by controller ({} without a cgroup).

    CPU time or memory that the cgroup does not report is summed over the container's processes. Without a cgroup, these
    are the descendants of its shim.
    """
    pids = _member_pids(cgroup.values()) if cgroup else stop.descendants_of(shim_pid)
    cpu = _cpu_of_cgroup(cgroup)
    memory_bytes = _memory_of_cgroup(cgroup["memory"]) if "memory" in cgroup else None
    return UsageReading(
        now,
        sum(map(_cpu_of_process, pids)) if cpu is None else cpu,
        sum(map(_memory_of_process, pids)) if memory_bytes is None else memory_bytes,
    )


def read_machine_usage(now: Instant) -> UsageReading:
    """Read the cumulative CPU time and the memory usage of this machine."""
    cpu_ticks = [int(word) for word in _read_file_text(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]]
    busy_ticks = sum(cpu_ticks) - sum(cpu_ticks[3:5])  # without idle and iowait
    memory_counters = _read_counters(Path("/proc/meminfo"))
    used_memory = memory_counters["MemTotal:"] - memory_counters["MemFree:"] - memory_counters.get("Inactive(file):", 0)
    return UsageReading(now, busy_ticks * SECOND // _TICKS_PER_SECOND, used_memory * _BYTES_PER_KIBIBYTE)


def _cpu_of_cgroup(cgroup: Mapping[str, str]) -> int | None:
    """Return a container's CPU time in microseconds, from the cgroup's paths by controller; None if none reports it."""
    for path in map(Path, cgroup.values()):
        if "usage_usec" in (counters := _read_counters(path / "cpu.stat")):
            return counters["usage_usec"]
        if nanoseconds := _read_file_text(path / "cpuacct.usage"):
            return int(nanoseconds) // 1000
    return None


def _memory_of_cgroup(path: str) -> int | None:
    """Return the working set (memory usage) of a cgroup in bytes; None if it cannot be read."""
    memory_counters = _read_counters(Path(path, "memory.stat"))
    for file, counter in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
        if text := _read_file_text(Path(path, file)):
            return max(0, int(text) - memory_counters.get(counter, 0))
    return None


def _member_pids(folders: Iterable[str]) -> list[int]:
    return [int(pid) for folder in list(folders)[:1] for pid in _read_file_text(Path(folder, "cgroup.procs")).split()]


def _cpu_of_process(pid: int) -> int:
    """Return the CPU time of a process and its reaped children in microseconds."""
    stat_fields = _read_file_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, stat_fields[11:15])) * SECOND // _TICKS_PER_SECOND


def _memory_of_process(pid: int) -> int:
    statm_fields = _read_file_text(Path(f"/proc/{pid}/statm")).split()
    return (int(statm_fields[1]) - int(statm_fields[2])) * _PAGE_SIZE if statm_fields else 0


def _read_counters(path: Path) -> dict[str, int]:
    line_fields = (line.split() for line in _read_file_text(path).splitlines())
    return {field[0]: int(field[1]) for field in line_fields if len(field) > 1 and field[1].isdecimal()}


def _read_file_text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text("ascii", "replace")
    return ""


_READ_INTERVAL: Final = 15.0  # seconds
#: The shortest interval that gives a usable rate.
_READING_INTERVAL_MIN: Final = SECOND

#: The last two readings, older first.
_ReadingPair: TypeAlias = tuple[UsageReading, UsageReading]


class LocalUsage:
    """Measures the usage of this machine and its pods' containers: keeps the last two readings of each."""

    def __init__(
        self,
        container_runtime: containers.ContainerRuntime,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], Instant],
    ) -> None:
        self._runtime = container_runtime
        self._clock = clock
        self._loop = loop
        self._container_readings: dict[Key, _ReadingPair] = {}
        first_reading = read_machine_usage(clock())
        self._machine_readings: _ReadingPair = (first_reading, first_reading)
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(_READ_INTERVAL, self._start_reading)

    def pod_usage(self, uid: str) -> containers.MeasuredUsage | None:
        """Return the usage of each running container of a pod, by container name.

        Return None if no container is running, or if one is not measured yet.
        """
        running_runs = [run for run in map(run_of, self._runtime.runs(uid)) if run.phase == RUNNING and run.container]
        rates_by_container = {run.container: _usage_rate(self._last_reading_pair(run)) for run in running_runs}
        if not rates_by_container or any(rate is None for rate in rates_by_container.values()):
            return None
        known_rates = {name: rate for name, rate in rates_by_container.items() if rate is not None}
        return containers.MeasuredUsage(
            {name: rate.usage for name, rate in known_rates.items()}, min(rate.window for rate in known_rates.values())
        )

    def machine_usage(self) -> containers.MeasuredUsage | None:
        """Return the CPU and memory usage of this machine, with '' as container name; None if not known yet."""
        old, new = self._machine_readings
        if new.at - old.at < _READING_INTERVAL_MIN:
            self._machine_readings = (old, read_machine_usage(self._clock()))
        usage_rate = _usage_rate(self._machine_readings)
        return None if usage_rate is None else containers.MeasuredUsage({"": usage_rate.usage}, usage_rate.window)

    def close(self) -> None:
        """Stop the periodic readings of usage."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _last_reading_pair(self, run: ObservedRun) -> _ReadingPair:
        """Return the last two readings of a container if they are far enough apart.

        Otherwise, store and return a reading of 0 at the start of the container and a new reading.
        """
        key = key_of(run.obj)
        reading_pair = self._container_readings.get(key)
        if reading_pair is None or reading_pair[1].at - reading_pair[0].at < _READING_INTERVAL_MIN:
            new_reading = read_container_usage(self._clock(), *self._reading_arguments(run))
            reading_pair = (UsageReading(run.started_at, 0, 0), new_reading)
            self._container_readings[key] = reading_pair
        return reading_pair

    def _reading_arguments(self, run: ObservedRun) -> tuple[int, Mapping[str, str]]:
        key = key_of(run.obj)
        sandbox: Obj | None = self._runtime.find_run(Key(containers.RUN, key.namespace, containers.SANDBOX))
        sandbox_cgroups: Mapping[str, Any] = ((sandbox or {}).get("status") or {}).get("cgroup") or {}
        cgroup_paths = {name: f"{path}/{run.container}-{run.attempt}" for name, path in sandbox_cgroups.items()}
        return run.status["keeper"], cgroup_paths

    def _start_reading(self) -> None:
        self._timer = self._loop.call_later(_READ_INTERVAL, self._start_reading)
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._read_all_usage())

    async def _read_all_usage(self) -> None:
        running_runs = [run for run in map(run_of, self._runtime.runs()) if run.phase == RUNNING and run.container]
        reading_arguments = {key_of(run.obj): self._reading_arguments(run) for run in running_runs}
        start_readings = {key_of(run.obj): UsageReading(run.started_at, 0, 0) for run in running_runs}
        new_readings = await self._loop.run_in_executor(
            None, lambda: {key: read_container_usage(self._clock(), *args) for key, args in reading_arguments.items()}
        )
        last_readings = {key: readings[1] for key, readings in self._container_readings.items()}
        self._container_readings = {
            key: (last_readings.get(key, start_readings[key]), reading) for key, reading in new_readings.items()
        }
        self._machine_readings = (self._machine_readings[1], read_machine_usage(self._clock()))


class _UsageRate:
    """The usage between two readings: CPU in millicores, memory in bytes, and the interval in microseconds."""

    def __init__(self, old_reading: UsageReading, new_reading: UsageReading) -> None:
        self.window = new_reading.at - old_reading.at
        millicores = max(0, new_reading.cpu - old_reading.cpu) * 1000 // self.window
        self.usage = {"cpu": millicores, "memory": new_reading.memory}


def _usage_rate(readings: _ReadingPair) -> _UsageRate | None:
    old, new = readings
    return None if new.at - old.at < _READING_INTERVAL_MIN else _UsageRate(old, new)
