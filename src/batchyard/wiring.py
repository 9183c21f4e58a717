"""Creates all controllers and connects them to the client, clock and other ports of a live platform or a simulation."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from batchyard import controller_groups
from batchyard.accounting.budgets import Budgets
from batchyard.accounting.controller import ChangeHistory, CostController, no_history
from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.admission_plugins.job_annotations import kinds_with_queues
from batchyard.admissionchecks.provisioning import ProvisioningChecks, ProvisioningController
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.views.pods import PodView
from batchyard.api.views.workload import workload_view
from batchyard.autoscaler.controller import Autoscaler
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.provisioning_requests import ProvisioningRequests
from batchyard.base.instant import Duration
from batchyard.client.informer import ViewExpiry
from batchyard.controller_runtime.kernel import AnnotatedKinds, OnDemandController
from batchyard.controller_runtime.runner import DefectReporter, EventSink, Runner, raise_defect
from batchyard.disruption.controller import DisruptionBudgets
from batchyard.explain.explainer import Explainer
from batchyard.explain.node_capacity import NodeCapacityView
from batchyard.housekeeping.controllers import (
    ClusterRoleAggregation,
    CustomResourceDefinitions,
    EventExpiry,
    Namespaces,
    RootCertificates,
    ServiceAccounts,
    TtlAfterFinished,
)
from batchyard.interfaces.client import ObjectClient, ObjectReader, WatchEvent
from batchyard.interfaces.containers import MeasuredUsage
from batchyard.interfaces.controller import Controller, Kernel, ReconcileThrottle
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobframework.workloads import CopiedKeys
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.jobset.controller import JobSetController
from batchyard.jobs.jobset.exclusive_placement import ExclusivePlacementController
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.nodes.health import NodeHealth, TaintEviction
from batchyard.nodes.pods import FailureRecovery, PodGarbageCollector
from batchyard.placement.cluster_snapshot import ClusterSnapshot, VolumeFilter, VolumeFilterFactory
from batchyard.placement.controller import PlacementController
from batchyard.placement.gpu_policies import NodeScoring
from batchyard.placement.hotswap import Hotswap
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.quotas.resource_quotas import ResourceQuotas
from batchyard.scheduling.blocked_cycle import IN_PROCESS_PACING, DecisionPacing, PodsReadyGate
from batchyard.scheduling.controller import CycleObserver, NoCycleObserver, Scheduler, SchedulerSettings
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.fair_sharing.usage_sampling import UsageSampling, keep_usage_ledger
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS, KueueSettings
from batchyard.scheduling.queue_status import QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.adjustments import PriorityClassValues
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.lifecycle import ResourceInUseFinalizer, concerns_custom_jobs, concerns_queued_pods
from batchyard.scheduling.workload.node_failures import NodeFailures
from batchyard.scheduling.workload.pods_ready import RequeuingTimestamp, view_by_creation
from batchyard.scheduling.workload.pods_scheduled import UnscheduledPodsTracker
from batchyard.scheduling.workload.retention import FinishedWorkloadRetention
from batchyard.topology.ungater import TopologyUngater

_BY_CREATION: Final = RequeuingTimestamp.CREATION
#: The controllers of the group `apps` in the order of `_create_app`, with the kind that each reconciles.
_APP_KINDS: Final = {
    "deployment-controller": scheme.DEPLOYMENT,
    "replicaset-controller": scheme.REPLICA_SET,
    "statefulset-controller": scheme.STATEFUL_SET,
    "daemonset-controller": scheme.DAEMON_SET,
    "cronjob-controller": scheme.CRON_JOB,
    "replicationcontroller-controller": scheme.REPLICATION_CONTROLLER,
}


def unknown_usage(_pod: Obj) -> MeasuredUsage | None:
    """Return None: the usage of pods is not known."""
    return None


@dataclass(frozen=True, slots=True)
class PlatformPorts:
    """The parts that the live platform, operator and simulator provide: event loop, client, pods, machines, Events."""

    kernel: Kernel
    client: ObjectClient
    #: The controllers that run pods, and Workloads without a job.
    pod_controllers: Sequence[Controller]
    #: The controllers that create machines; none in a platform without nodes.
    machine_controllers: Sequence[Controller]
    events: EventSink
    on_preemption_loop: Callable[[PreemptionLoop], None]
    #: Limits the share of real time for reconciling; None if time is simulated.
    throttle: ReconcileThrottle | None = None
    #: The handler of unexpected exceptions in controllers.
    defect_reporter: DefectReporter = raise_defect
    #: Observes the scheduling cycles.
    cycle_observer: CycleObserver = field(default_factory=NoCycleObserver)
    #: The store's history of changes.
    history: ChangeHistory = no_history
    pacing: DecisionPacing = IN_PROCESS_PACING
    #: Further controllers of the API.
    api_controllers: Sequence[Controller] = ()
    #: Returns the current usage of a pod, None if it is not known.
    pod_usage: Callable[[Obj], MeasuredUsage | None] = unknown_usage
    #: Whether a node keeps the folders of volumes, and deletes those of deleted volumes.
    has_volume_folders: bool = False


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """The configuration of a platform: Kueue settings, optional features, and the controller groups that run."""

    kueue: KueueSettings = SIMULATION_SETTINGS
    #: Whether pods are scheduled to nodes; otherwise pods run without a node.
    with_nodes: bool = False
    #: Whether Workloads may request topology-aware scheduling; this needs nodes.
    with_topology: bool = False
    #: The scoring profile of nodes.
    profile: NodeScoring = AutoscalingProfile.BALANCED
    #: Whether a gang that lost a machine takes over the machines of a whole gang of lower priority.
    hotswap: bool = True
    #: Whether clients use the API: Events are objects with a TTL of an hour, Namespaces have ServiceAccounts,
    #: ClusterRoles are aggregated, and users may define custom kinds.
    with_api: bool = False
    #: The certificate authority of the API as PEM, for containers; empty without TLS.
    root_certificate: str = ""
    #: Whether the costs of machines are recorded.
    with_costs: bool = False
    #: Whether the clock runs while no event is due (real time); simulated time jumps to the next event.
    is_endless: bool = False
    #: Whether the run ends when no event is scheduled, as a simulation without a horizon.
    ends_when_idle: bool = False
    #: The controller groups that run.
    controllers: Sequence[str] = controller_groups.GROUPS
    #: The projects, such as `kubeflow`, whose jobs run without their own controllers.
    job_controllers: Sequence[str] = ()
    #: The API groups whose built-in kinds are not served, because their projects define them.
    custom_groups: Collection[str] = ()
    #: How long events that could help pending Workloads are batched before a retry; 0: no batching.
    requeue_batch_period: Duration = 0


@dataclass(frozen=True, slots=True)
class WiredPlatform:
    """The runner of the controllers, with the scheduler cache, the explainer and the cost controller."""

    runner: Runner
    index: SchedulerCache
    explainer: Explainer
    #: None if costs are not recorded here.
    costs: CostController | None = None


def build_platform(ports: PlatformPorts, settings: PlatformSettings) -> WiredPlatform:
    """Create the controllers, connect them to the ports, and return a platform that runs `settings.controllers`."""
    pods_ready_settings = settings.kueue.pods_ready
    requeues_by_creation = pods_ready_settings is not None and pods_ready_settings.requeuing_timestamp is _BY_CREATION
    index = SchedulerCache(
        view_by_creation if requeues_by_creation else workload_view,
        settings.requeue_batch_period,
        rules=settings.kueue.policy.rules,
        resource_rules=settings.kueue.resources,
    )
    if settings.kueue.admission_fair_sharing is not None:
        keep_usage_ledger(index, settings.kueue.admission_fair_sharing)
    scaling_index = ScalingIndex()
    autoscaler = Autoscaler(scaling_index)
    volume_filter = _volume_filter(ports.client, settings)
    scaling_index.nodes.volume_filter = volume_filter
    placement = PlacementController(settings.profile, hotswap=settings.hotswap, volume_filter=volume_filter)
    node_controllers = (
        _node_controllers(settings, placement, (autoscaler, ProvisioningRequests(scaling_index)))
        if settings.with_nodes
        else ()
    )
    controllers_by_group = _group_controllers(index, node_controllers, ports, settings)
    controllers = [each for group, members in controllers_by_group if group in settings.controllers for each in members]
    costs = next((each for each in controllers if isinstance(each, CostController)), None)
    runner = Runner(ports.kernel, ports.client, controllers, ports.events, ports.throttle, ports.defect_reporter)
    ports.client.subscribe(ViewExpiry().observe)
    capacity_view = NodeCapacityView(scaling_index, autoscaler, placement) if settings.with_nodes else None
    return WiredPlatform(runner, index, Explainer(index, settings.kueue.policy, ports.client, capacity_view), costs)


def _group_controllers(
    index: SchedulerCache,
    node_controllers: Sequence[tuple[str, Sequence[Controller]]],
    ports: PlatformPorts,
    settings: PlatformSettings,
) -> Sequence[tuple[str, Sequence[Controller]]]:
    """Return pairs of a controller group's name and its controllers, in the order in which they observe changes."""
    return (
        (controller_groups.ADMISSION, _admission_controllers(index, ports, settings)),
        (controller_groups.PROVISIONING, (ProvisioningChecks(), ProvisioningController())),
        (controller_groups.PODS, (*_pod_controllers(settings), *_service_reconcilers(settings, ports.client))),
        (controller_groups.JOBS, (JobPodController(),)),
        (controller_groups.JOBSET, (JobSetController(),)),
        (controller_groups.APPS, (*_app_controllers(), *_pod_autoscalers(ports, settings), *_stand_ins(settings))),
        (controller_groups.SERVICES, _service_controllers() if settings.with_api else ()),
        (controller_groups.VOLUMES, _volume_controllers(ports, settings) if settings.with_api else ()),
        (
            controller_groups.JOBS if controller_groups.JOBS in settings.controllers else controller_groups.JOBSET,
            _ttl_controllers(settings),
        ),
        (controller_groups.NAMESPACES, (Namespaces(with_custom_kinds=settings.with_api),)),
        (controller_groups.RESOURCE_QUOTA, (ResourceQuotas(),)),
        (controller_groups.DISRUPTION, (DisruptionBudgets(),)),
        (controller_groups.API, _api_controllers(settings) if settings.with_api else ()),
        *node_controllers,
        (controller_groups.RUNTIME, ports.pod_controllers),
        (controller_groups.CLOUD, ports.machine_controllers),
        (controller_groups.API, (EventExpiry(), *ports.api_controllers) if settings.with_api else ()),
        (controller_groups.COSTS, _cost_controllers(ports, settings) if settings.with_costs else ()),
        (
            controller_groups.ADMISSION,
            (
                ResourceInUseFinalizer(index),
                QueueStatusController(index, fair_sharing=settings.kueue.policy.fair_sharing),
            ),
        ),
    )


