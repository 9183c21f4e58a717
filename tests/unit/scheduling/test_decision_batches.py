"""Events of one batch are recorded for each object, even if writes of other objects conflict."""

from collections import Counter

import make
from admission_watch import open_queue
from batchyard.api import scheme
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Create, Write
from batchyard.interfaces.controller import Controller, EventRecord
from batchyard.placement.controller import PlacementController
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.lifecycle import has_quota_reservation
from batchyard.sim.faults import FaultyClient, WriteFaults
from batchyard.store.memory import Store
from yard import workload

NAMES = [f"q{number}" for number in range(12)]


class ConflictingWorld:
    """A world in which every other write of a controller conflicts, with its recorded events."""

    def __init__(self, controller: Controller) -> None:
        self.kernel, self.recorded = VirtualEventLoop(make.NOW), Counter[tuple[str, str]]()
        self.client, trouble = LocalClient(Store(), self.kernel), WriteFaults()
        Runner(self.kernel, FaultyClient(self.client, trouble), [controller], self._record)
        trouble.conflict_rate = 0.5

    def run(self, *writes: Write) -> None:
        for write in writes:
            self.client.submit([write], lambda _: None)
        self.kernel.run()

    def _record(self, _now: int, _controller: str, event: EventRecord) -> None:
        self.recorded[event.regarding.name, event.reason] += 1


def test_admission_events_are_recorded_once_despite_conflicts() -> None:
    world = ConflictingWorld(Scheduler(SchedulerCache(), SchedulingPolicy()))
    queues = [obj for name in NAMES for obj in open_queue(name, 1)]
    waiting = [workload(name, queue=name) for name in NAMES]
    world.run(*[Create(obj) for obj in (make.namespace(), make.flavor("spot"), *waiting, *queues)])
    assert all(map(has_quota_reservation, world.client.list(scheme.WORKLOAD)))
    assert world.recorded == {(name, reason): 1 for name in NAMES for reason in ("QuotaReserved", "Admitted")}


def test_failed_scheduling_events_are_recorded_once_despite_conflicts() -> None:
    world = ConflictingWorld(PlacementController())
    spec, status = make.pod_template()["spec"], {"phase": "Pending"}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": make.metadata(name)} for name in NAMES]
    world.run(*[Create({**pod, "spec": spec, "status": status}) for pod in pods])
    assert world.recorded == {(name, "FailedScheduling"): 1 for name in NAMES}
