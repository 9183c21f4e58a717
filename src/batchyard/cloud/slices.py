"""A pool that is one slice of TPUs of several machines: all of them or none.

They are asked for together, told to stop together, and given up together. When one crashes, the slice is down: none of
its machines goes on, and after the time a repair takes all are given up and the whole slice is asked for again. New
machines are asked for only when the last of the old ones is gone, so a pool never mixes two slices.
"""

from collections.abc import Mapping
from typing import Final

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj, with_status
from batchyard.api.times import format_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.cloud.pool_members import Member
from batchyard.cloud.pool_plan import INITIALIZED, PoolPlan
from batchyard.core.machines.instances import CRASHED, FAILED
from batchyard.core.machines.pools import is_autoscaled, zones_of
from batchyard.ports.client import Reader, UpdateStatus

#: A slice with an autoscaler is to be asked for again when the machines of the one that broke are gone.
RECREATING: Final = "Recreating"
#: One that came in part, since a write was lost, is given up after so long, as it may never be whole.
_TOGETHER_WITHIN: Final = MINUTE


def plan_slice(plan: PoolPlan, members: Mapping[str, Member], reader: Reader) -> None:
    """Keep the slice whole."""
    hosts = list(members.values())
    crashes = [host.since for host in hosts if host.phase == CRASHED]
    stops = [host.stops_at for host in hosts if host.stops_at is not None]
    if any(host.leaving for host in hosts):
        plan.give_up(hosts)
    elif crashes:
        _take_down(plan, hosts, min(crashes), reader)
    elif stops:
        _stop_together(plan, hosts, min(stops), reader)
    elif (parted_since := _parted_since(hosts)) is not None:
        _part(plan, hosts, parted_since + _TOGETHER_WITHIN)
    else:
        _ask_for_all(plan, hosts)


def _take_down(plan: PoolPlan, hosts: list[Member], crashed: Instant, reader: Reader) -> None:
    """The whole slice is down since the first crash."""
    repair = plan.repair_at(crashed)
    if repair > plan.now:
        plan.look_again(repair)
        status = {"phase": CRASHED, "since": format_time(crashed)}
        _write_status(plan, [host for host in hosts if host.phase != CRASHED], status, reader)
        return
    if is_autoscaled(plan.pool):
        plan.say(RECREATING, True, "HostCrashed", "The slice is made anew, since a machine of it crashed")
    plan.give_up(hosts)


def _parted_since(hosts: list[Member]) -> Instant | None:
    """Since when one of them has a machine and another one was refused its own; None: they fare alike."""
    failed = [host for host in hosts if host.phase == FAILED]
    there = [host.since for host in hosts if host.phase not in {"", FAILED}]
    return max(there) if failed and there else None


def _part(plan: PoolPlan, hosts: list[Member], due: Instant) -> None:
    """A slice that stays in parts is given up."""
    if due > plan.now:
        plan.look_again(due)
    else:
        plan.give_up(hosts)


def _stop_together(plan: PoolPlan, hosts: list[Member], stop: Instant, reader: Reader) -> None:
    _write_status(plan, [host for host in hosts if host.stops_at != stop], {"stopAt": format_time(stop)}, reader)


def _ask_for_all(plan: PoolPlan, hosts: list[Member]) -> None:
    """Ask for what a slice lacks that is to be there. That it was asked for is said once all of it is."""
    if wants_itself(plan.pool, plan.hosts) and len(hosts) < plan.hosts:
        plan.make(zones_of(plan.pool, plan.cluster)[0], plan.hosts - len(hosts))
    elif is_autoscaled(plan.pool) and not plan.says(INITIALIZED):
        plan.say(INITIALIZED, True, "MachinesAsked", "The machines the pool begins with were asked for")
    elif plan.says(RECREATING):
        plan.say(RECREATING, False, "MachinesAsked", "The machines of the new slice were asked for")


def wants_itself(pool: Obj, hosts: int) -> bool:
    """Whether the pool asks for its slice by itself: always, or at its beginning, or for one that broke."""
    if is_autoscaled(pool) and is_true(pool, INITIALIZED):
        return is_true(pool, RECREATING)
    count: int = pool["spec"].get("nodeCount", 0 if is_autoscaled(pool) else hosts)
    return count > 0


def _write_status(plan: PoolPlan, hosts: list[Member], fields: Mapping[str, str], reader: Reader) -> None:
    for host in hosts:
        instance = reader.get(host.key)
        if instance is not None:
            plan.rest.append(UpdateStatus(with_status(instance, {**(instance.get("status") or {}), **fields})))
