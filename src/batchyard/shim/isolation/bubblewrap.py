"""bubblewrap options that set up a container: its root filesystem, masked paths, devices and mounts."""

import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from batchyard.shim import linux, state_dir
from batchyard.shim.images import image_kinds

# Masked and read-only paths of /proc and /sys, as in containerd and Docker.
#
# Sources: github.com/moby/moby (daemon/pkg/oci, defaults.go); github.com/containerd/containerd (pkg/oci, spec.go).


#: The directory in the node directory with the empty directory and the empty file that hide masked paths.
MASKS_FOLDER: Final = "masks"
#: Paths of /proc whose contents are hidden.
MASKED_PROC_PATHS: Final = (
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
_MASKED_SYS_PATTERNS: Final = (
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/sys/devices/system/cpu/cpu*/thermal_throttle",
)
READ_ONLY_PROC_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def create_masks(node_folder: str) -> None:
    """Create, in a node directory, the empty directory and the empty file that are mounted over masked paths."""
    os.makedirs(f"{node_folder}/{MASKS_FOLDER}/folder", exist_ok=True)
    os.close(os.open(f"{node_folder}/{MASKS_FOLDER}/file", os.O_WRONLY | os.O_CREAT, 0o444))


def proc_masking_options(masks_folder: str) -> Iterator[str]:
    """Yield bubblewrap's options that hide paths of /proc or make them read-only.

    `masks_folder` is the directory that `create_masks` has filled.
    """
    for path in READ_ONLY_PROC_PATHS:
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in MASKED_PROC_PATHS:
        if os.path.exists(path):
            yield from ("--ro-bind", _mask_path(masks_folder, path), path)


def mask_sys_paths(masks_folder: str) -> None:
    """Hide paths of /sys in this mount namespace, where possible.

    `masks_folder` is the directory that `create_masks` has filled.
    """
    for pattern in _MASKED_SYS_PATTERNS:
        for path in glob.glob(pattern):
            with suppress(OSError):
                linux.bind_mount(_mask_path(masks_folder, path), path)


def _mask_path(masks_folder: str, path: str) -> str:
    return f"{masks_folder}/folder" if os.path.isdir(path) else f"{masks_folder}/file"


class ContainerPaths(NamedTuple):
    """Absolute paths of directories: a container's run, its pod, sandbox and node, and the masks of /proc and /sys.

    `node` and `pod` are '' if the paths are of copies for the pod's own Unix user.
    """

    node: str
    pod: str
    sandbox: str
    run: str
    masks_folder: str


#: The option that gives a container its own user namespace.
USER_NAMESPACE_OPTIONS = ("--unshare-user",)

#: Symbolic links in a container in addition to those of the machine.
CONTAINER_LINKS = {"/var/tmp": "/tmp"}

#: Names and modes of a container's writable directories on disk; they are removed with the run.
WRITABLE_FOLDERS = {"tmp": 0o1777, "home": 0o700, "folder": 0o755}


class ContainerView(NamedTuple):
    """What a container sees of the machine: source directories by mount point, and symbolic links.

    The only mount point is `/` if the image has a root filesystem.
    """

    folder_sources: Mapping[str, str]
    links: Mapping[str, str]
    #: Whether the working directory is missing in these directories and in the container's own files.
    lacks_working_directory: bool
    #: Resolves the symbolic links of a path in the container.
    resolve_path: Callable[[str], str]


def bubblewrap_options(
    spec: Mapping[str, Any], paths: ContainerPaths, container_view: ContainerView, environment: Mapping[str, str]
) -> list[str]:
    """Return bubblewrap's options for a container's spec, except the options that take file descriptors.

    The sources of the mounts in the spec are absolute paths.
    """
    return [
        "--die-with-parent",
        *([] if spec["tty"] else ["--new-session"]),
        "--unshare-pid",
        "--unshare-cgroup-try",
        "--cap-drop",
        "ALL",
        *_user_options(spec["user"]),
        *_root_options(container_view, paths),
        *_device_options(spec["devices"]),
        *([] if spec.get("procMount") == "Unmasked" else proc_masking_options(paths.masks_folder)),
        *_etc_options(paths, container_view),
        *_working_directory_options(spec, paths, container_view),
        *_mount_options(spec["mounts"], container_view),
        *_termination_log_options(spec["terminationMessagePath"], paths, container_view),
        *(["--remount-ro", "/"] if spec["readOnlyRoot"] else []),
        *(option for name, value in environment.items() for option in ("--setenv", name, value)),
    ]


def _user_options(user: Mapping[str, int] | None) -> list[str]:
    return [*USER_NAMESPACE_OPTIONS, "--uid", str(user["uid"]), "--gid", str(user["gid"])] if user else []


def list_mount_points(spec: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the paths that must exist in a container, each with whether it is a directory."""
    volume_mount_points = [(mount["target"], os.path.isdir(mount["source"])) for mount in spec["mounts"]]
    working_directory_points = [(spec["workingDir"], True)] if spec["workingDir"] else []
    termination_log_points = [(spec["terminationMessagePath"], False)] if spec["terminationMessagePath"] else []
    return [*volume_mount_points, *working_directory_points, *termination_log_points]


def lacks_working_directory(spec: Mapping[str, Any], folder_sources: Mapping[str, str]) -> bool:
    """Return whether a container's working directory is in none of its mounts and does not exist in `folder_sources`.

    `folder_sources` maps mount points in the container to the directories of the machine that it sees there.
    """
    working_directory = spec["workingDir"] or "/"
    mounted_paths = ["/dev", "/proc", "/sys", "/tmp", "/root", *(mount["target"] for mount in spec["mounts"])]
    candidate_paths = [
        source + working_directory.removeprefix(mount_point)
        for mount_point, source in folder_sources.items()
        if image_kinds.is_within(working_directory, mount_point)
    ]
    is_visible = any(os.path.isdir(path) for path in candidate_paths)
    return not (
        working_directory == "/"
        or is_visible
        or any(image_kinds.is_within(working_directory, mount_point) for mount_point in mounted_paths)
    )


def _root_options(view: ContainerView, paths: ContainerPaths) -> list[str]:
    if "/" in view.folder_sources:
        return ["--bind", view.folder_sources["/"], "/"]
    run_root = f"{paths.run}/root"
    root_options = ["--dir", "/run", "--dir", "/var", "--symlink", CONTAINER_LINKS["/var/tmp"], "/var/tmp"]
    root_options += ["--bind", f"{run_root}/tmp", "/tmp", "--bind", f"{run_root}/home", "/root"]
    root_options += [option for path, source in view.folder_sources.items() for option in ("--ro-bind", source, path)]
    return root_options + [option for path, target in view.links.items() for option in ("--symlink", target, path)]


def _device_options(devices: Sequence[str]) -> list[str]:
    device_options = [option for device in devices for option in ("--dev-bind", device, device)]
    return ["--proc", "/proc", "--ro-bind", "/sys", "/sys", "--dev", "/dev", *device_options]


def _etc_options(paths: ContainerPaths, view: ContainerView) -> list[str]:
    etc_paths = {f"{paths.sandbox}/{name}": view.resolve_path(f"/etc/{name}") for name in state_dir.SANDBOX_FILES}
    return [option for file, target in etc_paths.items() for option in ("--bind", file, target)]


def _mount_options(mounts: Sequence[Mapping[str, Any]], view: ContainerView) -> list[str]:
    """Return bubblewrap's options that mount the container's volumes, outer mount points first."""
    mount_options: list[str] = []
    for mount in sorted(mounts, key=lambda mount: mount["target"].rstrip("/").count("/")):
        resolved_target = view.resolve_path(mount["target"])
        mount_options += ["--ro-bind" if mount["readOnly"] else "--bind", mount["source"], resolved_target]
    return mount_options


def _termination_log_options(path: str, paths: ContainerPaths, view: ContainerView) -> list[str]:
    return ["--bind", f"{paths.run}/termination-log", view.resolve_path(path)] if path else []


def _working_directory_options(spec: Mapping[str, Any], paths: ContainerPaths, view: ContainerView) -> list[str]:
    working_directory = spec["workingDir"] or "/"
    if view.lacks_working_directory:
        bind_options = ["--bind", f"{paths.run}/root/folder", view.resolve_path(working_directory)]
    elif working_directory == "/" or _is_in_container_mount(view.resolve_path(working_directory), spec):
        bind_options = []
    else:
        bind_options = ["--dir", view.resolve_path(working_directory)]
    return [*bind_options, "--chdir", working_directory]


def _is_in_container_mount(path: str, spec: Mapping[str, Any]) -> bool:
    """Return whether a container path lies in a mount, in which bubblewrap must not create directories."""
    mount_points = ["/dev", "/proc", "/sys", *(mount["target"] for mount in spec["mounts"])]
    return any(image_kinds.is_within(path, mount_point) for mount_point in mount_points)
