"""Cost ledger: charges the time of machines to pods, to booting, and to idle time.

A machine is billed from the time that the cloud provides it until it is gone. While its node is not ready, its time
counts as booting. Then each pod bound to the node is charged its requested share of the machine: the share of the
accelerators if the node has any, otherwise the larger of its cpu and memory shares. The remaining time is idle. The
time of a pod counts as running until the pod ends, and as done if the pod succeeds. If the pod ends in another way, its
work up to the last checkpoint counts as done, because a later pod resumes there, and its remaining work as lost.

All amounts are integers, and the accounts add up to the cost of the machines. Events are dated by the timestamps of
their objects where these exist, so that a second computation from the same objects has the same result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from batchyard.accounting import records
from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, RUNS, WHOLE_MACHINE, AccountKey, CostAccount
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controlling_jobs, label
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, checkpoint_interval, kept_work, pod_view, running_since
from batchyard.base.instant import HOUR, Duration, Instant
from batchyard.cloud.catalog.pool_properties import Rate, instance_rate, node_rate
from batchyard.interfaces.client import EventType, Reader, WatchEvent

#: Running time that is older than this, before the open period, is not reclassified.
RECLASSIFIED_AGE_MAX: Final = 31 * 24 * HOUR


_ReclassifiedUsage: TypeAlias = dict[tuple[Instant, AccountKey], CostAccount]


class LedgerDetail(NamedTuple):
    """How finely a cost ledger splits its accounts, and which Nodes it charges."""

    #: Whether accounts distinguish Workloads, queues and flavors, or only teams.
    is_by_workload: bool = False
    #: Whether Nodes without an Instance count as machines too.
    includes_bare_nodes: bool = False


BY_TEAM: Final = LedgerDetail()


@dataclass(slots=True)
class _Machine:
    rate: Rate
    #: The time up to which unused shares are charged, and the time at which billing began.
    charged_until: Instant
    billing_start: Instant
    node: NodeView | None = None
    #: The occupied parts of the machine, and its charged pods by uid.
    occupied_parts: int = 0
    pods: "dict[str, _ChargedPod]" = field(default_factory=dict)
    #: Whether the machine is a Node without an Instance.
    has_no_instance: bool = False

    @property
    def accelerators(self) -> int:
        return 0 if self.node is None else self.node.allocatable.get(self.rate.device, 0)


@dataclass(slots=True)
class _ChargedPod:
    owner: records.PodOwner
    machine: _Machine
    machine_parts: int
    bound_time: Instant
    #: The time up to which the pod is charged.
    charged_until: Instant
    #: The checkpoint interval, the start of the current run of its containers, and the saved work of earlier runs.
    interval: Duration | None
    running_since: Instant | None = None
    saved_work: Duration = 0
    #: The charges of the open period.
    charges: CostAccount = field(default_factory=CostAccount)

    def record_run(self, run_start: Instant | None, now: Instant) -> None:
        """Record the start of the current run (None: no container runs), and add the saved work of the previous run."""
        if run_start != self.running_since:
            self.saved_work += kept_work(self.running_since, self.interval, now)
            self.running_since = run_start

    def account_key(self, use: str) -> AccountKey:
        machine_rate, owner = self.machine.rate, self.owner
        flavor, *queue_names = owner[1:]
        return AccountKey(machine_rate.pool, machine_rate.provisioning, owner.team, use, flavor, *queue_names)

    def charge(self, end: Instant) -> None:
        """Charge the pod up to `end`; if it is already charged beyond `end`, refund the difference."""
        _charge_account(self.charges, end - self.charged_until, self.machine_parts, self.machine)
        self.charged_until = end


class CostLedger:
    """The cost accounts of the open hour, updated from watch events of Instances, Nodes, pods and the Cluster."""

    def __init__(self, reader: Reader, detail: LedgerDetail = BY_TEAM, period_start: Instant = 0) -> None:
        self._reader = reader
        self._detail = detail
        self._machines: dict[str, _Machine] = {}
        self._pods: dict[str, _ChargedPod] = {}
        #: The accounts of the open period, without pods that still occupy a machine.
        self.ended_accounts: dict[AccountKey, CostAccount] = {}
        #: The part of `ended_accounts` that is charged to ended pods, by team and LocalQueue.
        self._ended_by_team: dict[str, dict[str, CostAccount]] = {}
        #: The reclassified usage of closed hours: the running time that became done or lost when its pod ended.
        self.reclassified_usage: _ReclassifiedUsage = {}
        #: The begin of the open period.
        self.period_start = period_start
        #: The latest time up to which machines are charged.
        self.charged_until = 0

    def observe(self, watch_events: Iterable[WatchEvent], now: Instant) -> None:
        """Update the charges from watch events received at `now`."""
        for event in watch_events:
            if event.key.kind == scheme.POD:
                self._observe_pod(event, now)
            elif event.key.kind == scheme.INSTANCE:
                self._observe_instance(event, now)
            elif event.key.kind == scheme.NODE:
                self._observe_node(event, now)
            elif event.key.kind == scheme.CLUSTER:
                self._apply_new_prices(now)

    def accounts_until_now(self, now: Instant) -> dict[AccountKey, CostAccount]:
        """Charge machines and pods up to `now`; return the cost accounts of the open hour.

        Pods that have not ended are charged to accounts whose use is `running`.
        """
        for machine in self._machines.values():
            self._charge_unused(machine, now)
        for pod in self._pods.values():
            pod.charge(now)
        accounts_until_now = {
            account_key: CostAccount(a.time, a.accelerators, a.cost) for account_key, a in self.ended_accounts.items()
        }
        return {**accounts_until_now, **self.running_accounts()}

    def close(self, period_end: Instant) -> tuple[dict[AccountKey, CostAccount], _ReclassifiedUsage]:
        """Close the open hour at `period_end`; return the accounts of the hour, and corrections of earlier hours."""
        accounts, reclassified_usage = self.accounts_until_now(period_end), self.reclassified_usage
        self.ended_accounts, self.reclassified_usage, self.period_start = {}, {}, period_end
        self._ended_by_team = {}
        for pod in self._pods.values():
            pod.charges = CostAccount()
        return accounts, reclassified_usage

    def resume(self, ended_accounts: dict[AccountKey, CostAccount], reclassified_usage: _ReclassifiedUsage) -> None:
        """Restore the accounts of the hour in progress, and reclassified usage of earlier hours, from a checkpoint."""
        self.ended_accounts, self.reclassified_usage = ended_accounts, reclassified_usage
        self._ended_by_team = {}
        for account_key, account in ended_accounts.items():
            self._add_ended_usage(account_key.team, account_key.local_queue, account)

    def limit_workload_names(self) -> None:
        """Merge the ended accounts with the least machine time, so that at most 1000 of them name a Workload."""
        self.ended_accounts = records.limit_named_workloads(self.ended_accounts)

    def running_accounts(self) -> dict[AccountKey, CostAccount]:
        """Return the charges so far, in the open hour, of pods that have not ended, by account."""
        accounts: dict[AccountKey, CostAccount] = {}
        for pod in self._pods.values():
            accounts.setdefault(pod.account_key(RUNS), CostAccount()).add(pod.charges)
        return accounts

    @property
    def is_busy(self) -> bool:
        """Whether any pod is being charged for a machine."""
        return bool(self._pods)

    @property
    def machine_count(self) -> int:
        """The number of machines that are billed now."""
        return len(self._machines)

    def unpriced_pools(self) -> Iterable[tuple[str, str]]:
        """Return the (node pool, provisioning mode) pairs of billed machines that have no price."""
        unpriced_rates = {machine.rate for machine in self._machines.values() if not machine.rate.price}
        return sorted({(rate.pool, rate.provisioning) for rate in unpriced_rates})

    def usage_of_team(self, team: str, now: Instant) -> dict[tuple[str, bool], CostAccount]:
        """Return a team's charges in the open hour up to `now`, by LocalQueue and by whether the pods still run."""
        usage_by_queue: dict[tuple[str, bool], CostAccount] = {}
        for queue, account in self._ended_by_team.get(team, {}).items():
            usage_by_queue[queue, False] = replace(account)
        for pod in self._pods.values():
            if pod.owner.team == team:
                pod.charge(now)
                usage_by_queue.setdefault((pod.owner.local_queue, True), CostAccount()).add(pod.charges)
        return usage_by_queue

    def hourly_rates(self) -> Mapping[records.PodOwner, tuple[int, int]]:
        """Return what running pods cost per hour, by owner: (millionths of a dollar, thousandths of accelerators)."""
        hourly_rates: dict[records.PodOwner, tuple[int, int]] = {}
        for pod in self._pods.values():
            micro_dollars_per_hour, accelerators = hourly_rates.get(pod.owner, (0, 0))
            micro_dollars_per_hour += pod.machine.rate.price * pod.machine_parts // WHOLE_MACHINE
            accelerators += pod.machine.accelerators * pod.machine_parts * 1000 // WHOLE_MACHINE
            hourly_rates[pod.owner] = micro_dollars_per_hour, accelerators
        return hourly_rates

    def _observe_instance(self, event: WatchEvent, now: Instant) -> None:
        name = event.key.name
        if event.type is EventType.DELETED or not records.is_billed(event.obj):
            self._remove_machine(name, self._limit_to_open_period(records.billing_end(event.obj), now))
        elif name not in self._machines:
            machine_rate = instance_rate(event.obj, self._reader.get, self._cluster())
            billing_start = self._limit_to_open_period(records.billing_start(event.obj), now)
            self._machines[name] = _Machine(machine_rate, billing_start, billing_start)

    def _observe_node(self, event: WatchEvent, now: Instant) -> None:
        machine, is_node_deleted = self._machines.get(event.key.name), event.type is EventType.DELETED
        if machine is None and self._detail.includes_bare_nodes and not is_node_deleted:
            machine = self._add_bare_node(event.obj, now)
        if machine is None:
            return
        if is_node_deleted and machine.has_no_instance:
            self._remove_machine(event.key.name, now)
            return
        node = None if is_node_deleted else node_view(event.obj)
        was_ready, old_accelerators = machine.node is not None and machine.node.ready, machine.accelerators
        is_readiness_changed = node is not None and node.ready != was_ready
        changed_at = self._limit_to_open_period(records.ready_since(event.obj), now) if is_readiness_changed else now
        self._charge_unused(machine, max(machine.billing_start, changed_at))
        if old_accelerators and (node is None or node.allocatable.get(machine.rate.device, 0) != old_accelerators):
            for pod in machine.pods.values():
                pod.charge(now)
        machine.node = node

    def _observe_pod(self, event: WatchEvent, now: Instant) -> None:
        observed_pod = pod_view(event.obj)
        has_ended = event.type is EventType.DELETED or observed_pod.is_terminal
        pod = self._pods.get(observed_pod.uid)
        if pod is None:
            if has_ended or observed_pod.node_name not in self._machines:
                return
            pod = self._add_pod(event.obj, observed_pod, now)
        if not has_ended:
            pod.record_run(running_since(event.obj), now)
            return
        end_time = self._limit_to_open_period(records.ended_at(event.obj), now)
        pod.record_run(None, end_time)
        self._end_pod(observed_pod.uid, end_time, succeeded=observed_pod.phase == "Succeeded")

    def _add_bare_node(self, node: Obj, now: Instant) -> _Machine | None:
        name, pool = node["metadata"]["name"], label(node, well_known.NODE_POOL) or ""
        has_node_pool = pool and self._reader.get(Key(scheme.NODE_POOL, "", pool)) is not None
        if has_node_pool or self._reader.get(Key(scheme.INSTANCE, "", name)) is not None:
            return None
        machine = self._machines[name] = _Machine(node_rate(node, self._cluster()), now, now, has_no_instance=True)
        machine.node = node_view(node)
        return machine

    def _apply_new_prices(self, now: Instant) -> None:
        cluster = self._cluster()
        for name, machine in self._machines.items():
            self._charge_unused(machine, now)
            for pod in machine.pods.values():
                pod.charge(now)
            machine.rate = self._current_rate(name, machine, cluster)

    def _current_rate(self, name: str, machine: _Machine, cluster: Obj | None) -> Rate:
        if machine.has_no_instance:
            node = self._reader.get(Key(scheme.NODE, "", name))
            return machine.rate if node is None else node_rate(node, cluster)
        instance = self._reader.get(Key(scheme.INSTANCE, "", name))
        pool = self._reader.get(Key(scheme.NODE_POOL, "", machine.rate.pool))
        return machine.rate if instance is None or pool is None else instance_rate(instance, self._reader.get, cluster)

    def _cluster(self) -> Obj | None:
        clusters = self._reader.list(scheme.CLUSTER)
        return clusters[0] if clusters else None

    def _limit_to_open_period(self, recorded_time: Instant | None, now: Instant) -> Instant:
        """Limit a time to the open period, because records of closed hours never change; without a time, use `now`."""
        return now if recorded_time is None else max(self.period_start, min(recorded_time, now))

    def _remove_machine(self, name: str, end_time: Instant) -> None:
        machine = self._machines.get(name)
        if machine is None:
            return
        for uid, pod in list(machine.pods.items()):
            pod.record_run(None, end_time)
            self._end_pod(uid, end_time, succeeded=False)
        self._charge_unused(machine, end_time)
        del self._machines[name]

    def _add_pod(self, pod: Obj, view: PodView, now: Instant) -> _ChargedPod:
        machine = self._machines[view.node_name]
        recorded_time = records.bound_at(pod)
        charged_from = max(machine.billing_start, self._limit_to_open_period(recorded_time, now))
        bound_time = charged_from if recorded_time is None else min(charged_from, recorded_time)
        self._charge_unused(machine, charged_from)
        machine_parts = min(WHOLE_MACHINE - machine.occupied_parts, _machine_share(view, machine))
        interval = checkpoint_interval([pod, *controlling_jobs(pod, self._reader.get)])
        charged_pod = _ChargedPod(
            self._pod_owner(pod, machine), machine, machine_parts, bound_time, charged_from, interval
        )
        machine.occupied_parts += machine_parts
        machine.pods[view.uid] = self._pods[view.uid] = charged_pod
        return charged_pod

    def _pod_owner(self, pod: Obj, machine: _Machine) -> records.PodOwner:
        namespace = pod["metadata"].get("namespace", "")
        if not self._detail.is_by_workload:
            return records.PodOwner(namespace)
        name = annotation(pod, well_known.WORKLOAD)
        workload = self._reader.get(Key(scheme.WORKLOAD, namespace, name)) if name else None
        return records.owner_of(pod, workload, machine.rate.device)

    def _end_pod(self, uid: str, end_time: Instant, *, succeeded: bool) -> None:
        pod = self._pods.pop(uid)
        machine = pod.machine
        self._charge_unused(machine, end_time)
        pod.charge(end_time)
        machine.occupied_parts -= pod.machine_parts
        del machine.pods[uid]
        time_before_period = max(0, self.period_start - pod.bound_time) * pod.machine_parts
        total_time = time_before_period + pod.charges.time
        saved_time = total_time if succeeded else min(total_time, pod.saved_work * pod.machine_parts)
        done_account, lost_account = pod.charges.split(max(0, saved_time - time_before_period))
        for use, account in ((DONE, done_account), (LOST, lost_account)):
            if account.time:
                self._ended_account(pod.account_key(use)).add(account)
                self._add_ended_usage(pod.owner.team, pod.owner.local_queue, account)
        if time_before_period:
            _reclassify_usage(self.reclassified_usage, pod, saved_time, self.period_start)

    def _add_ended_usage(self, team: str, queue: str, account: CostAccount) -> None:
        self._ended_by_team.setdefault(team, {}).setdefault(queue, CostAccount()).add(account)

    def _charge_unused(self, machine: _Machine, now: Instant) -> None:
        """Charge a machine's unused share up to `now`; if it is already charged beyond `now`, refund the difference."""
        duration, machine.charged_until = now - machine.charged_until, now
        self.charged_until = max(self.charged_until, now)
        unused_share = WHOLE_MACHINE - machine.occupied_parts
        if duration and unused_share:
            is_ready = machine.node is not None and machine.node.ready
            use = IDLE if is_ready else BOOT
            account = self._ended_account(AccountKey(machine.rate.pool, machine.rate.provisioning, "", use))
            _charge_account(account, duration, unused_share, machine)

    def _ended_account(self, account_key: AccountKey) -> CostAccount:
        return self.ended_accounts.setdefault(account_key, CostAccount())


