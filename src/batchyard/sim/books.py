"""The books of a world with machines: what they cost, and how long gangs took to recover."""

from collections.abc import Sequence

from batchyard.client.local import LocalClient
from batchyard.ports.client import WatchEvent
from batchyard.ports.kernel import Kernel
from batchyard.sim.accounts import Accounts
from batchyard.sim.recovery import Recoveries


class Books:
    """Kept from when they are opened, which is before anything happens."""

    def __init__(self, client: LocalClient, kernel: Kernel) -> None:
        self._kernel = kernel
        self.accounts = Accounts(client)
        self.recoveries = Recoveries()
        client.subscribe(self._keep)

    def _keep(self, batch: Sequence[WatchEvent]) -> None:
        now = self._kernel.now()
        self.accounts.observe(batch, now)
        self.recoveries.observe(batch, now)
