"""What this process uses, by the names of Prometheus's clients.

Source: prometheus.io/docs/instrumenting/writing_clientlibs.
"""

import gc
import os
import platform
import resource
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from batchyard.metrics.families import text_of
from batchyard.metrics.names import metric

_PAGE: Final = resource.getpagesize()
_TICK: Final = os.sysconf("SC_CLK_TCK")


def process_texts() -> Iterator[str]:
    """All of them."""
    fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    booted = [line for line in Path("/proc/stat").read_text("ascii").splitlines() if line.startswith("btime ")]
    figures = {
        "process_cpu_seconds_total": (int(fields[11]) + int(fields[12])) / _TICK,
        "process_resident_memory_bytes": int(fields[21]) * _PAGE,
        "process_virtual_memory_bytes": int(fields[20]),
        "process_start_time_seconds": int(booted[0].split()[1]) + int(fields[19]) / _TICK,
        "process_open_fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a name for each is all that is wanted
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    for name, value in figures.items():
        yield text_of(metric(name), [((), value)])
    yield _python()
    stats = list(enumerate(gc.get_stats()))
    yield text_of(metric("python_gc_collections_total"), (((str(n),), each["collections"]) for n, each in stats))
    yield text_of(metric("python_gc_objects_collected_total"), (((str(n),), each["collected"]) for n, each in stats))


def build_texts() -> Iterator[str]:
    """What is running, in Kueue's words: of Go's there are none."""
    machine = f"{platform.system().lower()}/{platform.machine()}"
    labels = (f"v{version('batchyard')}", "", "", "", platform.python_implementation(), machine)
    yield text_of(metric("kueue_build_info"), [(labels, 1)])


def _python() -> str:
    parts = platform.python_version_tuple()
    labels = (platform.python_implementation(), *parts, platform.python_version())
    return text_of(metric("python_info"), [(labels, 1)])