def _pod_controllers(settings: PlatformSettings) -> Sequence[Controller]:
    """Return the controller of pods in queues, whose modules are imported when the first such pod exists.

    It runs only together with the controllers that admit Workloads.
    """
    is_enabled = scheme.POD in settings.kueue.managed_jobs.kinds
    if not is_enabled or controller_groups.ADMISSION not in settings.controllers:
        return ()
    first_kinds = (scheme.POD, scheme.WORKLOAD)
    return (OnDemandController("pod", first_kinds, partial(_create_pod_reconciler, settings), concerns_queued_pods),)


def _service_reconcilers(settings: PlatformSettings, objects: ObjectReader) -> Sequence[Controller]:
    """Return the controllers of kinds that serve in queues, whose modules are imported on first use."""
    if controller_groups.ADMISSION not in settings.controllers:
        return ()
    names = {scheme.STATEFUL_SET: "statefulset", scheme.LEADER_WORKER_SET: "leaderworkerset"}
    kinds = settings.kueue.managed_jobs.kinds
    return [
        OnDemandController(name, (kind,), partial(_create_service_reconciler, settings, objects, kind))
        for kind, name in names.items()
        if kind in kinds
    ]


def _create_service_reconciler(settings: PlatformSettings, objects: ObjectReader, kind: str) -> Controller:
    from batchyard.jobs.serving import leader_worker_set, stateful_set  # noqa: PLC0415 - as above

    kueue = settings.kueue
    if kind == scheme.STATEFUL_SET:
        return stateful_set.StatefulSetReconciler(kueue.managed_jobs, kueue.policy.rules)
    copied_keys = _job_options(settings)["copied_keys"]
    return leader_worker_set.LeaderWorkerSetReconciler(kueue.managed_jobs, copied_keys, kueue.policy.rules, objects)


