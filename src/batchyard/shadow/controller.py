"""Shadow controller: feeds watch events to the followers after the initial list, and schedules their checks.

A watch that restarts with a list has a gap: the changes meanwhile and their order are unknown. A kind that is listed
before other kinds are complete has one too. After a gap, the followers restart with the current objects.
"""

from collections.abc import Callable, Sequence

from batchyard.base.instant import Instant
from batchyard.client.informer import Informer
from batchyard.client.rest import RestClient
from batchyard.client.staleness import StalenessCheck
from batchyard.client.transport import Transport
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Kernel, Ticket
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.shadow.findings import Divergence
from batchyard.shadow.followers import Followers
from batchyard.shadow.observed import changes_of
from batchyard.shadow.state import ShadowSettings


class ShadowController:
    """The followers and their clients. Informers must call `heard`; the controller does the rest."""

    def __init__(
        self,
        client: RestClient,
        transport: Transport,
        timers: Kernel,
        how: tuple[SchedulingPolicy, ShadowSettings],
        *,
        report: Callable[[Divergence], None],
    ) -> None:
        self._client = client
        self._timers = timers
        self._caught_up = StalenessCheck(client, transport, timers, self._look)
        self.followers = Followers(*how, report, self._knows)
        self.has_begun = False
        #: Whether it is stopped.
        self.is_over = False
        #: The highest revision of the initial lists.
        self._begun_at = 0
        #: The number of lists by kind.
        self._listings: dict[str, int] = {}
        self._wakes_at: Instant | None = None
        self._ticket: Ticket | None = None
        client.subscribe(self._observe)

    def heard(self, informer: Informer) -> None:
        """Process a report of an informer: a list or a watch event has arrived."""
        if self.is_over:
            return
        if not self.has_begun and self._client.is_synced:
            self.has_begun = True
            self._begin()
        self._listings[informer.info.constant] = informer.listings
        self._caught_up.heard(informer)

    def _begin(self) -> None:
        """Load the current objects as the initial state."""
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
        """Report whether changes before these are missing; all of them are of one kind."""
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
