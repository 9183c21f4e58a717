"""How long to wait before the next try: twice as long each time, up to a bound. Nothing is left to chance."""

from typing import Final

from batchyard.base.instant import Duration

_DOUBLINGS_MAX: Final = 62  # whatever the bound, it is reached by then


def backoff(base: Duration, longest: Duration, tries: int) -> Duration:
    """The wait before a try, counted from one."""
    return min(base << min(tries - 1, _DOUBLINGS_MAX), longest)
