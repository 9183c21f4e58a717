"""The books of a world with machines: costs, and the recovery times of gangs."""

from collections.abc import Sequence
from typing import Final

from batchyard.accounting.accounts import Statement, statement_of
from batchyard.accounting.ledger import CostLedger
from batchyard.api import scheme
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Kernel
from batchyard.sim.recovery import Recoveries

#: The kinds that the books depend on, each after the kinds that it refers to.
_RECALLED: Final = (scheme.JOB_SET, scheme.JOB, scheme.WORKLOAD, scheme.INSTANCE, scheme.NODE, scheme.POD)


class RunAccounting:
    """The cost ledger and the recoveries of a world, maintained from its start."""

    def __init__(self, client: LocalClient, kernel: Kernel) -> None:
        self._kernel = kernel
        self.ledger = CostLedger(client)
        self.recoveries = Recoveries()
        client.subscribe(self._keep)

    def recall(self, shown: Sequence[WatchEvent]) -> None:
        """Add the objects of the initial state, given as ADDED events; they count from now on."""
        for kind in _RECALLED:
            self._keep([event for event in shown if event.key.kind == kind])

    def statement(self, now: Instant) -> Statement:
        """Return the costs until now. Running pods count as running."""
        return statement_of(self.ledger.accounts(now))

    def _keep(self, batch: Sequence[WatchEvent]) -> None:
        now = self._kernel.now()
        self.ledger.observe(batch, now)
        self.recoveries.observe(batch, now)
