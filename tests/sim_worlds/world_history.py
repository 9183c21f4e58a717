"""Worlds with nodes, run until no work is left, and the observed events. Times are seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifests, read_manifests
from batchyard.api.meta import Key, Obj, label
from batchyard.api.views.pods import RUNNING, bound_node, is_terminal, phase
from batchyard.base.instant import SECOND, duration_seconds
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.event_log import Record
from batchyard.sim.recovery import GangLoss, RecoveryTracker
from batchyard.sim.scenario import Scenario, ScenarioStep, make_scenario
from batchyard.sim.world import EPOCH, World

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"


def skip_without_manifests(name: str) -> pytest.MarkDecorator:
    """Skip a test without the external manifests, which are not part of this repository."""
    return pytest.mark.skipif(not (SHARED / name).is_dir(), reason=f"shared/{name} is not beside this repository")


def read_valid_manifests(*paths: Path) -> Manifests:
    """Read manifests, which must have no faults."""
    result = read_manifests((path.name, path.read_text("utf-8")) for path in paths)
    assert [*map(str, result.faults)] == []
    return result


def objects(*paths: Path) -> list[Obj]:
    """Read the objects of manifests."""
    return [manifest.obj for manifest in read_valid_manifests(*paths).objects]


def with_later_objects(scenario: Scenario, *steps: tuple[float, Sequence[Obj]]) -> Scenario:
    """Return the scenario with objects that users apply later."""
    later = [ScenarioStep(round(at * SECOND), objs, ()) for at, objs in steps]
    return replace(scenario, steps=[*scenario.steps, *later])


def example(name: str) -> Scenario:
    """Return the scenario of one of our examples."""
    return make_scenario(read_valid_manifests(*sorted((EXAMPLES / name).glob("*.yaml"))))


class PlacedPod(NamedTuple):
    """An active pod on a node."""

    #: Its JobSet, or its Job if it has none.
    owner: str
    job: str
    pool: str
    runs: bool


class ConditionChange(NamedTuple):
    """A change of the status or reason of a condition."""

    at: float
    type: str
    status: str
    reason: str


class WorldHistory:
    """A world run to its end, and its history."""

    def __init__(self, scenario: Scenario) -> None:
        self.records: list[Record] = []
        #: The pods on each pool, after each change.
        self.seats: list[tuple[float, list[PlacedPod]]] = []
        self._reported: dict[Key, list[ConditionChange]] = {}
        self._pools: dict[str, str] = {}
        self._sizes: dict[str, list[tuple[float, int]]] = {}
        self._recoveries = RecoveryTracker()
        self.world = World(scenario, sink=self.records.append)
        self.world.client.subscribe(self._observe)
        self.world.run_until(None)
        self.world.flush_batched_writes()
        assert self.world.rejected_writes == []

    @property
    def losses(self) -> list[GangLoss]:
        """The losses of gangs through lost machines."""
        return self._recoveries.losses

    def happened(self, event: str, owner: str) -> list[float]:
        """Return the times of an event of the Workload of a Job or JobSet."""
        return [r["time"] for r in self.records if r["event"] == event and _owner(r) == owner]

    def conditions(self, kind: str, name: str) -> list[ConditionChange]:
        """Return the changes of the conditions of an object in the default namespace."""
        return self._reported.get(Key(kind, "default", name), [])

    def names(self, kind: str) -> list[str]:
        """Return the names of all past objects of a kind."""
        return [key.name for key in self._reported if key.kind == kind]

    def sizes(self, pool: str) -> list[int]:
        """Return the successive numbers of nodes of a pool."""
        return [0, *(size for _, size in self._sizes.get(pool, []))]

    def together(self, owner: str, pods: int) -> list[tuple[float, float]]:
        """Return the periods in which this many pods of a Job or JobSet ran at the same time."""
        spans: list[tuple[float, float]] = []
        begun: float | None = None
        for at, seats in self.seats:
            whole = sum(seat.owner == owner and seat.runs for seat in seats) >= pods
            if whole and begun is None:
                begun = at
            elif not whole and begun is not None:
                spans.append((begun, at))
                begun = None
        return spans

    def pools(self, owner: str, at: float) -> list[str]:
        """Return the pools of a Job or JobSet at an instant."""
        seats = [seats for since, seats in self.seats if since <= at][-1]
        return sorted({seat.pool for seat in seats if seat.owner == owner})

    def jobs_by_pool(self) -> Iterator[dict[str, list[str]]]:
        """Yield the Jobs on each pool, after each change."""
        for _, seats in self.seats:
            pools: dict[str, list[str]] = {}
            for seat in sorted(seats):
                jobs = pools.setdefault(seat.pool, [])
                if seat.job not in jobs:
                    jobs.append(seat.job)
            yield pools

    def _observe(self, batch: Sequence[WatchEvent]) -> None:
        now = self.world.kernel.now()
        at = duration_seconds(now - EPOCH)
        self._recoveries.observe(batch, now)
        for event in batch:
            if event.key.kind == scheme.NODE:
                self._count(event, at)
            self._note(event, at)
        if any(event.key.kind == scheme.POD for event in batch):
            placed = [pod for pod in self.world.objects(scheme.POD) if bound_node(pod) and not is_terminal(pod)]
            self.seats.append((at, [self._seat(pod) for pod in placed]))

    def _count(self, event: WatchEvent, at: float) -> None:
        """Count an added or deleted node."""
        pool = label(event.obj, well_known.NODE_POOL) or ""
        self._pools[event.key.name] = pool
        step = {EventType.ADDED: 1, EventType.DELETED: -1}.get(event.type, 0)
        if step:
            self._sizes.setdefault(pool, []).append((at, self.sizes(pool)[-1] + step))

    def _note(self, event: WatchEvent, at: float) -> None:
        """Record changed conditions."""
        reported = self._reported.setdefault(event.key, [])
        known = {each.type: each for each in reported}
        for each in (event.obj.get("status") or {}).get("conditions") or ():
            new = ConditionChange(at, each["type"], each["status"], each.get("reason", ""))
            last = known.get(new.type)
            if last is None or last[2:] != new[2:]:
                reported.append(new)

    def _seat(self, pod: Obj) -> PlacedPod:
        job = label(pod, "job-name") or ""
        owner = label(pod, "jobset.sigs.k8s.io/jobset-name") or job
        return PlacedPod(owner, job, self._pools[bound_node(pod)], phase(pod) == RUNNING)


def _owner(record: Record) -> str:
    """Return the Job or JobSet of a record: its Workload is named `job-...-<hash>` or `jobset-...-<hash>`."""
    name = str(record.get("workload", "")).rpartition("/")[2]
    return name.partition("-")[2].rpartition("-")[0]
