"""Masked and read-only paths of /proc and /sys, as in container runtimes.

Sources: github.com/moby/moby (daemon/pkg/oci, defaults.go); github.com/containerd/containerd (pkg/oci, spec.go).
"""

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from batchyard.shim import linux

#: The directory in the node directory with the masks: an empty directory and an empty file.
FOLDER: Final = "masks"
#: Paths whose contents are hidden.
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
    """Create the empty directory and the empty file in a node directory."""
    os.makedirs(f"{node}/{FOLDER}/folder", exist_ok=True)
    os.close(os.open(f"{node}/{FOLDER}/file", os.O_WRONLY | os.O_CREAT, 0o444))


def options_for_proc(place: str) -> Iterator[str]:
    """Yield bubblewrap's options that mask paths of a container's /proc. `place` is the directory of the masks."""
    for path in READ_ONLY:
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in MASKED:
        if os.path.exists(path):
            yield from ("--ro-bind", _empty(place, path), path)


def hide_in_sys(place: str) -> None:
    """Mask paths of /sys in this mount namespace. A path that cannot be masked stays visible, read-only."""
    for pattern in _MASKED_OF_SYS:
        for path in glob.glob(pattern):
            with suppress(OSError):
                linux.bind(_empty(place, path), path)


def _empty(place: str, path: str) -> str:
    return f"{place}/folder" if os.path.isdir(path) else f"{place}/file"
