"""Control groups (v1 or v2): limits on a container's memory, CPU time and number of processes.

A pod's group is a child of the group in which the spawner was started. For v2 it is a child of the nearest ancestor
that can have child groups with controllers. Each container start has a child group of its pod's group. Limits are
converted as in the kubelet and runc.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from batchyard.shim import linux

_CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
_CPU_PERIOD_MICROSECONDS = 100_000
_CPU_SHARES_MIN, _CPU_SHARES_MAX = 2, 262_144
#: The number of processes in the group in addition to the container's: those of bubblewrap, or the subreaper.
EXTRA_PROCESSES = 2
_REMOVAL_TIMEOUT_SECONDS = 10.0

#: The directories of one control group, by controller; for v2 they are all the same.
CgroupPaths: TypeAlias = Mapping[str, str]


class Cgroups(NamedTuple):
    """The cgroup version, and the control group below which the groups of pods are created."""

    version: int
    base_group: CgroupPaths


def find_cgroups() -> Cgroups | None:
    """Return the control group in which this process may create groups for pods; None if none can limit memory.

    For cgroup v2, the controllers are enabled for child groups.
    """
    own_groups = _read_own_cgroup_paths()
    mounts = _read_cgroup_mounts()
    controllers = [name for name in _CONTROLLERS if name in mounts and name in own_groups]
    memory_group = own_groups.get("memory", "")
    paths = {
        name: _group_path(mounts[name], _choose_deeper_group(own_groups[name], memory_group)) for name in controllers
    }
    usable_paths = {name: path for name, path in paths.items() if _can_create_child_groups(path)}
    if "memory" in usable_paths:
        return Cgroups(1, usable_paths)
    if "" in mounts and "" in own_groups:
        return _find_unified_hierarchy(mounts[""][1], _group_path(mounts[""], own_groups[""]))
    return None


def engine_group_name(group: CgroupPaths) -> str | None:
    """Return a control group's name for podman's `--cgroup-parent`; None if it differs between v1 controllers."""
    mount_points = {name: mount_point for name, (_, mount_point) in _read_cgroup_mounts().items()}
    names = {path.removeprefix(mount_points.get(name, mount_points.get("", ""))) for name, path in group.items()}
    return f"/{names.pop().strip('/')}" if len(names) == 1 else None


def find_leaf_group(group: CgroupPaths) -> CgroupPaths:
    """Return the child group that podman created for a container in `group`; `group` itself if there is none."""
    return {name: next((f"{path}/{child}" for child in _list_folders(path)), path) for name, path in group.items()}


def create_group(group: CgroupPaths, settings: Mapping[str, Mapping[str, str]]) -> None:
    """Create a control group and write its files: `settings` are contents by controller and file name."""
    for path in dict.fromkeys(group.values()):
        os.makedirs(path, exist_ok=True)
    for controller, contents in settings.items():
        for file_name, value in contents.items() if controller in group else ():
            _write_file_if_exists(f"{group[controller]}/{file_name}", value)


def enable_controllers(version: int, group: CgroupPaths) -> None:
    """Enable a control group's controllers for its child groups; do nothing for cgroup v1."""
    if version == 2:
        _write_file(f"{group['memory']}/cgroup.subtree_control", " ".join(f"+{name}" for name in group))


def join_group(group: CgroupPaths) -> None:
    """Move this process into a control group, for v1 in the hierarchies of all controllers."""
    for path in dict.fromkeys(group.values()):
        _write_file(f"{path}/cgroup.procs", "0")


