"""How many requests may be under way: beyond that, whoever asks is told to come back.

Source: k8s.io/apiserver, pkg/server/filters/maxinflight.go.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from batchyard.apiserver.request import Refused

#: Requests under way: of all, and of one user. A watch is under way until it has begun.
ALL_MAX: Final = 800
USER_MAX: Final = 400
RETRY_AFTER: Final = 1  # seconds


class Load:
    """See the module."""

    def __init__(self) -> None:
        self._by_user: Counter[str] = Counter()
        self._all = 0

    @contextmanager
    def of(self, user: str) -> Iterator[None]:
        """Count a request of a user while it is under way; Refused where there are too many."""
        if self._all >= ALL_MAX or self._by_user[user] >= USER_MAX:
            told = "Too many requests, please try again later."
            raise Refused(429, "TooManyRequests", told, {"retryAfterSeconds": RETRY_AFTER})
        self._all += 1
        self._by_user[user] += 1
        try:
            yield
        finally:
            self._all -= 1
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]
