"""Shows a follower what watches tell, from when all has been read, and wakes it when it wants to look again.

A watch that had to begin anew with a list has a gap: what happened meanwhile nobody knows, nor in which order. So has a
kind that was listed first where others were listed later. Then all begins anew, with what is there.
"""

from collections.abc import Callable, Sequence

from batchyard.base.instant import Instant
from batchyard.client.informer import Informer
from batchyard.client.rest import RestClient
from batchyard.client.staleness import CaughtUp
from batchyard.client.transport import Transport
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Kernel, Ticket
from batchyard.scheduling.cycle import Policy
from batchyard.shadow.findings import Finding
from batchyard.shadow.followers import Followers
from batchyard.shadow.observed import changes_of
from batchyard.shadow.state import Terms


class Looking:
    """See the module. It has to hear what informers tell (`heard`); the rest it sees to."""

    def __init__(
        self,
        client: RestClient,
        transport: Transport,
        timers: Kernel,
        how: tuple[Policy, Terms],
        *,
        tell: Callable[[Finding], None],
    ) -> None:
        self._client = client
        self._timers = timers
        self._caught_up = CaughtUp(client, transport, timers, self._look)
        self.followers = Followers(*how, tell, self._knows)
        self.has_begun = False
        #: Whether it looks no more.
        self.is_over = False
        #: To which revision everything was told when it began.
        self._begun_at = 0
        #: How often each kind has been listed.
        self._listings: dict[str, int] = {}
        self._wakes_at: Instant | None = None
        self._ticket: Ticket | None = None
        client.subscribe(self._observe)

    def heard(self, informer: Informer) -> None:
        """A list or a watch has told something."""
        if self.is_over:
            return
        if not self.has_begun and self._client.is_synced:
            self.has_begun = True
            self._begin()
        self._listings[informer.info.constant] = informer.listings
        self._caught_up.heard(informer)

    def _begin(self) -> None:
        """What is there is what it begins with."""
        self._begun_at = max(informer.revision or 0 for informer in self._client.informers.values())
        self.followers.recall(self._client.everything(), self._timers.now())
        self._look()

    def _observe(self, events: Sequence[WatchEvent]) -> None:
        if not self.has_begun or self.is_over:
            return
        if self._has_gap(events):
            self.followers.unseen(sum(each.decision is not None for event in events for each in changes_of(event)))
            self._begin()
        else:
            self.followers.observe(events, self._timers.now())
            self._wake_later()

    def _has_gap(self, events: Sequence[WatchEvent]) -> bool:
        """Whether it is not known what happened before these changes: they are of one kind."""
        kind = events[0].key.kind
        is_listed = self._client.informers[kind].listings != self._listings.get(kind)
        return is_listed or any(event.revision <= self._begun_at for event in events)

    def _knows(self, instant: Instant) -> bool:
        if self._caught_up.known_to >= instant:
            return True
        self._caught_up.ask()
        return False

    def _look(self) -> None:
        if self.is_over:
            return
        self._ticket = None
        self.followers.observe((), self._timers.now())
        self._wake_later()

    def _wake_later(self) -> None:
        when = self.followers.next_look()
        if self._ticket is not None and self._wakes_at == when:
            return
        if self._ticket is not None:
            self._timers.cancel(self._ticket)
            self._ticket = None
        if when is not None:
            self._wakes_at = when
            self._ticket = self._timers.call_at(when, self._look)
