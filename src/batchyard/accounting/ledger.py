"""Cost ledger: charges machine time to pods, to boot time and to idle time.

A machine is billed from the moment the cloud provides it until it is gone. While its node is not ready, its time counts
as booting. Afterwards each pod bound to the node takes the share of the machine that it requested: of the accelerators
if the node has any, else the larger of its shares of cpu and memory. The remaining time is idle. The time of a pod
counts as done when the pod succeeds. If it ends in any other way, the work up to its last checkpoint counts as done,
because a later pod resumes from there, and the rest as lost. Until the pod ends, its time counts as running.

All amounts are integers, and the accounts add up to the cost of the machines. Events are dated by the timestamps of
their objects where these exist, so that a second computation from the same objects has the same result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, RUNS, WHOLE, AccountKey, CostAccount
from batchyard.accounting.records import (
    PodOwner,
    bound_at,
    ended_at,
    is_paid,
    limit_named_workloads,
    owner_of,
    paid_from,
    paid_until,
    ready_since,
)
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, label, owning_jobs
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, checkpoint_interval, kept_work, pod_view, running_since
from batchyard.base.instant import HOUR, Duration, Instant
from batchyard.cloud.catalog.prices import Rate, instance_rate, node_rate
from batchyard.interfaces.client import EventType, Reader, WatchEvent

#: Running time more than this before the open period is never settled.
SETTLED_BACK: Final = 31 * 24 * HOUR


class LedgerDetail(NamedTuple):
    """The level of detail of a ledger."""

    #: Whether to keep accounts by Workload, queue and flavor; otherwise by team only.
    by_workload: bool = False
    #: Whether Nodes without an Instance count as machines too.
    all_nodes: bool = False


BY_TEAM: Final = LedgerDetail()


@dataclass(slots=True)
class _Machine:
    """A machine that is billed."""

    rate: Rate
    #: The time up to which unused time is charged, and the time at which billing began.
    since: Instant
    opened: Instant
    node: NodeView | None = None
    #: The occupied parts of the machine, and its pods by uid.
    taken: int = 0
    pods: "dict[str, _Occupant]" = field(default_factory=dict)
    #: Whether it is a Node without an Instance.
    is_bare: bool = False

    @property
    def accelerators(self) -> int:
        """Return the number of accelerators of its node."""
        return 0 if self.node is None else self.node.allocatable.get(self.rate.device, 0)


@dataclass(slots=True)
class _Occupant:
    """A pod on a machine, and the time charged to it."""

    owner: PodOwner
    machine: _Machine
    share: int
    bound: Instant
    #: The time up to which it is charged.
    since: Instant
    #: The checkpoint interval, the time since which its containers run, and the work saved by earlier runs.
    interval: Duration | None
    running: Instant | None = None
    kept: Duration = 0
    #: The charges of the open period.
    spent: CostAccount = field(default_factory=CostAccount)

    def note_run(self, since: Instant | None, now: Instant) -> None:
        """Record that its containers run since `since`, or that they stopped (None)."""
        if since != self.running:
            self.kept += kept_work(self.running, self.interval, now)
            self.running = since

    def place(self, use: str) -> AccountKey:
        """Return the account for its time."""
        rate, owner = self.machine.rate, self.owner
        flavor, *queues = owner[1:]
        return AccountKey(rate.pool, rate.provisioning, owner.team, use, flavor, *queues)

    def charge(self, until: Instant) -> None:
        """Charge the time since the last charge; an earlier `until` takes time back."""
        _charge(self.spent, until - self.since, self.share, self.machine)
        self.since = until


class CostLedger:
    """Accounts of the open period, maintained from the watch events of machines and pods."""

    def __init__(self, reader: Reader, detail: LedgerDetail = BY_TEAM, begun: Instant = 0) -> None:
        self._reader = reader
        self._detail = detail
        self._machines: dict[str, _Machine] = {}
        self._pods: dict[str, _Occupant] = {}
        #: The accounts of the open period, without the pods that still occupy a machine.
        self.spent: dict[AccountKey, CostAccount] = {}
        #: The part of it charged to ended pods, by team and LocalQueue.
        self._ended: dict[str, dict[str, CostAccount]] = {}
        #: Settlements of closed periods: per hour, the running time that became done or lost when its pod ended.
        self.settled: dict[tuple[Instant, AccountKey], CostAccount] = {}
        #: The begin of the open period.
        self.begun = begun
        #: The latest time up to which machines are charged.
        self.last = 0

    def observe(self, batch: Iterable[WatchEvent], now: Instant) -> None:
        """Apply watch events."""
        for event in batch:
            if event.key.kind == scheme.POD:
                self._on_pod(event, now)
            elif event.key.kind == scheme.INSTANCE:
                self._on_instance(event, now)
            elif event.key.kind == scheme.NODE:
                self._on_node(event, now)
            elif event.key.kind == scheme.CLUSTER:
                self._reprice(now)

    def accounts(self, now: Instant) -> dict[AccountKey, CostAccount]:
        """Return the accounts of the open period up to now. Pods that have not ended count as running."""
        for machine in self._machines.values():
            self._settle(machine, now)
        for pod in self._pods.values():
            pod.charge(now)
        spent = {place: CostAccount(a.time, a.accelerators, a.cost) for place, a in self.spent.items()}
        return {**spent, **self.running()}

    def close(self, at: Instant) -> tuple[dict[AccountKey, CostAccount], dict[tuple[Instant, AccountKey], CostAccount]]:
        """Close the open period and begin the next; return its accounts and its settlements of earlier periods."""
        accounts, settled = self.accounts(at), self.settled
        self.spent, self.settled, self.begun = {}, {}, at
        self._ended = {}
        for pod in self._pods.values():
            pod.spent = CostAccount()
        return accounts, settled

    def resume(
        self, spent: dict[AccountKey, CostAccount], settled: dict[tuple[Instant, AccountKey], CostAccount]
    ) -> None:
        """Replace the accounts of the open period by the given ones."""
        self.spent, self.settled = spent, settled
        self._ended = {}
        for place, account in spent.items():
            self._note_ended(place.team, place.local_queue, account)

    def fold(self) -> None:
        """Limit the named Workloads to the number that a record may name."""
        self.spent = limit_named_workloads(self.spent)

    def running(self) -> dict[AccountKey, CostAccount]:
        """Return the time charged in the open period to pods that still occupy a machine."""
        running: dict[AccountKey, CostAccount] = {}
        for pod in self._pods.values():
            running.setdefault(pod.place(RUNS), CostAccount()).add(pod.spent)
        return running

    @property
    def is_busy(self) -> bool:
        """Whether any pod occupies a billed machine."""
        return bool(self._pods)

    @property
    def machines(self) -> int:
        """Return the number of billed machines."""
        return len(self._machines)

    def unpriced(self) -> Iterable[tuple[str, str]]:
        """Return the pools, each with its provisioning mode, of machines that have no price."""
        rates = {machine.rate for machine in self._machines.values() if not machine.rate.price}
        return sorted({(rate.pool, rate.provisioning) for rate in rates})

    def used(self, team: str, now: Instant) -> dict[tuple[str, bool], CostAccount]:
        """Return the usage of a team in the open period, by LocalQueue and by whether the pods still run."""
        used: dict[tuple[str, bool], CostAccount] = {}
        for queue, account in self._ended.get(team, {}).items():
            used[queue, False] = replace(account)
        for pod in self._pods.values():
            if pod.owner.team == team:
                pod.charge(now)
                used.setdefault((pod.owner.local_queue, True), CostAccount()).add(pod.spent)
        return used

    def rates(self) -> Mapping[PodOwner, tuple[int, int]]:
        """Return the hourly rates of running pods by owner: millionths of a dollar, and thousandths of accelerators."""
        rates: dict[PodOwner, tuple[int, int]] = {}
        for pod in self._pods.values():
            dollars, accelerators = rates.get(pod.owner, (0, 0))
            dollars += pod.machine.rate.price * pod.share // WHOLE
            accelerators += pod.machine.accelerators * pod.share * 1000 // WHOLE
            rates[pod.owner] = dollars, accelerators
        return rates

    # --- watch events ---

    def _on_instance(self, event: WatchEvent, now: Instant) -> None:
        name = event.key.name
        if event.type is EventType.DELETED or not is_paid(event.obj):
            self._close(name, self._when(paid_until(event.obj), now), now)
        elif name not in self._machines:
            rate = instance_rate(event.obj, self._reader.get, self._cluster())
            at = self._when(paid_from(event.obj), now)
            self._machines[name] = _Machine(rate, at, at)

    def _on_node(self, event: WatchEvent, now: Instant) -> None:
        machine, is_gone = self._machines.get(event.key.name), event.type is EventType.DELETED
        if machine is None and self._detail.all_nodes and not is_gone:
            machine = self._bare(event.obj, now)
        if machine is None:
            return
        if is_gone and machine.is_bare:
            self._close(event.key.name, now, now)
            return
        node = None if is_gone else node_view(event.obj)
        was_ready, before = machine.node is not None and machine.node.ready, machine.accelerators
        is_turning = node is not None and node.ready != was_ready
        turned = self._when(ready_since(event.obj), now) if is_turning else now
        self._settle(machine, max(machine.opened, turned))
        if before and (node is None or node.allocatable.get(machine.rate.device, 0) != before):
            for pod in machine.pods.values():
                pod.charge(now)
        machine.node = node

    def _on_pod(self, event: WatchEvent, now: Instant) -> None:
        view = pod_view(event.obj)
        has_ended = event.type is EventType.DELETED or view.is_terminal
        pod = self._pods.get(view.uid)
        if pod is None:
            if has_ended or view.node_name not in self._machines:
                return
            pod = self._take(event.obj, view, now)
        if not has_ended:
            pod.note_run(running_since(event.obj), now)
            return
        at = self._when(ended_at(event.obj), now)
        pod.note_run(None, at)
        self._leave(view.uid, at, succeeded=view.phase == "Succeeded")

    def _bare(self, node: Obj, now: Instant) -> _Machine | None:
        """Start the machine of a Node that has no Instance and belongs to none of our pools; None for other Nodes."""
        name, pool = node["metadata"]["name"], label(node, well_known.NODE_POOL) or ""
        is_ours = pool and self._reader.get(Key(scheme.NODE_POOL, "", pool)) is not None
        if is_ours or self._reader.get(Key(scheme.INSTANCE, "", name)) is not None:
            return None
        machine = self._machines[name] = _Machine(node_rate(node, self._cluster()), now, now, is_bare=True)
        machine.node = node_view(node)
        return machine

    def _reprice(self, now: Instant) -> None:
        """Apply the prices of the Cluster from now on."""
        cluster = self._cluster()
        for name, machine in self._machines.items():
            self._settle(machine, now)
            for pod in machine.pods.values():
                pod.charge(now)
            machine.rate = self._rate(name, machine, cluster)

    def _rate(self, name: str, machine: _Machine, cluster: Obj | None) -> Rate:
        """Return the current rate of a machine, or its previous rate if the machine or its pool is gone."""
        if machine.is_bare:
            node = self._reader.get(Key(scheme.NODE, "", name))
            return machine.rate if node is None else node_rate(node, cluster)
        instance = self._reader.get(Key(scheme.INSTANCE, "", name))
        pool = self._reader.get(Key(scheme.NODE_POOL, "", machine.rate.pool))
        return machine.rate if instance is None or pool is None else instance_rate(instance, self._reader.get, cluster)

    def _cluster(self) -> Obj | None:
        clusters = self._reader.list(scheme.CLUSTER)
        return clusters[0] if clusters else None

    def _when(self, recorded: Instant | None, now: Instant) -> Instant:
        """Return the time of an event as its object records it, but never in a closed period or in the future."""
        return now if recorded is None else max(self.begun, min(recorded, now))

    def _close(self, name: str, at: Instant, now: Instant) -> None:
        machine = self._machines.get(name)
        if machine is None:
            return
        for uid, pod in list(machine.pods.items()):
            pod.note_run(None, at)
            self._leave(uid, at, succeeded=False)
        self._settle(machine, at)
        del self._machines[name]

    def _take(self, pod: Obj, view: PodView, now: Instant) -> _Occupant:
        machine = self._machines[view.node_name]
        recorded = bound_at(pod)
        at = max(machine.opened, self._when(recorded, now))
        bound = at if recorded is None else min(at, recorded)
        self._settle(machine, at)
        share = min(WHOLE - machine.taken, _share(view, machine))
        interval = checkpoint_interval([pod, *owning_jobs(pod, self._reader.get)])
        occupant = _Occupant(self._owner(pod, machine), machine, share, bound, at, interval)
        machine.taken += share
        machine.pods[view.uid] = self._pods[view.uid] = occupant
        return occupant

    def _owner(self, pod: Obj, machine: _Machine) -> PodOwner:
        namespace = pod["metadata"].get("namespace", "")
        if not self._detail.by_workload:
            return PodOwner(namespace)
        name = annotation(pod, well_known.WORKLOAD)
        workload = self._reader.get(Key(scheme.WORKLOAD, namespace, name)) if name else None
        return owner_of(pod, workload, machine.rate.device)

    def _leave(self, uid: str, at: Instant, *, succeeded: bool) -> None:
        pod = self._pods.pop(uid)
        machine = pod.machine
        self._settle(machine, at)
        pod.charge(at)
        machine.taken -= pod.share
        del machine.pods[uid]
        earlier = max(0, self.begun - pod.bound) * pod.share
        life = earlier + pod.spent.time
        kept = life if succeeded else min(life, pod.kept * pod.share)
        done, lost = pod.spent.split(max(0, kept - earlier))
        for use, spent in ((DONE, done), (LOST, lost)):
            if spent.time:
                self._account(pod.place(use)).add(spent)
                self._note_ended(pod.owner.team, pod.owner.local_queue, spent)
        if earlier:
            _settle_earlier(self.settled, pod, kept, self.begun)

    def _note_ended(self, team: str, queue: str, spent: CostAccount) -> None:
        self._ended.setdefault(team, {}).setdefault(queue, CostAccount()).add(spent)

    # --- charges ---

    def _settle(self, machine: _Machine, now: Instant) -> None:
        """Charge the unused share of a machine since the last charge; an earlier `now` takes time back."""
        elapsed, machine.since = now - machine.since, now
        self.last = max(self.last, now)
        left = WHOLE - machine.taken
        if elapsed and left:
            is_ready = machine.node is not None and machine.node.ready
            use = IDLE if is_ready else BOOT
            _charge(
                self._account(AccountKey(machine.rate.pool, machine.rate.provisioning, "", use)), elapsed, left, machine
            )

    def _account(self, place: AccountKey) -> CostAccount:
        return self.spent.setdefault(place, CostAccount())


def _settle_earlier(
    settled: dict[tuple[Instant, AccountKey], CostAccount], pod: _Occupant, kept: int, begun: Instant
) -> None:
    """Settle the closed periods of an ended pod: its time counts as done first, then as lost."""
    at = max(pod.bound, begun - SETTLED_BACK)
    kept -= (at - pod.bound) * pod.share
    while at < begun:
        hour = at - at % HOUR
        time = (min(hour + HOUR, begun) - at) * pod.share
        done = min(max(kept, 0), time)
        for use, part in ((DONE, done), (LOST, time - done)):
            if part:
                account = settled.setdefault((hour, pod.place(use)), CostAccount())
                _charge(account, part, 1, pod.machine)
        kept, at = kept - time, hour + HOUR


def _charge(account: CostAccount, elapsed: Duration, share: int, machine: _Machine) -> None:
    """Charge an account for a share of a span of a machine's time."""
    time = elapsed * share
    account.time += time
    account.accelerators += time * machine.accelerators
    account.cost += time * machine.rate.price


def _share(pod: PodView, machine: _Machine) -> int:
    """Return the share of a machine that a pod occupies, in parts of WHOLE."""
    if machine.node is None:
        return 0
    requests, allocatable = dict(pod.requests), machine.node.allocatable
    counted = (machine.rate.device,) if allocatable.get(machine.rate.device) else ("cpu", "memory")
    return max(_part(requests.get(resource, 0), allocatable.get(resource, 0)) for resource in counted)


def _part(amount: int, whole: int) -> int:
    return amount * WHOLE // whole if whole else 0
