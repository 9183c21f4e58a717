"""How long to wait before another try: longer with each that failed, up to a bound, and not as long as others."""

from typing import Final

from batchyard.base.chance import draw
from batchyard.base.instant import MILLISECOND, SECOND, Duration

FIRST: Final = 200 * MILLISECOND
LONGEST: Final = 30 * SECOND


def backoff(failures: int, seed: int, *names: str) -> Duration:
    """The wait after so many failures in a row: half of it certain, half of it by chance."""
    if not failures:
        return 0
    whole = min(FIRST << min(failures - 1, 32), LONGEST)
    return whole // 2 + draw(seed, *names, str(failures)) % (whole // 2 + 1)
