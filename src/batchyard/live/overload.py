"""How many requests may be under way: beyond that, whoever asks is told to come back.

Source: k8s.io/apiserver, pkg/server/filters/maxinflight.go.
"""

from typing import Final

from batchyard.apiserver.request import Refused

#: Requests under way: of all, and of one user. A watch is under way until it has begun.
ALL_MAX: Final = 800
USER_MAX: Final = 400
RETRY_AFTER: Final = 1  # seconds
#: Watches of one user: of the connections that there may be, some are left to others.
WATCHES_MAX: Final = 400


class Load:
    """See the module."""

    def __init__(self) -> None:
        self._by_user: dict[str, int] = {}
        self._watches: dict[str, int] = {}
        self._all = 0

    def enter(self, user: str, *, is_watch: bool = False) -> None:
        """Count a request of a user until it leaves; Refused where there are too many, or too many of his watches."""
        of_user = self._by_user.get(user, 0)
        if self._all >= ALL_MAX or of_user >= USER_MAX:
            raise too_many()
        if is_watch and self._watches.get(user, 0) >= WATCHES_MAX:
            raise too_many()
        self._all += 1
        self._by_user[user] = of_user + 1

    def leave(self, user: str) -> None:
        """A request of a user is answered."""
        self._all -= 1
        _take_one(self._by_user, user)

    def begin_watch(self, user: str) -> None:
        """Count a watch of a user until it ends."""
        self._watches[user] = self._watches.get(user, 0) + 1

    def end_watch(self, user: str) -> None:
        """A watch of a user has ended."""
        _take_one(self._watches, user)


def too_many() -> Refused:
    """The refusal of whoever asks too much at once."""
    told = "Too many requests, please try again later."
    return Refused(429, "TooManyRequests", told, {"retryAfterSeconds": RETRY_AFTER})


def _take_one(counts: dict[str, int], user: str) -> None:
    counts[user] -= 1
    if not counts[user]:
        del counts[user]
