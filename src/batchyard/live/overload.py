"""How many requests may be under way: beyond that, whoever asks is told to come back.

Source: k8s.io/apiserver, pkg/server/filters/maxinflight.go.
"""

from typing import Final

from batchyard.apiserver.request import Refused

#: Requests under way: of all, and of one user. A watch is under way until it has begun.
ALL_MAX: Final = 800
USER_MAX: Final = 400
RETRY_AFTER: Final = 1  # seconds


class Load:
    """See the module."""

    def __init__(self) -> None:
        self._by_user: dict[str, int] = {}
        self._all = 0

    def enter(self, user: str) -> None:
        """Count a request of a user until it leaves; Refused where there are too many."""
        of_user = self._by_user.get(user, 0)
        if self._all >= ALL_MAX or of_user >= USER_MAX:
            told = "Too many requests, please try again later."
            raise Refused(429, "TooManyRequests", told, {"retryAfterSeconds": RETRY_AFTER})
        self._all += 1
        self._by_user[user] = of_user + 1

    def leave(self, user: str) -> None:
        """A request of a user is answered."""
        self._all -= 1
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]
