"""Clock of the node's programs, which always use real time."""

import time


def now() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


def monotonic() -> float:
    """Monotonic seconds, for timeouts."""
    return time.monotonic()


def text(instant: int) -> str:
    """Format microseconds since the epoch as RFC 3339 with nanoseconds."""
    seconds, micros = divmod(instant, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}000Z"
