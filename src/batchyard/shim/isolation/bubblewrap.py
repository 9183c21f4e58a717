"""bubblewrap options of a container: its root filesystem, masked paths, devices and mounts."""

import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from batchyard.shim import linux, state_dir
from batchyard.shim.images import store

# --- masked paths ---
#
# Masked and read-only paths of /proc and /sys, as in containerd and Docker.
#
# Sources: github.com/moby/moby (daemon/pkg/oci, defaults.go); github.com/containerd/containerd (pkg/oci, spec.go).


#: The directory in the node directory with the empty directory and the empty file that hide masked paths.
FOLDER: Final = "masks"
#: Paths of /proc whose contents are hidden.
MASKED: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
)
_MASKED_OF_SYS: Final = (
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/sys/devices/system/cpu/cpu*/thermal_throttle",
)
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def make(node: str) -> None:
    """Create the empty directory and the empty file that hide masked paths, in a node directory."""
    os.makedirs(f"{node}/{FOLDER}/folder", exist_ok=True)
    os.close(os.open(f"{node}/{FOLDER}/file", os.O_WRONLY | os.O_CREAT, 0o444))


def options_for_proc(place: str) -> Iterator[str]:
    """Yield bubblewrap's options that mask paths of a container's /proc; `masks` is the directory of the masks."""
    for path in READ_ONLY:
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in MASKED:
        if os.path.exists(path):
            yield from ("--ro-bind", _empty(place, path), path)


def hide_in_sys(place: str) -> None:
    """Mask paths of /sys in this process's mount namespace. A path that cannot be masked stays visible, read-only."""
    for pattern in _MASKED_OF_SYS:
        for path in glob.glob(pattern):
            with suppress(OSError):
                linux.bind(_empty(place, path), path)


def _empty(place: str, path: str) -> str:
    return f"{place}/folder" if os.path.isdir(path) else f"{place}/file"


class ContainerPaths(NamedTuple):
    """Absolute paths of the directories of a node, a pod, its sandbox, a run, and the masks for paths of /proc."""

    node: str
    pod: str
    sandbox: str
    run: str
    masks: str


#: The option that gives a container its own user namespace.
OWN_USERS = ("--unshare-user",)

#: Symbolic links in a container in addition to those of the machine.
OWN_LINKS = {"/var/tmp": "/tmp"}

#: Names and modes of a container's writable directories on disk; they are removed with the run.
WRITABLE = {"tmp": 0o1777, "home": 0o700, "folder": 0o755}


class ContainerView(NamedTuple):
    """The machine's directories that a container sees, by mount point (only `/` for a root filesystem), and links."""

    folders: Mapping[str, str]
    links: Mapping[str, str]
    #: Whether the working directory is missing in these directories and in the container's own files.
    lacks_folder: bool
    #: Resolves the symbolic links of a path in the container.
    place: Callable[[str], str]


def options(
    spec: Mapping[str, Any], places: ContainerPaths, view: ContainerView, environment: Mapping[str, str]
) -> list[str]:
    """Return bubblewrap's options for a run's spec with absolute mount sources, without options for descriptors."""
    return [
        "--die-with-parent",
        *([] if spec["tty"] else ["--new-session"]),
        "--unshare-pid",
        "--unshare-cgroup-try",
        "--cap-drop",
        "ALL",
        *_user(spec["user"]),
        *_root(view, places),
        *_devices(spec["devices"]),
        *([] if spec.get("procMount") == "Unmasked" else options_for_proc(places.masks)),
        *_settings(places, view),
        *_folder(spec, places, view),
        *_mounts(spec["mounts"], view),
        *_termination_log(spec["terminationMessagePath"], places, view),
        *(["--remount-ro", "/"] if spec["readOnlyRoot"] else []),
        *(part for name, value in environment.items() for part in ("--setenv", name, value)),
    ]


