"""The books of a world with machines: what they cost, and how long gangs took to recover."""

from collections.abc import Sequence
from typing import Final

from batchyard.accounting.accounts import Statement, statement_of
from batchyard.accounting.ledger import Ledger
from batchyard.api import scheme
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Kernel
from batchyard.sim.recovery import Recoveries

#: The kinds that books are kept of, each after those on which it rests.
_RECALLED: Final = (scheme.JOB_SET, scheme.JOB, scheme.WORKLOAD, scheme.INSTANCE, scheme.NODE, scheme.POD)


class Books:
    """Kept from when they are opened, which is before anything happens."""

    def __init__(self, client: LocalClient, kernel: Kernel) -> None:
        self._kernel = kernel
        self.ledger = Ledger(client)
        self.recoveries = Recoveries()
        client.subscribe(self._keep)

    def recall(self, shown: Sequence[WatchEvent]) -> None:
        """Take note of what is there from before, told as additions: it counts from now on."""
        for kind in _RECALLED:
            self._keep([event for event in shown if event.key.kind == kind])

    def statement(self, now: Instant) -> Statement:
        """What it came to until now. Pods that still run count as running."""
        return statement_of(self.ledger.accounts(now))

    def _keep(self, batch: Sequence[WatchEvent]) -> None:
        now = self._kernel.now()
        self.ledger.observe(batch, now)
        self.recoveries.observe(batch, now)