def control_file_contents(
    version: int, limits: Mapping[str, Any], requests: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """Return a control group's file contents for a container's limits and requests, by controller and file name.

    `cpu` is in millicores and `memory` in bytes (None for no limit); `pids` is the maximum number of processes.
    """
    cpu_shares = min(max((requests["cpu"] or limits["cpu"] or 0) * 1024 // 1000, _CPU_SHARES_MIN), _CPU_SHARES_MAX)
    cpu_quota = limits["cpu"] and max(limits["cpu"] * _CPU_PERIOD_MICROSECONDS // 1000, 1000)
    memory = limits["memory"] and str(limits["memory"])
    pids_files = {"pids.max": str(limits["pids"] + EXTRA_PROCESSES)}
    if version == 1:
        cpu = {"cpu.shares": str(cpu_shares)} | ({"cpu.cfs_quota_us": str(cpu_quota)} if cpu_quota else {})
        memory_v1_files = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory} if memory else {}
        return {"cpu": cpu, "memory": memory_v1_files, "pids": pids_files}
    weight = 1 + (cpu_shares - _CPU_SHARES_MIN) * 9999 // (_CPU_SHARES_MAX - _CPU_SHARES_MIN)
    cpu = {"cpu.weight": str(weight)} | ({"cpu.max": f"{cpu_quota} {_CPU_PERIOD_MICROSECONDS}"} if cpu_quota else {})
    memory_files = {"memory.max": memory, "memory.swap.max": "0", "memory.oom.group": "1"} if memory else {}
    return {"cpu": cpu, "memory": memory_files, "pids": pids_files}


def count_oom_kills(group: CgroupPaths) -> int:
    """Return how many processes of a control group were OOM-killed; 0 if that is unknown."""
    for file_name in ("memory.events", "memory.oom_control") if "memory" in group else ():
        for line in _read_file(f"{group['memory']}/{file_name}").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def open_oom_eventfd(group: CgroupPaths) -> int | None:
    """Return an eventfd that becomes readable when a cgroup v1 group or one of its child groups runs out of memory.

    Cgroup v1 counts an OOM kill only in the group of the killed process. If that is a child group, the container
    runtime may remove it before the shim reads the count. Return None for cgroup v2, which also counts the kills in
    child groups, and for a group without the memory controller.
    """
    control_path = f"{group['memory']}/cgroup.event_control" if "memory" in group else ""
    if not control_path or not os.path.exists(control_path):
        return None
    oom_eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    oom_control_fd = os.open(f"{group['memory']}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):
        _write_file(control_path, f"{oom_eventfd} {oom_control_fd}")
    os.close(oom_control_fd)
    return oom_eventfd


def remove_group(group: CgroupPaths, *, has_namesakes: bool = False) -> None:
    """Kill all processes in a control group and its child groups, and remove these groups; give up after 10 seconds.

    `has_namesakes` is whether a container runtime has created groups of that name for other controllers, too.
    """
    deadline = linux.monotonic() + _REMOVAL_TIMEOUT_SECONDS
    for path in dict.fromkeys((_groups_of_all_controllers(group) if has_namesakes else group).values()):
        while not _try_remove_cgroup(path) and linux.monotonic() < deadline:
            signal.sigtimedwait([], 0.002)


def find_leftover_groups(base: CgroupPaths, prefix: str) -> dict[str, CgroupPaths]:
    """Return the child groups of `base` whose names start with `prefix`, by the rest of their names."""
    names = {name for path in base.values() for name in _list_folders(path) if name.startswith(prefix)}
    return {name.removeprefix(prefix): {key: f"{path}/{name}" for key, path in base.items()} for name in sorted(names)}


def _groups_of_all_controllers(group: CgroupPaths) -> CgroupPaths:
    name = engine_group_name(group)
    return {key: f"{mount_point}{name}" for key, (_, mount_point) in _read_cgroup_mounts().items()} if name else group


def _try_remove_cgroup(path: str) -> bool:
    for name in _list_folders(path):
        _try_remove_cgroup(f"{path}/{name}")
    for pid in _read_file(f"{path}/cgroup.procs").split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read_own_cgroup_paths() -> dict[str, str]:
    """Return the control group paths of this process by controller, from /proc; the key '' is cgroup v2."""
    fields_by_line = (line.split(":", 2) for line in _read_file("/proc/self/cgroup").splitlines())
    return {name: path for _, names, path in fields_by_line for name in names.split(",")}


def _read_cgroup_mounts() -> dict[str, tuple[str, str]]:
    """Return each controller's cgroup mount as (root group, mount point), from /proc; the key '' is cgroup v2."""
    cgroup_mounts: dict[str, tuple[str, str]] = {}
    for line in _read_file("/proc/self/mountinfo").splitlines():
        mount_fields = line.split(" ")
        filesystem = mount_fields[mount_fields.index("-") + 1 :]
        names = filesystem[2].split(",") if filesystem[0] == "cgroup" else [""] if filesystem[0] == "cgroup2" else []
        cgroup_mounts |= dict.fromkeys(names, (mount_fields[3], mount_fields[4]))
    return cgroup_mounts


def _group_path(mount: tuple[str, str], group: str) -> str:
    mount_root, mount_point = mount
    return f"{mount_point}/{group.removeprefix(mount_root).strip('/')}".rstrip("/")


def _choose_deeper_group(group: str, memory_group: str) -> str:
    return memory_group if memory_group.startswith(f"{group.rstrip('/')}/") else group


def _find_unified_hierarchy(mount_point: str, path: str) -> Cgroups | None:
    while True:
        if _can_create_child_groups(path):
            _write_each_value(f"{path}/cgroup.subtree_control", [f"+{name}" for name in _CONTROLLERS])
            controllers = _read_file(f"{path}/cgroup.subtree_control").split()
            usable_controllers = {name: path for name in _CONTROLLERS if name in controllers}
            if "memory" in usable_controllers:
                return Cgroups(2, usable_controllers)
        if path == mount_point or not path.startswith(mount_point):
            return None
        path = os.path.dirname(path)


def _can_create_child_groups(path: str) -> bool:
    trial_path = f"{path}/batchyard-trial-{os.getpid()}"
    try:
        os.makedirs(trial_path)
    except OSError:
        return False
    child_pid = os.fork()
    if child_pid == 0:
        try:
            join_group({"": trial_path})
            os._exit(0)
        finally:
            os._exit(1)
    has_joined = os.waitpid(child_pid, 0)[1] == 0
    remove_group({"": trial_path})
    return has_joined


def _list_folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _write_file(path: str, value: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(value)


def _write_each_value(path: str, values: list[str]) -> None:
    for value in values:
        with suppress(OSError):
            _write_file(path, value)


def _write_file_if_exists(path: str, value: str) -> None:
    """Write a control file if the kernel has it: some kernels have no limit on swap."""
    with suppress(FileNotFoundError):
        _write_file(path, value)