def _create_pod_reconciler(settings: PlatformSettings) -> Controller:
    from batchyard.jobs.pod.controller import PodReconciler  # noqa: PLC0415 - few simulations have pods in queues

    return PodReconciler(**_job_options(settings), batch_period=settings.requeue_batch_period)


def _job_options(settings: PlatformSettings) -> dict[str, Any]:
    """Return the arguments that the reconcilers of all kinds of jobs have in common."""
    kueue = settings.kueue
    return {
        "copied_keys": CopiedKeys(kueue.copied_labels, kueue.copied_annotations),
        "pods_ready": kueue.pods_ready,
        "managed_jobs": kueue.managed_jobs,
        "rules": kueue.policy.rules,
        "retention": kueue.retention,
    }


def _app_controllers() -> Sequence[Controller]:
    """Return the controllers of the kinds in `apps` and of CronJobs, whose modules are imported on first use."""
    return [OnDemandController(name, (kind,), partial(_create_app, name)) for name, kind in _APP_KINDS.items()]


def _create_app(name: str) -> Controller:
    # These modules are imported here, because few simulations have such objects.
    from batchyard.apps import cron_job, daemon_set, deployment, replica_set, stateful_set  # noqa: PLC0415

    controllers: Sequence[Callable[[], Controller]] = (
        *(deployment.DeploymentController, replica_set.ReplicaSetController, stateful_set.StatefulSetController),
        *(daemon_set.DaemonSetController, cron_job.CronJobController),
        partial(replica_set.ReplicaSetController, scheme.REPLICATION_CONTROLLER),
    )
    return controllers[list(_APP_KINDS).index(name)]()


