"""The cost ledger: what the machines cost, what the work on them came to, what was lost, and what lay idle.

An hour of a machine is paid from the moment the cloud found it until it is gone. While its node is not ready, that is
booting. After that each pod bound there takes the share of the machine that it asked for: of the accelerators where
there are some, else the larger of its shares of cpu and memory. What no pod takes is idle. What a pod took counts as
done when it succeeds. When it ends in any other way, what it did up to its checkpoints counts as done, for others go on
from there, and all else as lost. Until then it counts as running.

All of it is whole numbers, and the columns of a row add up to what its machines cost, to the cent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import HOUR, Duration, Instant
from batchyard.core.checkpoints import checkpoint_interval, kept_work, running_since
from batchyard.core.machines.catalog import catalog_of
from batchyard.core.machines.instances import BOOTING, RUNNING, STOPPING, phase_of
from batchyard.core.machines.pools import machine_of
from batchyard.core.machines.prices import pool_price
from batchyard.ports.client import EventType, Reader, WatchEvent
from batchyard.runtime.durations import jobs_above

#: A share of a machine is counted in so many parts.
WHOLE: Final = 1 << 30
_PAID: Final = (BOOTING, RUNNING, STOPPING)
_CENT: Final = 10_000  # millionths of a dollar

BOOT, IDLE, DONE, LOST, RUNS = "booting", "idle", "done", "lost", "running"
USES: Final = (BOOT, IDLE, DONE, LOST, RUNS)

#: Pool, way of provisioning, team, use.
_Place: TypeAlias = tuple[str, str, str, str]


@dataclass(slots=True)
class Account:
    """What was spent for one use: machine time in parts of a machine, accelerator time, and money."""

    #: Microseconds times parts of a machine.
    time: int = 0
    #: Microseconds times parts of an accelerator.
    accelerators: int = 0
    #: Millionths of a dollar per hour, times microseconds, times parts of a machine.
    cost: int = 0

    def add(self, other: "Account") -> None:
        """Add what another account holds."""
        self.time += other.time
        self.accelerators += other.accelerators
        self.cost += other.cost

    def split(self, time: int) -> tuple["Account", "Account"]:
        """So much of the machine time with what it cost, and the rest."""
        accelerators = self.accelerators * time // self.time if time else 0
        cost = self.cost * time // self.time if time else 0
        return Account(time, accelerators, cost), Account(
            self.time - time, self.accelerators - accelerators, self.cost - cost
        )


@dataclass(frozen=True, slots=True)
class Line:
    """What one use of a pool's machines, or of all machines by a team, came to."""

    #: The pool; '' where all pools count together.
    pool: str
    provisioning: str
    #: The namespace of the pods; '' for what no pod took.
    team: str
    use: str
    machine_hours: float
    accelerator_hours: float
    cents: int

    @property
    def cost(self) -> float:
        """Dollars, for reading; sums are exact in cents."""
        return self.cents / 100


@dataclass(frozen=True, slots=True)
class Statement:
    """What all of it came to."""

    by_pool: Sequence[Line]
    by_team: Sequence[Line]
    #: The sum of either side.
    cents: int

    @property
    def cost(self) -> float:
        """Dollars, for reading."""
        return self.cents / 100


@dataclass(slots=True)
class _Machine:
    """A machine that is paid for."""

    pool: str
    provisioning: str
    price: int
    since: Instant
    #: The resource by which pods ask for its accelerators; '' if it has none.
    device: str = ""
    node: NodeView | None = None
    #: By uid, the share of each pod bound there.
    shares: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Occupant:
    """A pod and what it took so far."""

    team: str
    machine: str
    #: How often it saves its work, since when its containers run, and what was kept of earlier runs.
    interval: Duration | None
    since: Instant | None = None
    kept: Duration = 0
    spent: Account = field(default_factory=Account)

    def note_run(self, since: Instant | None, now: Instant) -> None:
        """Its containers run since then, or not."""
        if since != self.since:
            self.kept += kept_work(self.since, self.interval, now)
            self.since = since


