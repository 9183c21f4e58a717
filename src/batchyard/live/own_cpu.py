"""How busy a thread is: how long it ran, or would have if others had not had its CPU."""

import os
from typing import Final

from batchyard.live.clock import own_cpu

#: Nanoseconds of a thread on a CPU, and waiting for one; then how often. Source: Linux's scheduler/sched-stats.rst.
_STATISTICS: Final = "/proc/thread-self/schedstat"
_LENGTH_MAX: Final = 128


def wanted_cpu() -> float:
    """Seconds in which the thread that asks wanted a CPU so far; where the kernel tells of none, those it had."""
    try:
        file = os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return own_cpu()
    try:
        ran, waited, *_ = os.read(file, _LENGTH_MAX).split()
    finally:
        os.close(file)
    return (int(ran) + int(waited)) / 1e9
