"""What processes of this machine have used of it: from control groups where there are some, else from /proc.

Memory is the working set, as cAdvisor counts it: what is in use but for files that nobody read for a while. Of
processes without a control group it is what they have for themselves. Sources: cAdvisor
container/libcontainer/handler.go, proc(5).
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from batchyard.base.instant import SECOND, Instant
from batchyard.node import descendants

_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KIBI: Final = 1024


class Reading(NamedTuple):
    """What was used until an instant: processor time in microseconds since the beginning; memory in bytes then."""

    at: Instant
    cpu: int
    memory: int


def of_container(now: Instant, keeper: int, group: Mapping[str, str]) -> Reading:
    """What a container has used until now; its control group by controller, empty where there is none."""
    inside = _members(group.values()) if group else descendants.below(keeper)
    cpu = _cpu_of_group(group)
    memory = _memory_of_group(group["memory"]) if "memory" in group else None
    return Reading(
        now,
        sum(map(_cpu_of_process, inside)) if cpu is None else cpu,
        sum(map(_memory_of_process, inside)) if memory is None else memory,
    )


def of_machine(now: Instant) -> Reading:
    """What the whole machine has used until now."""
    ticks = [int(word) for word in _text(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]]
    busy = sum(ticks) - sum(ticks[3:5])  # but for those in which it was idle, or waited for disks
    known = _rows(Path("/proc/meminfo"))
    memory = known["MemTotal:"] - known["MemFree:"] - known.get("Inactive(file):", 0)
    return Reading(now, busy * SECOND // _TICK, memory * _KIBI)


def _cpu_of_group(group: Mapping[str, str]) -> int | None:
    """None where its control group does not count that."""
    for path in map(Path, group.values()):
        if "usage_usec" in (rows := _rows(path / "cpu.stat")):
            return rows["usage_usec"]
        if nanoseconds := _text(path / "cpuacct.usage"):
            return int(nanoseconds) // 1000
    return None


def _memory_of_group(path: str) -> int | None:
    """None where the group is gone."""
    rows = _rows(Path(path, "memory.stat"))
    for file, inactive in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
        if text := _text(Path(path, file)):
            return max(0, int(text) - rows.get(inactive, 0))
    return None


def _members(folders: Iterable[str]) -> list[int]:
    return [int(pid) for folder in list(folders)[:1] for pid in _text(Path(folder, "cgroup.procs")).split()]


def _cpu_of_process(pid: int) -> int:
    """Its time and that of its children that have ended."""
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * SECOND // _TICK


def _memory_of_process(pid: int) -> int:
    fields = _text(Path(f"/proc/{pid}/statm")).split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0


def _rows(path: Path) -> dict[str, int]:
    """A file of names and numbers."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _text(path: Path) -> str:
    """Empty where there is no such file any more."""
    with suppress(OSError):
        return path.read_text("ascii", "replace")
    return ""