class Accounts:
    """Follows machines and pods by their watch events."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._machines: dict[str, _Machine] = {}
        self._pods: dict[str, _Occupant] = {}
        #: What was spent, but for what the pods took that are still there.
        self._spent: dict[_Place, Account] = {}
        #: Until when machines were charged, at the latest.
        self.last = 0

    def observe(self, batch: Iterable[WatchEvent], now: Instant) -> None:
        """Take note of changes."""
        for event in batch:
            if event.key.kind == scheme.POD:
                self._on_pod(event, now)
            elif event.key.kind == scheme.INSTANCE:
                self._on_instance(event, now)
            elif event.key.kind == scheme.NODE:
                self._on_node(event, now)
            elif event.key.kind == scheme.CLUSTER:
                self._price_anew(now)

    def statement(self, now: Instant) -> Statement:
        """What it came to until now. Pods that still run count as running."""
        for machine in self._machines.values():
            self._settle(machine, now)
        spent = {key: Account(a.time, a.accelerators, a.cost) for key, a in self._spent.items()}
        for pod in self._pods.values():
            machine = self._machines[pod.machine]
            key = (machine.pool, machine.provisioning, pod.team, RUNS)
            spent.setdefault(key, Account()).add(pod.spent)
        return _statement(spent)

    # --- what changes ---

    def _on_instance(self, event: WatchEvent, now: Instant) -> None:
        name = event.key.name
        is_paid = event.type is not EventType.DELETED and phase_of(event.obj) in _PAID
        if not is_paid:
            self._close(name, now)
        elif name not in self._machines:
            self._open(name, event.obj, now)

    def _on_node(self, event: WatchEvent, now: Instant) -> None:
        machine = self._machines.get(event.key.name)
        if machine is None:
            return
        self._settle(machine, now)
        machine.node = None if event.type is EventType.DELETED else node_view(event.obj)

    def _on_pod(self, event: WatchEvent, now: Instant) -> None:
        view = pod_view(event.obj)
        has_ended = event.type is EventType.DELETED or view.is_terminal
        if view.uid not in self._pods and view.node_name in self._machines and not has_ended:
            self._take(event.obj, view, now)
        pod = self._pods.get(view.uid)
        if pod is None:
            return
        pod.note_run(None if has_ended else running_since(event.obj), now)
        if has_ended:
            self._leave(view.uid, now, succeeded=view.phase == "Succeeded")

    def _open(self, name: str, instance: Obj, now: Instant) -> None:
        spec = instance["spec"]
        machine = self._machines[name] = _Machine(spec["pool"], spec.get("provisioning", "standard"), 0, now)
        self._price(machine)

    def _price_anew(self, now: Instant) -> None:
        """The Cluster may have other prices from now on."""
        for machine in self._machines.values():
            self._settle(machine, now)
            self._price(machine)

    def _price(self, machine: _Machine) -> None:
        pool, clusters = self._reader.get(Key(scheme.NODE_POOL, "", machine.pool)), self._reader.list(scheme.CLUSTER)
        if pool is not None and clusters:
            accelerator = machine_of(pool, catalog_of(clusters[0])).accelerator
            machine.price = pool_price(pool, clusters[0])
            machine.device = "" if accelerator is None else accelerator.resource

    def _close(self, name: str, now: Instant) -> None:
        machine = self._machines.get(name)
        if machine is None:
            return
        self._settle(machine, now)
        for uid in list(machine.shares):
            self._pods[uid].note_run(None, now)
            self._leave(uid, now, succeeded=False)
        del self._machines[name]

    def _take(self, pod: Obj, view: PodView, now: Instant) -> None:
        machine = self._machines[view.node_name]
        self._settle(machine, now)
        left = WHOLE - sum(machine.shares.values())
        machine.shares[view.uid] = min(left, _share(view, machine))
        interval = checkpoint_interval([pod, *jobs_above(pod, self._reader)])
        self._pods[view.uid] = _Occupant(view.namespace, view.node_name, interval)

    def _leave(self, uid: str, now: Instant, *, succeeded: bool) -> None:
        pod = self._pods[uid]
        machine = self._machines[pod.machine]
        self._settle(machine, now)
        share = machine.shares.pop(uid)
        done, lost = pod.spent.split(pod.spent.time if succeeded else pod.kept * share)
        for use, spent in ((DONE, done), (LOST, lost)):
            if spent.time:
                self._account(machine, pod.team, use).add(spent)
        del self._pods[uid]

    # --- what time costs ---

    def _settle(self, machine: _Machine, now: Instant) -> None:
        """Charge the time since the machine was looked at last."""
        elapsed, machine.since = now - machine.since, now
        self.last = max(self.last, now)
        if not elapsed:
            return
        charge = _Charge(elapsed, machine.price, _accelerators(machine))
        left = WHOLE
        for uid, share in machine.shares.items():
            charge.to(self._pods[uid].spent, share)
            left -= share
        if not left:
            return
        is_ready = machine.node is not None and machine.node.ready
        charge.to(self._account(machine, "", IDLE if is_ready else BOOT), left)

    def _account(self, machine: _Machine, team: str, use: str) -> Account:
        return self._spent.setdefault((machine.pool, machine.provisioning, team, use), Account())


class _Charge(NamedTuple):
    """A span of a machine's time."""

    elapsed: Duration
    price: int
    accelerators: int

    def to(self, account: Account, share: int) -> None:
        """Charge an account with a share of it."""
        time = self.elapsed * share
        account.time += time
        account.accelerators += time * self.accelerators
        account.cost += time * self.price


