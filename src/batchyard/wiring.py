"""The one composition root: the same controllers for every world, only the ports differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from batchyard.api import scheme
from batchyard.api.views.workload import view_by_creation, workload_view
from batchyard.base.instant import Duration
from batchyard.client.view_expiry import ViewExpiry
from batchyard.controllers import groups
from batchyard.controllers.admission.in_use import InUse
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.admission.pods_ready import PodsReadyGate
from batchyard.controllers.admission.preemption_loops import PreemptionLoop
from batchyard.controllers.admission.priority_classes import PriorityClassValues
from batchyard.controllers.admission.queue_status import QueueStatus
from batchyard.controllers.admission.scheduler import Scheduler
from batchyard.controllers.admission.workload import WorkloadLifecycle
from batchyard.controllers.autoscaler.controller import Autoscaler
from batchyard.controllers.autoscaler.index import ScalingIndex
from batchyard.controllers.autoscaler.provisioning_requests import ProvisioningRequests
from batchyard.controllers.cluster_roles import ClusterRoleAggregation
from batchyard.controllers.costs.budgets import Budgets
from batchyard.controllers.costs.controller import Costs
from batchyard.controllers.costs.resuming import History, nothing_remembered
from batchyard.controllers.custom_resources import CustomResourceDefinitions
from batchyard.controllers.disruption_budgets import DisruptionBudgets
from batchyard.controllers.event_expiry import EventExpiry
from batchyard.controllers.job_pods.controller import JobPods
from batchyard.controllers.job_sets.controller import JobSetController
from batchyard.controllers.job_sets.exclusive_placement import ExclusivePlacement
from batchyard.controllers.jobs.framework import JobController
from batchyard.controllers.jobs.job import JobIntegration
from batchyard.controllers.jobs.jobset import JobSetIntegration
from batchyard.controllers.namespaces import Namespaces
from batchyard.controllers.nodes.health import NodeHealth
from batchyard.controllers.nodes.pod_gc import PodGarbageCollector
from batchyard.controllers.nodes.taint_eviction import TaintEviction
from batchyard.controllers.placement.controller import PlacementController
from batchyard.controllers.placement.hotswap import Hotswap
from batchyard.controllers.provisioning.checks import ProvisioningChecks
from batchyard.controllers.provisioning.controller import ProvisioningController
from batchyard.controllers.resource_quotas.controller import ResourceQuotas
from batchyard.controllers.root_certificates import RootCertificates
from batchyard.controllers.runner import Defects, EventSink, Runner, stop_at_defect
from batchyard.controllers.service_accounts import ServiceAccounts
from batchyard.controllers.ttl import TtlAfterFinished
from batchyard.controllers.why.capacity import Capacity
from batchyard.controllers.why.explainer import Explainer
from batchyard.core.kueue_settings import SIMULATED, KueueSettings
from batchyard.core.lifecycle.pods_ready import RequeuingTimestamp
from batchyard.core.placement.profile import Profile
from batchyard.ports.client import Client
from batchyard.ports.controller import Controller
from batchyard.ports.cycles import CycleWatch, Unwatched
from batchyard.ports.kernel import Kernel, Pace

_CREATION: Final = RequeuingTimestamp.CREATION


@dataclass(frozen=True, slots=True)
class Ports:
    """What differs from world to world."""

    kernel: Kernel
    client: Client
    #: What runs pods and bare Workloads, as controllers.
    runtime: Sequence[Controller]
    #: What makes machines, as controllers over the cloud's objects; none where there are no nodes.
    cloud: Sequence[Controller]
    events: EventSink
    on_loop: Callable[[PreemptionLoop], None]
    #: How much of real time decisions may take; None where time is virtual.
    pace: Pace | None = None
    #: What becomes of exceptions that no controller should have raised.
    defects: Defects = stop_at_defect
    #: Is told of every scheduling cycle.
    cycles: CycleWatch = field(default_factory=Unwatched)
    #: What the store remembers of its changes.
    history: History = nothing_remembered


@dataclass(frozen=True, slots=True)
class Settings:
    """What a platform chooses for all of it."""

    kueue: KueueSettings = SIMULATED
    #: Whether pods are placed on nodes; otherwise they run wherever they are.
    with_nodes: bool = False
    #: How nodes are preferred.
    profile: Profile = Profile.BALANCED
    #: Whether gangs that lost a machine get the machines of others of lower priority, whole.
    hotswap: bool = True
    #: Whether others come to it through the API: Events are objects, which go after an hour; Namespaces have
    #: ServiceAccounts, ClusterRoles are aggregated, and users may define kinds of their own.
    with_api: bool = False
    #: What that API's certificate is signed by, as PEM, for containers to find; empty where it has none.
    root_certificate: str = ""
    #: Whether what machines cost is recorded.
    with_costs: bool = False
    #: Whether time passes though nothing happens.
    is_endless: bool = False
    #: Which controllers run, by group.
    controllers: Sequence[str] = groups.GROUPS
    #: How long what may help those who wait is gathered before they are tried again; 0: they are at once.
    gathers: Duration = 0


@dataclass(frozen=True, slots=True)
class Platform:
    """A wired platform."""

    runner: Runner
    index: AdmissionIndex
    explainer: Explainer
    #: The ledger's keeper, where costs are recorded here.
    costs: Costs | None = None


def build_platform(ports: Ports, settings: Settings) -> Platform:
    """Wire the controllers to the ports."""
    waits = settings.kueue.pods_ready
    by_creation = waits is not None and waits.requeuing_timestamp is _CREATION
    index = AdmissionIndex(view_by_creation if by_creation else workload_view)
    index.line_up.gathers = settings.gathers
    scaling = ScalingIndex()
    autoscaler = Autoscaler(scaling)
    placement = PlacementController(settings.profile, hotswap=settings.hotswap)
    nodes = _nodes(settings, placement, (autoscaler, ProvisioningRequests(scaling))) if settings.with_nodes else ()
    grouped = _grouped(index, nodes, ports, settings)
    controllers = [each for group, some in grouped if group in settings.controllers for each in some]
    costs = next((each for each in controllers if isinstance(each, Costs)), None)
    runner = Runner(ports.kernel, ports.client, controllers, ports.events, ports.pace, ports.defects)
    ports.client.subscribe(ViewExpiry().observe)
    capacity = Capacity(scaling, autoscaler, placement) if settings.with_nodes else None
    return Platform(runner, index, Explainer(index, settings.kueue.policy, ports.client, capacity), costs)


def _grouped(
    index: AdmissionIndex, nodes: Sequence[tuple[str, Sequence[Controller]]], ports: Ports, settings: Settings
) -> Sequence[tuple[str, Sequence[Controller]]]:
    """All controllers, each with its group, in the order in which they hear of changes."""
    return (
        (groups.ADMISSION, _admission(index, ports, settings)),
        (groups.PROVISIONING, (ProvisioningChecks(), ProvisioningController())),
        (groups.JOBS, (JobPods(),)),
        (groups.JOBSET, (JobSetController(),)),
        (groups.JOBS if groups.JOBS in settings.controllers else groups.JOBSET, _of_ended(settings)),
        (groups.NAMESPACES, (Namespaces(with_custom_kinds=settings.with_api),)),
        (groups.RESOURCE_QUOTA, (ResourceQuotas(),)),
        (groups.DISRUPTION, (DisruptionBudgets(),)),
        (groups.API, _api(settings) if settings.with_api else ()),
        *nodes,
        (groups.RUNTIME, ports.runtime),
        (groups.CLOUD, ports.cloud),
        (groups.API, (EventExpiry(),) if settings.with_api else ()),
        (groups.COSTS, _costs(ports, settings) if settings.with_costs else ()),
        (groups.ADMISSION, (InUse(index), QueueStatus(index, fair_sharing=settings.kueue.policy.fair_sharing))),
    )


def _costs(ports: Ports, settings: Settings) -> Sequence[Controller]:
    """What is kept of costs."""
    costs = Costs(ports.history, is_endless=settings.is_endless)
    return (costs, Budgets(costs, is_endless=settings.is_endless))


def _api(settings: Settings) -> Sequence[Controller]:
    """What there is to do where others come to the platform through its API."""
    roots = (RootCertificates(settings.root_certificate),) if settings.root_certificate else ()
    return (CustomResourceDefinitions(), ServiceAccounts(), ClusterRoleAggregation(), *roots)


def _of_ended(settings: Settings) -> Sequence[Controller]:
    """What deletes after their end those whose controllers run here."""
    kinds = {groups.JOBS: scheme.JOB, groups.JOBSET: scheme.JOB_SET}
    return (TtlAfterFinished([kind for group, kind in kinds.items() if group in settings.controllers]),)


def _admission(index: AdmissionIndex, ports: Ports, settings: Settings) -> Sequence[Controller]:
    """Kueue's part: who is admitted, and what their jobs are told."""
    kueue, ready = settings.kueue, settings.kueue.pods_ready
    gate = PodsReadyGate(ready) if ready is not None and ready.block_admission else None
    scheduler = Scheduler(index, kueue.policy, ports.on_loop, gate, ports.cycles, weighs=settings.with_api)
    jobs = partial(
        JobController,
        copied_labels=kueue.copied_labels,
        wait_for_pods_ready=ready is not None,
        managed_namespaces=kueue.managed_namespaces,
    )
    return (
        scheduler,  # first: it feeds the index that others read
        WorkloadLifecycle(ready),
        PriorityClassValues(),
        jobs(JobIntegration()),
        jobs(JobSetIntegration()),
    )


def _nodes(
    settings: Settings, placement: Controller, scaling: Sequence[Controller]
) -> Sequence[tuple[str, Sequence[Controller]]]:
    """What there is to do where there are nodes."""
    return (
        (groups.PLACEMENT, (placement,)),
        (groups.JOBSET, (ExclusivePlacement(),)),
        (groups.NODES, (NodeHealth(), TaintEviction(), PodGarbageCollector())),
        (groups.HOTSWAP, (Hotswap(),) if settings.hotswap else ()),
        (groups.AUTOSCALER, scaling),  # the first feeds the index
    )
