"""What a pool wants of its machines: those to make and to give up, what to write of it, and when to look again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from batchyard.api import well_known
from batchyard.api.conditions import Condition, is_true, with_condition
from batchyard.api.meta import Obj, with_metadata
from batchyard.base.instant import Instant
from batchyard.cloud.pool_members import Member
from batchyard.core.machines.catalog import catalog_of
from batchyard.core.machines.instances import FAILED, new_instance
from batchyard.core.machines.pools import hosts_of_slice, is_autoscaled, machine_of, zones_of
from batchyard.core.machines.reservations import start_of
from batchyard.core.machines.times import repair_time
from batchyard.ports.client import Create, Delete, Write

#: The machines an autoscaled pool began with were made; from then on the autoscaler says how many there are.
INITIALIZED: Final = "Initialized"


@dataclass(slots=True)
class PoolPlan:
    """What is to be done for one pool.

    New machines are asked for before the status says so, and old ones are given up after it: whatever comes between
    two writes, what the status says is true.
    """

    pool: Obj
    cluster: Obj
    now: Instant
    asked: list[Write] = field(default_factory=list)
    rest: list[Write] = field(default_factory=list)
    look_at: Instant | None = None
    conditions: list[Condition] = field(init=False)

    def __post_init__(self) -> None:
        self.conditions = list((self.pool.get("status") or {}).get("conditions") or ())

    @property
    def hosts(self) -> int:
        """How many machines come and go as one."""
        return hosts_of_slice(self.pool, catalog_of(self.cluster))

    def says(self, kind: str) -> bool:
        """Whether a condition of the pool is true."""
        return is_true({"conditions": self.conditions}, kind)

    def say(self, kind: str, holds: bool, reason: str, message: str) -> None:
        """Set a condition of the pool."""
        self.conditions = with_condition(
            self.conditions, type=kind, status=holds, reason=reason, message=message, now=self.now
        )

    def make(self, zone: str, count: int) -> None:
        """Ask for so many machines in a zone. What a world begins with is there at once."""
        if count <= 0:
            return
        instance = new_instance(self.pool, zone, self.cluster)
        if self.now == start_of(self.cluster):
            instance = with_metadata(instance, annotations={well_known.INITIAL_INSTANCE: "true"})
        self.asked += [Create(instance)] * count

    def give_up(self, members: Iterable[Member]) -> None:
        """Delete Instances, those that are being deleted excepted."""
        self.rest += [Delete(member.key) for member in members if not member.leaving]

    def repair_at(self, crashed: Instant) -> Instant:
        """When a machine of the pool is replaced that crashed at an instant."""
        catalog = catalog_of(self.cluster)
        return crashed + repair_time(machine_of(self.pool, catalog), self.cluster, catalog)

    def look_again(self, when: Instant) -> None:
        """Look at the pool at an instant."""
        self.look_at = when if self.look_at is None else min(when, self.look_at)


def plan_machines(plan: PoolPlan, members: Mapping[str, Member], crashed: Sequence[Member]) -> None:
    """Replace crashed machines, and keep as many in each zone as there are to be.

    A pool with an autoscaler gets the machines it begins with, once, and no others here: a crashed one is given up.
    """
    lost = []
    for member in crashed:
        repair = plan.repair_at(member.since)
        if repair <= plan.now:
            lost.append(member)
        else:
            plan.look_again(repair)
    plan.give_up(lost)
    if not is_autoscaled(plan.pool):
        staying = [member for member in members.values() if not member.leaving and member not in lost]
        _keep_count(plan, staying)
    elif not plan.says(INITIALIZED):
        _begin(plan, members)


def _keep_count(plan: PoolPlan, staying: Sequence[Member]) -> None:
    """As many machines in each zone as the pool is to have, those that failed included: they are tried again."""
    wanted = plan.pool["spec"].get("nodeCount", 0)
    for zone in zones_of(plan.pool, plan.cluster):
        here = [member for member in staying if member.zone == zone]
        plan.make(zone, wanted - len(here))
        plan.give_up(_least_missed(here)[: max(0, len(here) - wanted)])


def _begin(plan: PoolPlan, members: Mapping[str, Member]) -> None:
    """The machines an autoscaled pool begins with."""
    wanted = plan.pool["spec"].get("nodeCount", 0)
    for zone in zones_of(plan.pool, plan.cluster):
        plan.make(zone, wanted - sum(member.zone == zone for member in members.values()))
    plan.say(INITIALIZED, True, "MachinesAsked", "The machines the pool begins with were asked for")


def _least_missed(members: list[Member]) -> list[Member]:
    """The members in the order in which a smaller pool gives them up: those that never came, then the newest."""
    newest = members[::-1]
    return sorted(newest, key=lambda member: member.phase != FAILED)