def _pod_autoscalers(ports: PlatformPorts, settings: PlatformSettings) -> Sequence[Controller]:
    """Return the controller of HorizontalPodAutoscalers, whose modules are imported on first use."""
    create = partial(_create_pod_autoscaler, ports.pod_usage, is_endless=settings.is_endless)
    return (OnDemandController("horizontal-pod-autoscaler", (scheme.HORIZONTAL_POD_AUTOSCALER,), create),)


def _create_pod_autoscaler(usage_of: Callable[[Obj], MeasuredUsage | None], *, is_endless: bool) -> Controller:
    from batchyard.podautoscaler.controller import PodAutoscalerController  # noqa: PLC0415 - as above

    return PodAutoscalerController(usage_of, is_endless=is_endless)


def _stand_ins(settings: PlatformSettings) -> Sequence[Controller]:
    """Return the controllers of `--job-controllers`, whose modules are imported when the first such job exists.

    Their names are those of the projects' own controllers.
    """
    kinds = [kind for name in settings.job_controllers for kind in controller_groups.JOB_CONTROLLERS[name]]
    return [
        OnDemandController(f"{kind.partition('.')[0].lower()}-controller", (kind,), partial(_create_stand_in, kind))
        for kind in kinds
    ]


def _create_stand_in(kind: str) -> Controller:
    if kind == "RayCluster.ray.io":
        from batchyard.jobs.stand_ins.ray import RayClusterController  # noqa: PLC0415 - as above

        return RayClusterController()
    if kind == "RayJob.ray.io":
        from batchyard.jobs.stand_ins.ray_jobs import RayJobController  # noqa: PLC0415 - as above

        return RayJobController()
    from batchyard.jobs.stand_ins.kubeflow import TrainingJobController  # noqa: PLC0415 - as above

    return TrainingJobController(kind)


