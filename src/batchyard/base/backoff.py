"""Exponential backoff with an upper bound and without jitter."""

from typing import Final

from batchyard.base.instant import Duration

_DOUBLINGS_MAX: Final = 62  # enough to reach any bound


def backoff(base: Duration, longest: Duration, tries: int) -> Duration:
    """Return the wait before a try; tries count from one."""
    return min(base << min(tries - 1, _DOUBLINGS_MAX), longest)
