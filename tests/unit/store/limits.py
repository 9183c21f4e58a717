"""Resource limits of the process."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Limit the size of written files in bytes, within the context."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
