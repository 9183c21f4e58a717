"""Cost conservation: the accounts add up to the cost of the machines, each billed from its start to its end.

The expected cost is computed from Instances and prices alone. It is compared with an independent ledger. If the
platform keeps its own ledger, it is also compared with its records and its ledger together, also after a restart.
Records are rounded: by a millionth of a dollar for each hour, and for each start of the platform.
"""

from batchyard.accounting.accounts import WHOLE
from batchyard.accounting.ledger import CostLedger
from batchyard.accounting.records import PLATFORM, hour_name, is_paid, paid_from, read
from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import HOUR, Instant
from batchyard.cloud.catalog.prices import pool_price
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.invariants.invariant import Invariant, WorldView
from batchyard.sim.world import EPOCH

_MICRODOLLAR = HOUR * WHOLE


class CostsAddUp(Invariant):
    """The ledger and the records add up to the cost of the machines."""

    name = "costs_add_up"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._ledger = CostLedger(scene.world.client)
        #: By name, the time up to which a machine is paid, and its price per hour.
        self._paid: dict[str, tuple[Instant, int]] = {}
        #: The cost so far: millionths of dollars per hour, times microseconds.
        self._cost = 0
        self._starts = 0
        self._platform: object = None

    def look(self, event: WatchEvent) -> None:
        """Record machines that start and end, and new prices."""
        now = self.scene.world.kernel.now()
        self._ledger.observe((event,), now)
        if event.key.kind == scheme.CLUSTER:
            for name in list(self._paid):
                self._pay(name, now)
                instance = self.scene.world.client.get(Key(scheme.INSTANCE, "", name))
                if instance is not None:
                    self._paid[name] = now, self._price(instance["spec"]["pool"], self._paid[name][1])
        if event.key.kind != scheme.INSTANCE:
            return
        name = event.key.name
        if event.type is not EventType.DELETED and is_paid(event.obj):
            since = paid_from(event.obj) or now
            self._paid.setdefault(name, (since, self._price(event.obj["spec"]["pool"], 0)))
        elif name in self._paid:
            self._pay(name, now)
            del self._paid[name]

    def settle(self) -> None:
        """Compare the accounts with the expected cost."""
        now = self.scene.world.kernel.now()
        for name in self._paid:
            self._pay(name, now)
        accounts = self._ledger.accounts(now).values()
        found, expected = sum(account.cost for account in accounts), self._cost * WHOLE
        if found != expected:
            self.violate(f"accounts come to {found} and the machines cost {expected}")
        self._compare_records(expected, now)

    def finish(self) -> None:
        """Compare at the end of the run."""
        self.settle()

    def _compare_records(self, expected: int, now: Instant) -> None:
        world = self.scene.world
        costs = world.platform.costs
        if world.platform is not self._platform:
            self._platform, self._starts = world.platform, self._starts + 1
        if costs is None or costs.ledger is None or world.platform.runner.is_stopped:
            return
        if world.start != EPOCH:  #  costs from before the start of this world are unknown
            return
        found = sum(account.cost for account in costs.ledger.accounts(now).values())
        written = [
            *(obj for obj in world.objects(scheme.COST_RECORD, PLATFORM)),
            *(obj for key, obj in costs.unwritten.items() if key.namespace == PLATFORM),
        ]
        by_name = {obj["metadata"]["name"]: obj for obj in written}
        hours = [read(obj) for name, obj in by_name.items() if name == hour_name(read(obj).begin)]
        over = [hour for hour in hours if hour.begin < costs.ledger.begun]
        found += sum(amount.microdollars for hour in over for amount in hour.machines.values()) * _MICRODOLLAR
        if abs(found - expected) > (len(over) + self._starts) * _MICRODOLLAR:
            self.violate(f"records come to {found} and the machines cost {expected}")

    def _pay(self, name: str, now: Instant) -> None:
        since, price = self._paid[name]
        self._cost += (now - since) * price
        self._paid[name] = now, price

    def _price(self, pool: str, before: int) -> int:
        found, clusters = self.scene.world.client.get(Key(scheme.NODE_POOL, "", pool)), self.scene.world.client
        cluster = next(iter(clusters.list(scheme.CLUSTER)), None)
        return before if found is None or cluster is None else pool_price(found, cluster)