def _reclassify_usage(
    reclassified_usage: _ReclassifiedUsage, pod: _ChargedPod, saved_time: int, period_start: Instant
) -> None:
    """Correct the use of the pod's running time in closed hours: done (the first `saved_time`) or lost (the rest).

    `saved_time` counts from the time when the pod was bound. Its unit is a microsecond of 1/WHOLE_MACHINE of a machine.
    """
    span_begin = max(pod.bound_time, period_start - RECLASSIFIED_AGE_MAX)
    saved_time -= (span_begin - pod.bound_time) * pod.machine_parts
    while span_begin < period_start:
        hour_begin = span_begin - span_begin % HOUR
        reclassified_time = (min(hour_begin + HOUR, period_start) - span_begin) * pod.machine_parts
        done_time = min(max(saved_time, 0), reclassified_time)
        for use, amount in ((DONE, done_time), (LOST, reclassified_time - done_time)):
            if amount:
                account = reclassified_usage.setdefault((hour_begin, pod.account_key(use)), CostAccount())
                _charge_account(account, amount, 1, pod.machine)
        saved_time, span_begin = saved_time - reclassified_time, hour_begin + HOUR


def _charge_account(account: CostAccount, charged_duration: Duration, machine_parts: int, machine: _Machine) -> None:
    machine_part_time = charged_duration * machine_parts
    account.time += machine_part_time
    account.accelerators += machine_part_time * machine.accelerators
    account.cost += machine_part_time * machine.rate.price


def _machine_share(pod: PodView, machine: _Machine) -> int:
    if machine.node is None:
        return 0
    requests, allocatable = dict(pod.requests), machine.node.allocatable
    counted_resources = (machine.rate.device,) if allocatable.get(machine.rate.device) else ("cpu", "memory")
    return max(_fraction_of(requests.get(resource, 0), allocatable.get(resource, 0)) for resource in counted_resources)


def _fraction_of(amount: int, allocatable_amount: int) -> int:
    return amount * WHOLE_MACHINE // allocatable_amount if allocatable_amount else 0
