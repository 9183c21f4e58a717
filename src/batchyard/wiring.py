"""The composition root: wires the same controllers for every world, to different ports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from batchyard import controller_groups
from batchyard.accounting.budgets import Budgets
from batchyard.accounting.controller import CostController, History, nothing_remembered
from batchyard.admissionchecks.provisioning import ProvisioningChecks, ProvisioningController
from batchyard.api import scheme
from batchyard.api.views.workload import view_by_creation, workload_view
from batchyard.autoscaler.controller import Autoscaler
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.provisioning_requests import ProvisioningRequests
from batchyard.base.instant import Duration
from batchyard.client.informer import ViewExpiry
from batchyard.controller_runtime.runner import Defects, EventSink, Runner, stop_at_defect
from batchyard.disruption.controller import DisruptionBudgets
from batchyard.explain.admitted import NodeCapacityView
from batchyard.explain.explainer import Explainer
from batchyard.housekeeping.controllers import (
    ClusterRoleAggregation,
    CustomResourceDefinitions,
    EventExpiry,
    Namespaces,
    RootCertificates,
    ServiceAccounts,
    TtlAfterFinished,
)
from batchyard.interfaces.client import ObjectClient
from batchyard.interfaces.controller import Controller, Kernel, ReconcileThrottle
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.controller import JobSetController
from batchyard.jobs.jobset.exclusive_placement import ExclusivePlacement
from batchyard.jobs.jobset.integration import JobSetIntegration
from batchyard.nodes.health import NodeHealth, TaintEviction
from batchyard.nodes.pods import PodGarbageCollector
from batchyard.placement.controller import PlacementController
from batchyard.placement.hotswap import Hotswap
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.quotas.resource_quotas import ResourceQuotas
from batchyard.scheduling.controller import CycleObserver, NoCycleObserver, PodsReadyGate, Scheduler
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.kueue_configuration import SIMULATED, KueueSettings
from batchyard.scheduling.queue_status import QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.adjustments import PriorityClassValues
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.lifecycle import ResourceInUseFinalizer
from batchyard.scheduling.workload.pods_ready import RequeuingTimestamp

_CREATION: Final = RequeuingTimestamp.CREATION


@dataclass(frozen=True, slots=True)
class Ports:
    """The interfaces that differ between worlds."""

    kernel: Kernel
    client: ObjectClient
    #: The controllers that run pods and bare Workloads.
    runtime: Sequence[Controller]
    #: The controllers that create machines; none in a world without nodes.
    cloud: Sequence[Controller]
    events: EventSink
    on_loop: Callable[[PreemptionLoop], None]
    #: The limit on real time for decisions; None if time is virtual.
    pace: ReconcileThrottle | None = None
    #: The handler of unexpected exceptions in controllers.
    defects: Defects = stop_at_defect
    #: Observes every scheduling cycle.
    cycles: CycleObserver = field(default_factory=NoCycleObserver)
    #: The store's history of changes.
    history: History = nothing_remembered


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """The settings of a platform."""

    kueue: KueueSettings = SIMULATED
    #: Whether pods are scheduled to nodes; otherwise they run without one.
    with_nodes: bool = False
    #: The scoring profile of nodes.
    profile: AutoscalingProfile = AutoscalingProfile.BALANCED
    #: Whether a gang that lost a machine takes over the machines of a whole gang of lower priority.
    hotswap: bool = True
    #: Whether clients use the API: Events are objects with a TTL of an hour, Namespaces have ServiceAccounts,
    #: ClusterRoles are aggregated, and users may define custom kinds.
    with_api: bool = False
    #: The certificate authority of the API as PEM, for containers; empty without TLS.
    root_certificate: str = ""
    #: Whether the costs of machines are recorded.
    with_costs: bool = False
    #: Whether time passes without events.
    is_endless: bool = False
    #: The controller groups that run.
    controllers: Sequence[str] = controller_groups.GROUPS
    #: How long events that could help pending Workloads are batched before a retry; 0: no batching.
    requeue_batch_period: Duration = 0


@dataclass(frozen=True, slots=True)
class WiredPlatform:
    """A wired platform."""

    runner: Runner
    index: SchedulerCache
    explainer: Explainer
    #: The costs controller, if costs are recorded here.
    costs: CostController | None = None


def build_platform(ports: Ports, settings: PlatformSettings) -> WiredPlatform:
    """Wire the controllers to the ports."""
    waits = settings.kueue.pods_ready
    by_creation = waits is not None and waits.requeuing_timestamp is _CREATION
    index = SchedulerCache(view_by_creation if by_creation else workload_view, settings.requeue_batch_period)
    scaling = ScalingIndex()
    autoscaler = Autoscaler(scaling)
    placement = PlacementController(settings.profile, hotswap=settings.hotswap)
    nodes = _nodes(settings, placement, (autoscaler, ProvisioningRequests(scaling))) if settings.with_nodes else ()
    grouped = _grouped(index, nodes, ports, settings)
    controllers = [each for group, some in grouped if group in settings.controllers for each in some]
    costs = next((each for each in controllers if isinstance(each, CostController)), None)
    runner = Runner(ports.kernel, ports.client, controllers, ports.events, ports.pace, ports.defects)
    ports.client.subscribe(ViewExpiry().observe)
    capacity = NodeCapacityView(scaling, autoscaler, placement) if settings.with_nodes else None
    return WiredPlatform(runner, index, Explainer(index, settings.kueue.policy, ports.client, capacity), costs)


def _grouped(
    index: SchedulerCache, nodes: Sequence[tuple[str, Sequence[Controller]]], ports: Ports, settings: PlatformSettings
) -> Sequence[tuple[str, Sequence[Controller]]]:
    """All controllers with their groups, in the order in which they observe changes."""
    return (
        (controller_groups.ADMISSION, _admission(index, ports, settings)),
        (controller_groups.PROVISIONING, (ProvisioningChecks(), ProvisioningController())),
        (controller_groups.JOBS, (JobPodController(),)),
        (controller_groups.JOBSET, (JobSetController(),)),
        (
            controller_groups.JOBS if controller_groups.JOBS in settings.controllers else controller_groups.JOBSET,
            _of_ended(settings),
        ),
        (controller_groups.NAMESPACES, (Namespaces(with_custom_kinds=settings.with_api),)),
        (controller_groups.RESOURCE_QUOTA, (ResourceQuotas(),)),
        (controller_groups.DISRUPTION, (DisruptionBudgets(),)),
        (controller_groups.API, _api(settings) if settings.with_api else ()),
        *nodes,
        (controller_groups.RUNTIME, ports.runtime),
        (controller_groups.CLOUD, ports.cloud),
        (controller_groups.API, (EventExpiry(),) if settings.with_api else ()),
        (controller_groups.COSTS, _costs(ports, settings) if settings.with_costs else ()),
        (
            controller_groups.ADMISSION,
            (
                ResourceInUseFinalizer(index),
                QueueStatusController(index, fair_sharing=settings.kueue.policy.fair_sharing),
            ),
        ),
    )


def _costs(ports: Ports, settings: PlatformSettings) -> Sequence[Controller]:
    """The controllers of costs and budgets."""
    costs = CostController(ports.history, is_endless=settings.is_endless)
    return (costs, Budgets(costs, is_endless=settings.is_endless))


def _api(settings: PlatformSettings) -> Sequence[Controller]:
    """The controllers for clients of the API."""
    roots = (RootCertificates(settings.root_certificate),) if settings.root_certificate else ()
    return (CustomResourceDefinitions(), ServiceAccounts(), ClusterRoleAggregation(), *roots)


def _of_ended(settings: PlatformSettings) -> Sequence[Controller]:
    """The TTL controller, for the job kinds whose controllers run here."""
    kinds = {controller_groups.JOBS: scheme.JOB, controller_groups.JOBSET: scheme.JOB_SET}
    return (TtlAfterFinished([kind for group, kind in kinds.items() if group in settings.controllers]),)


def _admission(index: SchedulerCache, ports: Ports, settings: PlatformSettings) -> Sequence[Controller]:
    """Kueue's controllers: the scheduler, and the jobs' integration."""
    kueue, ready = settings.kueue, settings.kueue.pods_ready
    gate = PodsReadyGate(ready) if ready is not None and ready.block_admission else None
    scheduler = Scheduler(index, kueue.policy, ports.on_loop, gate, ports.cycles, weighs=settings.with_api)
    jobs = partial(
        JobReconciler,
        copied_labels=kueue.copied_labels,
        wait_for_pods_ready=ready is not None,
        managed_namespaces=kueue.managed_namespaces,
    )
    return (
        scheduler,  # first: it updates the index that others read
        WorkloadLifecycle(ready),
        PriorityClassValues(),
        jobs(JobIntegration()),
        jobs(JobSetIntegration()),
    )


def _nodes(
    settings: PlatformSettings, placement: Controller, scaling: Sequence[Controller]
) -> Sequence[tuple[str, Sequence[Controller]]]:
    """The controllers of nodes."""
    return (
        (controller_groups.PLACEMENT, (placement,)),
        (controller_groups.JOBSET, (ExclusivePlacement(),)),
        (controller_groups.NODES, (NodeHealth(), TaintEviction(), PodGarbageCollector())),
        (controller_groups.HOTSWAP, (Hotswap(),) if settings.hotswap else ()),
        (controller_groups.AUTOSCALER, scaling),  # the first updates the index
    )
