"""The one composition root: the same controllers for every world, only the ports differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from batchyard.controllers.admission_index import AdmissionIndex
from batchyard.controllers.in_use import InUse
from batchyard.controllers.jobs.framework import JobController
from batchyard.controllers.jobs.job import JobIntegration
from batchyard.controllers.jobs.jobset import JobSetIntegration
from batchyard.controllers.preemption_loops import PreemptionLoop
from batchyard.controllers.priority_classes import PriorityClassValues
from batchyard.controllers.queue_status import QueueStatus
from batchyard.controllers.runner import EventSink, Runner
from batchyard.controllers.scheduler import Scheduler
from batchyard.controllers.workload import WorkloadLifecycle
from batchyard.core.cycle import Policy
from batchyard.ports.client import Client
from batchyard.ports.controller import Controller
from batchyard.ports.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Ports:
    """What differs from world to world."""

    kernel: Kernel
    client: Client
    #: What runs admitted work, as controllers.
    runtime: Sequence[Controller]
    events: EventSink
    on_loop: Callable[[PreemptionLoop], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a platform chooses for all of it."""

    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class Platform:
    """A wired platform."""

    runner: Runner
    index: AdmissionIndex


def build_platform(ports: Ports, settings: Settings) -> Platform:
    """Wire the controllers to the ports."""
    index = AdmissionIndex()
    controllers: list[Controller] = [
        Scheduler(index, settings.policy, ports.on_loop),  # first: it feeds the index that others read
        WorkloadLifecycle(),
        PriorityClassValues(),
        JobController(JobIntegration()),
        JobController(JobSetIntegration()),
        *ports.runtime,
        InUse(index),
        QueueStatus(index, fair_sharing=settings.policy.fair_sharing),
    ]
    return Platform(Runner(ports.kernel, ports.client, controllers, ports.events), index)