def _service_controllers() -> Sequence[Controller]:
    """Return the controllers of Endpoints and EndpointSlices, whose modules are imported on first use."""
    return (
        OnDemandController(
            "endpointslice-controller", (scheme.SERVICE,), _create_endpoint_controller, _has_service_selector
        ),
        OnDemandController(
            "endpointslice-mirroring-controller", (scheme.ENDPOINTS,), _create_mirror_controller, _is_custom_endpoints
        ),
    )


def _volume_controllers(ports: PlatformPorts, settings: PlatformSettings) -> Sequence[Controller]:
    """Return the controller of volumes and their claims, whose modules are imported on first use."""
    first_kinds = (scheme.PERSISTENT_VOLUME_CLAIM, scheme.PERSISTENT_VOLUME)
    create = partial(_create_volume_controller, ports, with_nodes=settings.with_nodes)
    return (OnDemandController("persistentvolume-controller", first_kinds, create),)


def _volume_filter(reader: ObjectReader, settings: PlatformSettings) -> VolumeFilterFactory | None:
    """Return how the scheduler checks the claims of pods; None if no controller binds claims."""
    if not settings.with_api or controller_groups.VOLUMES not in settings.controllers:
        return None

    def create_filter(pod: PodView, nodes: ClusterSnapshot) -> VolumeFilter:
        from batchyard.volumes.scheduling import ClaimFilter  # noqa: PLC0415 - as above

        return ClaimFilter(pod, nodes, reader)

    return create_filter


def _create_volume_controller(ports: PlatformPorts, *, with_nodes: bool) -> Controller:
    from batchyard.volumes import controller  # noqa: PLC0415 - as above

    volumes = controller.VolumeController(with_nodes=with_nodes, has_folders=ports.has_volume_folders)
    return controller.with_existing_pods(volumes, ports.client.list(scheme.POD))


def _has_service_selector(event: WatchEvent) -> bool:
    return bool((event.obj.get("spec") or {}).get("selector"))


def _is_custom_endpoints(event: WatchEvent) -> bool:
    """Return whether a change is about Endpoints that neither a controller nor the platform itself writes."""
    labels = event.obj["metadata"].get("labels") or {}
    return not labels.keys() & {"endpoints.kubernetes.io/managed-by", "endpointslice.kubernetes.io/skip-mirror"}


def _create_endpoint_controller() -> Controller:
    from batchyard.services.controller import EndpointController  # noqa: PLC0415 - as above

    return EndpointController()


def _create_mirror_controller() -> Controller:
    from batchyard.services.controller import EndpointsMirrorController  # noqa: PLC0415 - as above

    return EndpointsMirrorController()


def _cost_controllers(ports: PlatformPorts, settings: PlatformSettings) -> Sequence[Controller]:
    costs = CostController(ports.history, is_endless=settings.is_endless)
    return (costs, Budgets(costs, is_endless=settings.is_endless))


def _api_controllers(settings: PlatformSettings) -> Sequence[Controller]:
    root_certificates = (RootCertificates(settings.root_certificate),) if settings.root_certificate else ()
    return (
        CustomResourceDefinitions(settings.custom_groups),
        ServiceAccounts(),
        ClusterRoleAggregation(),
        *root_certificates,
    )


def _ttl_controllers(settings: PlatformSettings) -> Sequence[Controller]:
    kinds = {controller_groups.JOBS: scheme.JOB, controller_groups.JOBSET: scheme.JOB_SET}
    return (TtlAfterFinished([kind for group, kind in kinds.items() if group in settings.controllers]),)


