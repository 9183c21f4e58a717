"""What time it is: the programs of the node live in real time alone."""

import time


def now() -> int:
    """Whole microseconds since the epoch."""
    return time.time_ns() // 1000


def monotonic() -> float:
    """Seconds that only ever grow, for waits."""
    return time.monotonic()


def text(instant: int) -> str:
    """Microseconds since the epoch as RFC3339 with nanoseconds."""
    seconds, micros = divmod(instant, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}000Z"