def _share(pod: PodView, machine: _Machine) -> int:
    """The part of a machine that a pod takes."""
    if machine.node is None:
        return 0
    requests, allocatable = dict(pod.requests), machine.node.allocatable
    counted = (machine.device,) if allocatable.get(machine.device) else ("cpu", "memory")
    return max(_part(requests.get(resource, 0), allocatable.get(resource, 0)) for resource in counted)


def _part(amount: int, whole: int) -> int:
    return amount * WHOLE // whole if whole else 0


def _accelerators(machine: _Machine) -> int:
    """How many accelerators the node of a machine has."""
    return 0 if machine.node is None else machine.node.allocatable.get(machine.device, 0)


# --- the statement ---


def _statement(spent: Mapping[_Place, Account]) -> Statement:
    cents = _in_cents({place: account.cost for place, account in spent.items()})
    pools = {place: (place[0], place[1], "", place[3]) for place in spent}
    teams = {place: ("", "", place[2], place[3]) for place in spent}
    return Statement(_lines(spent, cents, pools), _lines(spent, cents, teams), sum(cents.values()))


def _lines(spent: Mapping[_Place, Account], cents: Mapping[_Place, int], rows: Mapping[_Place, _Place]) -> list[Line]:
    """The accounts of each row together."""
    sums: dict[_Place, Account] = {}
    costs: dict[_Place, int] = {}
    for place, row in rows.items():
        sums.setdefault(row, Account()).add(spent[place])
        costs[row] = costs.get(row, 0) + cents[place]
    hour = HOUR * WHOLE
    order = sorted(sums, key=lambda row: (*row[:3], USES.index(row[3])))
    return [Line(*row, sums[row].time / hour, sums[row].accelerators / hour, costs[row]) for row in order]


def _in_cents(costs: Mapping[_Place, int]) -> dict[_Place, int]:
    """Amounts in whole cents that add up to the rounded sum: the largest remainders are rounded up."""
    cent = _CENT * HOUR * WHOLE
    whole = {place: cost // cent for place, cost in costs.items()}
    missing = (sum(costs.values()) + cent // 2) // cent - sum(whole.values())
    by_remainder = sorted(costs, key=lambda place: (-(costs[place] % cent), place))
    for place in by_remainder[: max(0, missing)]:
        whole[place] += 1
    return whole
