"""How many requests may be under way: beyond that, whoever asks is told to come back.

Source: k8s.io/apiserver, pkg/server/filters/maxinflight.go.
"""

from typing import Final

from batchyard.apiserver.authentication import User
from batchyard.apiserver.flows import flow_of, is_exempt
from batchyard.apiserver.request import Refused

#: Requests under way: of all, and of one user. A watch is under way until it has begun.
ALL_MAX: Final = 800
USER_MAX: Final = 400
RETRY_AFTER: Final = 1  # seconds
#: Watches of one user: of the connections that there may be, some are left to others.
WATCHES_MAX: Final = 400


class Load:
    """The requests and watches that are under way, of each flow."""

    def __init__(self) -> None:
        self._by_flow: dict[str, int] = {}
        self._watches: dict[str, int] = {}
        self._all = 0

    def enter(self, user: User, *, is_watch: bool = False) -> None:
        """Count a request until it leaves; Refused where there are too many, or too many of the user's flow.

        The owner's requests are counted, and never refused.
        """
        flow = flow_of(user)
        of_flow = self._by_flow.get(flow, 0)
        if not is_exempt(user):
            if self._all >= ALL_MAX or of_flow >= USER_MAX:
                raise too_many()
            if is_watch and self._watches.get(flow, 0) >= WATCHES_MAX:
                raise too_many()
        self._all += 1
        self._by_flow[flow] = of_flow + 1

    def leave(self, user: User) -> None:
        """A request of a user is answered."""
        self._all -= 1
        _take_one(self._by_flow, flow_of(user))

    def begin_watch(self, user: User) -> None:
        """Count a watch of a user until it ends."""
        flow = flow_of(user)
        self._watches[flow] = self._watches.get(flow, 0) + 1

    def end_watch(self, user: User) -> None:
        """A watch of a user has ended."""
        _take_one(self._watches, flow_of(user))


def too_many() -> Refused:
    """The refusal of whoever asks too much at once."""
    told = "Too many requests, please try again later."
    return Refused(429, "TooManyRequests", told, {"retryAfterSeconds": RETRY_AFTER})


def _take_one(counts: dict[str, int], user: str) -> None:
    counts[user] -= 1
    if not counts[user]:
        del counts[user]
