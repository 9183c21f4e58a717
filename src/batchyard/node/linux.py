"""Calls of Linux that Python 3.11 has no name for."""

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def adopt_orphans() -> None:
    """Be the one to whom children fall whose parents below this process have ended."""
    _checked(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent(signal: int) -> None:
    """Be sent the signal when the process that forked this one ends."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0))