def _admission_controllers(
    index: SchedulerCache, ports: PlatformPorts, settings: PlatformSettings
) -> Sequence[Controller]:
    kueue, pods_ready_settings = settings.kueue, settings.kueue.pods_ready
    pods_ready_gate = (
        PodsReadyGate(pods_ready_settings)
        if pods_ready_settings is not None and pods_ready_settings.block_admission
        else None
    )
    scheduler = Scheduler(
        index,
        kueue.policy,
        ports.on_preemption_loop,
        pods_ready_gate,
        ports.cycle_observer,
        SchedulerSettings(settings.with_api, ports.pacing, watches_nodes=settings.with_topology),
    )
    if settings.with_topology:
        index.snapshot.topology.enable(kueue.topology_gates)
    options = _job_options(settings)
    after_finished = kueue.retention.after_finished
    return (
        scheduler,  # first, because it updates the cache that the others read
        *_sampling_controllers(index, settings),
        WorkloadLifecycle(pods_ready_settings, kueue.policy.rules),
        PriorityClassValues(),
        *(() if after_finished is None else (FinishedWorkloadRetention(after_finished),)),
        *((UnscheduledPodsTracker(),) if kueue.tracks_scheduling else ()),
        *(
            (NodeFailures(kueue.topology_gates), TopologyUngater(settings.requeue_batch_period))
            if settings.with_topology
            else ()
        ),
        *(JobReconciler(each, **options) for kind, each in INTEGRATIONS.items() if kind in kueue.managed_jobs.kinds),
        *described_job_controllers(options, kueue.managed_jobs, ports.client),
        OnDemandController(
            "job-dependencies",
            (scheme.JOB_KIND,),
            partial(_create_dependencies, kueue.managed_jobs),
            annotated=AnnotatedKinds((*kinds_with_queues(kueue.managed_jobs), scheme.WORKLOAD), well_known.AFTER),
        ),
    )


def _create_dependencies(managed_jobs: ManagedJobs) -> Controller:
    from batchyard.jobs.dependencies import JobDependencies  # noqa: PLC0415 - few jobs depend on others

    return JobDependencies(managed_jobs)


def described_job_controllers(
    options: Mapping[str, Any], managed_jobs: ManagedJobs, objects: ObjectReader
) -> Sequence[Controller]:
    """Return the controller of custom kinds of jobs, whose modules are imported when such a job or a JobKind exists."""
    kinds = [kind for kind in managed_jobs.kinds if kind in scheme.DESCRIBED_KINDS and kind not in scheme.SERVING_KINDS]
    create = partial(_create_custom_jobs, options, objects, kinds)
    first_kinds = (scheme.JOB_KIND, scheme.WORKLOAD, *kinds)
    concerns = partial(concerns_custom_jobs, frozenset(kinds), managed_jobs.has_kind_of_owner)
    return (OnDemandController("job-kinds", first_kinds, create, concerns),)


def _create_custom_jobs(options: Mapping[str, Any], objects: ObjectReader, kinds: Sequence[str]) -> Controller:
    from batchyard.jobs.described import controller  # noqa: PLC0415 - CEL takes 0.1 s to load

    return controller.CustomJobs(options, objects, kinds)


def _sampling_controllers(index: SchedulerCache, settings: PlatformSettings) -> Sequence[Controller]:
    ledger = index.workload_cache.usage_ledger
    return () if ledger is None else (UsageSampling(index, ledger, is_endless=not settings.ends_when_idle),)


def _failure_recovery(settings: PlatformSettings) -> Sequence[Controller]:
    return (FailureRecovery(),) if settings.kueue.recovers_failures else ()


def _node_controllers(
    settings: PlatformSettings, placement: Controller, scaling_controllers: Sequence[Controller]
) -> Sequence[tuple[str, Sequence[Controller]]]:
    return (
        (controller_groups.PLACEMENT, (placement,)),
        (controller_groups.JOBSET, (ExclusivePlacementController(),)),
        (controller_groups.NODES, (NodeHealth(), TaintEviction(), PodGarbageCollector())),
        (controller_groups.HOTSWAP, (*((Hotswap(),) if settings.hotswap else ()), *_failure_recovery(settings))),
        (controller_groups.AUTOSCALER, scaling_controllers),  # the first updates the index of the others
    )
