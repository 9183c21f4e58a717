"""The paths of /proc and /sys that containers may not see or change, as container runtimes mask them.

Sources: github.com/moby/moby (daemon/pkg/oci, defaults.go); github.com/containerd/containerd (pkg/oci, spec.go).
"""

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from batchyard.shim import linux

#: The folder with what stands for them, in the node's folder: an empty folder and an empty file.
FOLDER: Final = "masks"
#: Their contents are hidden.
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
    """Make the empty folder and the empty file in a node's folder."""
    os.makedirs(f"{node}/{FOLDER}/folder", exist_ok=True)
    os.close(os.open(f"{node}/{FOLDER}/file", os.O_WRONLY | os.O_CREAT, 0o444))


def options_for_proc(place: str) -> Iterator[str]:
    """Yield bubblewrap's options that mask paths of a container's /proc. `place` is where the empty ones are."""
    for path in READ_ONLY:
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in MASKED:
        if os.path.exists(path):
            yield from ("--ro-bind", _empty(place, path), path)


def hide_in_sys(place: str) -> None:
    """Mask paths of /sys in this mount namespace. A path that cannot be masked here stays as it is: it is read-only."""
    for pattern in _MASKED_OF_SYS:
        for path in glob.glob(pattern):
            with suppress(OSError):
                linux.bind(_empty(place, path), path)


def _empty(place: str, path: str) -> str:
    return f"{place}/folder" if os.path.isdir(path) else f"{place}/file"