def _user(user: Mapping[str, int] | None) -> list[str]:
    """Return the options that run the container as `user`, mapped to the user that starts bubblewrap."""
    return [*OWN_USERS, "--uid", str(user["uid"]), "--gid", str(user["gid"])] if user else []


def targets(spec: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the mount points and the working directory that must exist, each with whether it is a directory."""
    mounts = [(mount["target"], os.path.isdir(mount["source"])) for mount in spec["mounts"]]
    folder = [(spec["workingDir"], True)] if spec["workingDir"] else []
    last = [(spec["terminationMessagePath"], False)] if spec["terminationMessagePath"] else []
    return [*mounts, *folder, *last]


def lacks_folder(spec: Mapping[str, Any], folders: Mapping[str, str]) -> bool:
    """Report whether the working directory is missing in the visible directories and in the container's own files."""
    folder = spec["workingDir"] or "/"
    own = ["/dev", "/proc", "/sys", "/tmp", "/root", *(mount["target"] for mount in spec["mounts"])]
    seen = [source + folder.removeprefix(place) for place, source in folders.items() if store.is_within(folder, place)]
    is_seen = any(os.path.isdir(path) for path in seen)
    return not (folder == "/" or is_seen or any(store.is_within(folder, place) for place in own))


def _root(view: ContainerView, places: ContainerPaths) -> list[str]:
    """Return the options for the root filesystem: an unpacked image, or the machine's directories, read-only."""
    if "/" in view.folders:
        return ["--bind", view.folders["/"], "/"]
    own = f"{places.run}/root"
    made = ["--dir", "/run", "--dir", "/var", "--symlink", OWN_LINKS["/var/tmp"], "/var/tmp"]
    made += ["--bind", f"{own}/tmp", "/tmp", "--bind", f"{own}/home", "/root"]
    made += [part for place, source in view.folders.items() for part in ("--ro-bind", source, place)]
    return made + [part for place, target in view.links.items() for part in ("--symlink", target, place)]


def _devices(devices: Sequence[str]) -> list[str]:
    """Return the options for /proc, /sys, the standard devices, and the devices assigned to the container."""
    given = [part for device in devices for part in ("--dev-bind", device, device)]
    return ["--proc", "/proc", "--ro-bind", "/sys", "/sys", "--dev", "/dev", *given]


def _settings(places: ContainerPaths, view: ContainerView) -> list[str]:
    """Return the options that mount the sandbox's files hosts, hostname and resolv.conf in /etc."""
    files = {f"{places.sandbox}/{name}": view.place(f"/etc/{name}") for name in state_dir.NAMES}
    return [part for file, target in files.items() for part in ("--bind", file, target)]


def _mounts(mounts: Sequence[Mapping[str, Any]], view: ContainerView) -> list[str]:
    """Return the options that mount the volumes, outer mounts first."""
    found: list[str] = []
    for mount in sorted(mounts, key=lambda mount: mount["target"].rstrip("/").count("/")):
        found += ["--ro-bind" if mount["readOnly"] else "--bind", mount["source"], view.place(mount["target"])]
    return found


def _termination_log(path: str, places: ContainerPaths, view: ContainerView) -> list[str]:
    return ["--bind", f"{places.run}/termination-log", view.place(path)] if path else []


def _folder(spec: Mapping[str, Any], places: ContainerPaths, view: ContainerView) -> list[str]:
    """Return the options that create the working directory, if it is missing, and change to it."""
    folder = spec["workingDir"] or "/"
    if view.lacks_folder:
        made = ["--bind", f"{places.run}/root/folder", view.place(folder)]
    elif folder == "/" or _is_taken(view.place(folder), spec):
        made = []
    else:
        made = ["--dir", view.place(folder)]
    return [*made, "--chdir", folder]


def _is_taken(place: str, spec: Mapping[str, Any]) -> bool:
    """Report whether a path lies in a mount, where bubblewrap must not follow or create anything."""
    taken = ["/dev", "/proc", "/sys", *(mount["target"] for mount in spec["mounts"])]
    return any(store.is_within(place, each) for each in taken)
