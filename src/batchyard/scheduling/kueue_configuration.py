"""Scheduling settings from Kueue's Configuration file, and the settings there that batchyard ignores or rejects.

A Configuration passed to these functions must be decoded (`api.decode`) and valid, and have all defaults. Source:
apis/config/v1beta2 of Kueue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Selector, parse_selector
from batchyard.api.validation.feature_gates import dependency_errors
from batchyard.api.well_known import (
    ADMISSION_FAIR_SHARING,
    DISABLE_WAIT_FOR_PODS_READY,
    GATES,
    TOPOLOGY_AWARE_SCHEDULING,
    TOPOLOGY_GATES,
    UNSCHEDULED_TIMEOUT,
    WORKLOAD_LEVEL_TIMEOUTS,
)
from batchyard.base.instant import HOUR, SECOND, Duration, parse_duration
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.decisions import DEFAULT_VERSION, DecisionRules, KueueVersion, decision_rules
from batchyard.scheduling.fair_sharing.admission_fair_sharing import DEFAULT_SAMPLING_INTERVAL, AdmissionFairSharing
from batchyard.scheduling.kueue_gates import (
    FAILURE_RECOVERY_POLICY,
    GATE_RULES,
    MULTI_KUEUE,
    PARTIAL_ADMISSION,
    QUOTA_CHECK_STRATEGY,
    SPARK_INTEGRATION,
    GateEffect,
    changed_gates,
    is_gate_enabled,
)
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.scheduling.resource_charging import ResourceRules, parse_resource_rules
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp
from batchyard.scheduling.workload.retention import RetentionPolicy, parse_retention_policy

#: Settings of Kueue's own deployment, endpoints and metrics.
_DEPLOYMENT_FIELDS: Final = (
    "clientConnection",
    "controller",
    "health",
    "internalCertManagement",
    "leaderElection",
    "pprofBindAddress",
    "tls",
    "visibilityServer",
    "webhook",
)
_DECISION_FIELDS: Final = (
    *("apiVersion", "kind", "metadata", "admissionFairSharing", "fairSharing", "featureGates"),
    *("manageJobsWithoutQueueName", "managedJobsNamespaceSelector", "namespace", "objectRetentionPolicies"),
    *("resources", "waitForPodsReady"),
)
_DECISION_INTEGRATIONS: Final = ("externalFrameworks", "frameworks", "labelKeysToCopy")
#: Labels of Workloads that only Kueue's controllers set. Source: nonInheritableLabels in jobframework/utils.go.
_UNCOPIED_LABELS: Final = frozenset(
    {"kueue.x-k8s.io/concurrent-admission-parent", "kueue.x-k8s.io/job-uid", "kueue.x-k8s.io/multikueue-origin"}
)
#: The source of custom labels whose values are labels or annotations of Workloads.
WORKLOAD_SOURCE: Final = "Workload"
#: The default of `waitForPodsReady.maxTimeoutOnWorkload`.
_TIMEOUT_ON_WORKLOAD_MAX: Final = 2 * HOUR


def managed_namespaces(
    namespace_selector: Mapping[str, Any] | None = None, kueue_namespace: str = "kueue-system"
) -> Selector | None:
    """Return the selector of the Namespaces whose jobs are managed; by default, all but kube-system and Kueue's own."""
    exclusion = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", kueue_namespace]}
    return parse_selector(namespace_selector or {"matchExpressions": [exclusion]})


@dataclass(frozen=True, slots=True)
class CustomMetricLabel:
    """A label of metrics whose value is that of a label or annotation of a queue, Cohort or Workload."""

    #: The name of the label: `custom_NAME`.
    name: str
    source_kind: str
    #: The key of the label or annotation.
    key: str
    is_annotation: bool = False
    #: The values that are reported; empty for all values.
    tracked_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The section `metrics` of a Configuration, and the feature gates that concern metrics."""

    has_local_queues: bool = True
    #: Selects the LocalQueues that have metrics; None selects all.
    local_queue_selector: Selector | None = None
    #: Whether ClusterQueues have metrics of their quotas and of used resources.
    has_cluster_queue_resources: bool = True
    #: Whether the metrics with the parents of queues and Cohorts are served.
    has_cohort_info: bool = True
    has_creation_latency: bool = True
    custom_labels: tuple[CustomMetricLabel, ...] = ()


def parse_metrics_settings(configuration: Mapping[str, Any]) -> MetricsSettings:
    """Return the settings of metrics in a valid Configuration.

    Without `enableClusterQueueResources`, metrics of quotas are served; Kueue serves them only with the value true.
    """
    metrics = configuration.get("metrics") or {}
    local_queues = metrics.get("localQueueMetrics")
    is_enabled = local_queues is None or bool(local_queues.get("enable"))
    selector = None if local_queues is None else local_queues.get("localQueueSelector")
    has_custom_labels = is_gate_enabled(configuration, "CustomMetricLabels")
    return MetricsSettings(
        has_local_queues=is_enabled and is_gate_enabled(configuration, "LocalQueueMetrics"),
        local_queue_selector=None if selector is None else parse_selector(selector),
        has_cluster_queue_resources=metrics.get("enableClusterQueueResources") is not False,
        has_cohort_info=is_gate_enabled(configuration, "MetricsForCohorts"),
        has_creation_latency=is_gate_enabled(configuration, "MetricForWorkloadCreationLatency"),
        custom_labels=tuple(map(_parse_custom_label, metrics.get("customLabels") or ())) if has_custom_labels else (),
    )


def _parse_custom_label(label: Mapping[str, Any]) -> CustomMetricLabel:
    annotation_key = label.get("sourceAnnotationKey")
    return CustomMetricLabel(
        name=f"custom_{label['name']}",
        source_kind=label.get("sourceKind") or "ClusterQueue",
        key=annotation_key or label.get("sourceLabelKey") or label["name"],
        is_annotation=bool(annotation_key),
        tracked_values=tuple(label.get("trackedValues") or ()),
    )


@dataclass(frozen=True, slots=True)
class KueueSettings:
    """The settings of Kueue's Configuration that affect scheduling decisions.

    The defaults are those of Kueue 0.19, which are also those of 0.20.
    """

    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    #: The PodsReady timeout and requeue settings; None disables the timeout.
    pods_ready: PodsReadyPolicy | None = field(default_factory=PodsReadyPolicy)
    #: The keys of job labels that are copied to Workloads.
    copied_labels: tuple[str, ...] = ()
    #: The keys of job annotations that are copied to Workloads because metrics have labels with their values.
    copied_annotations: tuple[str, ...] = ()
    #: The jobs that are managed.
    managed_jobs: ManagedJobs = field(default_factory=lambda: ManagedJobs(managed_namespaces()))
    #: The resources that quota is charged for.
    resources: ResourceRules = field(default_factory=ResourceRules)
    #: How long finished Workloads and deactivated jobs are kept.
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    #: Which metrics are served; they have no effect on decisions.
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    #: How usage orders Workloads of usage-based ClusterQueues; None disables admission fair sharing.
    admission_fair_sharing: AdmissionFairSharing | None = None
    #: The feature gates of topology-aware scheduling that are set, by name.
    topology_gates: Mapping[str, bool] = field(default_factory=dict)
    #: Whether terminating pods on unreachable nodes are deleted by force if they opt in (FailureRecoveryPolicy).
    recovers_failures: bool = False
    #: The version of Kueue whose rules applied when the state with these settings was recorded; None if unknown.
    recorded_version: KueueVersion | None = None

    @property
    def tracks_scheduling(self) -> bool:
        """Whether the pods of admitted Workloads have a timeout to be scheduled."""
        return self.pods_ready is not None and self.pods_ready.unscheduled_timeout > 0

    @property
    def is_topology_aware(self) -> bool:
        """Whether topology-aware scheduling is enabled."""
        return self.topology_gates.get(TOPOLOGY_AWARE_SCHEDULING, True)

    @property
    def timeout_on_workload_max(self) -> Duration | None:
        """The maximum of the timeouts for ready pods that a job may set in an annotation; None if it may set none."""
        return None if self.pods_ready is None else self.pods_ready.timeout_on_workload_max

    def with_own_job_kinds(self) -> "KueueSettings":
        """Return a copy of the settings for one platform, which enables the kinds that its JobKinds describe."""
        return replace(self, managed_jobs=replace(self.managed_jobs, job_kinds={}))

    def without_jobs(self) -> "KueueSettings":
        """Return a copy of the settings that manages no kind of jobs."""
        return replace(self, managed_jobs=replace(self.managed_jobs, kinds=(), without_queue_name=False))

    def with_fair_sharing(self) -> "KueueSettings":
        """Return a copy of the settings with fair sharing enabled."""
        return replace(self, policy=replace(self.policy, fair_sharing=True))

    def with_version(self, version: KueueVersion) -> "KueueSettings":
        """Return a copy of the settings with the decision rules of a version of Kueue; the feature gates stay set."""
        return self.with_rules(decision_rules(version, dict(self.policy.rules.set_gates)))

    def with_recorded_version(self, version: KueueVersion) -> "KueueSettings":
        """Return a copy of the settings with the decision rules of the version that a state records."""
        return replace(self.with_version(version), recorded_version=version)

    def with_gates(self, gates: Mapping[str, bool]) -> "KueueSettings":
        """Return a copy of the settings with the decision rules and the topology rules that feature gates select."""
        topology_gates = {name: is_on for name, is_on in gates.items() if name in TOPOLOGY_GATES}
        policy = replace(self.policy, partial_admission=gates.get(PARTIAL_ADMISSION, GATES[PARTIAL_ADMISSION]))
        recovers_failures = gates.get(FAILURE_RECOVERY_POLICY, GATES[FAILURE_RECOVERY_POLICY])
        settings = replace(self, policy=policy, topology_gates=topology_gates, recovers_failures=recovers_failures)
        return settings.with_rules(decision_rules(DEFAULT_VERSION, gates))

    def with_rules(self, rules: DecisionRules) -> "KueueSettings":
        """Return a copy of the settings with other decision rules."""
        fair_sharing = self.admission_fair_sharing
        if fair_sharing is not None:
            fair_sharing = replace(fair_sharing, is_anchored_at_reservation=rules.anchors_usage_at_reservation)
        return replace(
            self,
            policy=replace(self.policy, rules=rules),
            managed_jobs=replace(self.managed_jobs, class_defaulting=rules.class_defaulting),
            admission_fair_sharing=fair_sharing,
        )


#: The default settings of a simulation: no PodsReady timeout, all Namespaces managed.
SIMULATION_SETTINGS: Final = KueueSettings(pods_ready=None, managed_jobs=ManagedJobs())


def parse_kueue_settings(configuration: Mapping[str, Any]) -> KueueSettings:
    """Return the scheduling settings of a Kueue Configuration in which all defaults are set."""
    fair_sharing_settings = configuration.get("fairSharing")
    policy = SchedulingPolicy()
    if fair_sharing_settings is not None:
        strategies = tuple(map(FairSharingStrategy, fair_sharing_settings["preemptionStrategies"]))
        policy = replace(policy, fair_sharing=True, preemption_strategies=strategies)
    set_gates = configuration.get("featureGates") or {}
    gates = {**GATES, **set_gates}
    pods_ready = None
    if not gates[DISABLE_WAIT_FOR_PODS_READY]:
        pods_ready = pods_ready_policy(configuration["waitForPodsReady"], gates)
    label_keys = (configuration.get("integrations") or {}).get("labelKeysToCopy") or ()
    metrics = parse_metrics_settings(configuration)
    workload_labels = [label for label in metrics.custom_labels if label.source_kind == WORKLOAD_SOURCE]
    label_keys = dict.fromkeys([*label_keys, *(label.key for label in workload_labels if not label.is_annotation)])
    settings = KueueSettings(
        policy,
        pods_ready,
        copied_labels=tuple(key for key in label_keys if key not in _UNCOPIED_LABELS),
        copied_annotations=tuple(label.key for label in workload_labels if label.is_annotation),
        managed_jobs=_managed_jobs(configuration),
        resources=parse_resource_rules(
            configuration.get("resources") or {}, is_strategy_enabled=gates[QUOTA_CHECK_STRATEGY]
        ),
        retention=parse_retention_policy(configuration.get("objectRetentionPolicies") or {}),
        metrics=metrics,
        admission_fair_sharing=parse_admission_fair_sharing(configuration.get("admissionFairSharing"), gates),
    )
    return settings.with_gates(set_gates)


def _managed_jobs(configuration: Mapping[str, Any]) -> ManagedJobs:
    """Return which jobs a Configuration manages; without a list of frameworks, all supported kinds."""
    integrations = configuration.get("integrations") or {}
    frameworks = integrations.get("frameworks") or _default_frameworks(configuration)
    kueue_namespace = configuration.get("namespace") or "kueue-system"
    external_names = [name.split(".", 2) for name in integrations.get("externalFrameworks") or ()]
    kinds = [kind for framework, kind in scheme.JOB_FRAMEWORKS.items() if framework in frameworks]
    # Services are queued by means of their pods. Source: ImplicitlyEnabledFrameworkNames of Kueue's integrations.
    implies_pods = scheme.POD not in kinds and any(kind in scheme.SERVING_KINDS for kind in kinds)
    return ManagedJobs(
        managed_namespaces(configuration.get("managedJobsNamespaceSelector"), kueue_namespace),
        bool(configuration.get("manageJobsWithoutQueueName")),
        (*kinds, scheme.POD) if implies_pods else tuple(kinds),
        tuple((f"{group}/{version}", kind) for kind, version, group in external_names),
        implies_pods=implies_pods,
    )


def _default_frameworks(configuration: Mapping[str, Any]) -> list[str]:
    is_spark_disabled = (configuration.get("featureGates") or {}).get(SPARK_INTEGRATION) is False
    return [name for name in scheme.JOB_FRAMEWORKS if not is_spark_disabled or name != scheme.SPARK_FRAMEWORK]


def parse_admission_fair_sharing(
    fields: Mapping[str, Any] | None, gates: Mapping[str, bool] = GATES
) -> AdmissionFairSharing | None:
    """Parse the object `admissionFairSharing` with all defaults; None if it is unset, or disabled by a feature gate.

    A sampling interval of 0 means the default. A positive one below the resolution of one microsecond is rounded up.
    """
    if fields is None or not gates[ADMISSION_FAIR_SHARING]:
        return None
    half_life, interval = (parse_duration(fields[name]) for name in ("usageHalfLifeTime", "usageSamplingInterval"))
    weights = {resource: float(weight) for resource, weight in (fields.get("resourceWeights") or {}).items()}
    is_zero = not any(digit in fields["usageSamplingInterval"] for digit in "123456789")
    return AdmissionFairSharing(half_life, interval or (DEFAULT_SAMPLING_INTERVAL if is_zero else 1), weights)


def platform_kueue_settings(configuration: Mapping[str, Any] | None, version: str) -> KueueSettings:
    """Return the settings of `batchyard up` with the rules of a version; without a Configuration, a simulation's."""
    settings = SIMULATION_SETTINGS if configuration is None else parse_kueue_settings(configuration)
    return settings.with_version(KueueVersion(version))


def pods_ready_policy(wait_for_pods_ready: Mapping[str, Any], gates: Mapping[str, bool] = GATES) -> PodsReadyPolicy:
    """Parse the `waitForPodsReady` object of a Configuration with all defaults; a timeout of 0 means the default.

    `gates` are the feature gates by name, which enable the timeout for unscheduled pods and the timeouts of jobs.
    """
    unscheduled_timeout = _parse_optional_duration(wait_for_pods_ready.get("unscheduledTimeout"))
    timeout_on_workload_max = _parse_optional_duration(wait_for_pods_ready.get("maxTimeoutOnWorkload"))
    requeuing_strategy = wait_for_pods_ready["requeuingStrategy"]
    return PodsReadyPolicy(
        timeout=parse_duration(wait_for_pods_ready["timeout"]) or PodsReadyPolicy().timeout,
        recovery_timeout=_parse_optional_duration(wait_for_pods_ready.get("recoveryTimeout")),
        block_admission=wait_for_pods_ready["blockAdmission"],
        requeuing_timestamp=RequeuingTimestamp(requeuing_strategy["timestamp"]),
        backoff_limit_count=requeuing_strategy.get("backoffLimitCount"),
        backoff_base=requeuing_strategy["backoffBaseSeconds"] * SECOND,
        backoff_max=requeuing_strategy["backoffMaxSeconds"] * SECOND,
        unscheduled_timeout=(unscheduled_timeout or 0) if gates[UNSCHEDULED_TIMEOUT] else 0,
        timeout_on_workload_max=(timeout_on_workload_max or _TIMEOUT_ON_WORKLOAD_MAX)
        if gates[WORKLOAD_LEVEL_TIMEOUTS]
        else None,
    )


def decision_fields(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Kueue Configuration reduced to the fields that affect decisions or the metadata of Workloads.

    These are `_DECISION_FIELDS`, some fields of `integrations`, and the custom labels that metrics get from Workloads.
    """
    fields = {name: configuration[name] for name in _DECISION_FIELDS if name in configuration}
    integrations = configuration.get("integrations") or {}
    relevant_integrations = {name: integrations[name] for name in _DECISION_INTEGRATIONS if integrations.get(name)}
    custom_labels = (configuration.get("metrics") or {}).get("customLabels") or ()
    workload_labels = [label for label in custom_labels if label.get("sourceKind") == WORKLOAD_SOURCE]
    if relevant_integrations:
        fields["integrations"] = relevant_integrations
    if workload_labels:
        fields["metrics"] = {"customLabels": workload_labels}
    return fields


def deployment_fields(configuration: Mapping[str, Any]) -> Sequence[str]:
    """Return the paths of the fields in a Kueue Configuration that concern Kueue's own deployment."""
    has_metrics_address = "bindAddress" in (configuration.get("metrics") or {})
    paths = [name for name in _DEPLOYMENT_FIELDS if name in configuration]
    return sorted([*paths, "metrics.bindAddress"]) if has_metrics_address else paths


def unsupported_fields(configuration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path of each unsupported field of a Kueue Configuration, and what batchyard does instead."""
    if (configuration.get("resources") or {}).get("deviceClassMappings"):
        yield "resources.deviceClassMappings", "quota is not charged for the devices of ResourceClaims"
    if configuration.get("multiKueue") and is_gate_enabled(configuration, MULTI_KUEUE):
        yield "multiKueue", "Workloads are not dispatched to other clusters"
    for name in changed_gates(configuration, GateEffect.REFUSED):
        yield f"featureGates.{name}", GATE_RULES[name].reason


def unsupported_field_errors(configuration: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each unsupported field of a Kueue Configuration, and for an integration without its gate."""
    for path, actual_behavior in unsupported_fields(configuration):
        yield FieldError(path, f"this setting is not supported: {actual_behavior}", "remove the field")
    frameworks = (configuration.get("integrations") or {}).get("frameworks") or ()
    if scheme.SPARK_FRAMEWORK in frameworks and not is_gate_enabled(configuration, SPARK_INTEGRATION):
        text = f"{scheme.SPARK_FRAMEWORK} integration is alpha feature. please enable {SPARK_INTEGRATION} featuregate"
        path = f"integrations.frameworks[{list(frameworks).index(scheme.SPARK_FRAMEWORK)}]"
        yield FieldError(path, text, f"set featureGates.{SPARK_INTEGRATION} to true, or remove the integration")


def feature_gate_errors(gates: Mapping[str, bool], path: str) -> Iterator[FieldError]:
    """Yield the errors of the feature gates in `gates`: unknown and unsupported ones, and unmet dependencies.

    `path` is the path of the gates.
    """
    for name in changed_gates({"featureGates": gates}, GateEffect.REFUSED):
        problem = f"this setting is not supported: {GATE_RULES[name].reason}"
        yield FieldError(f"{path}.{name}", problem, "remove the field")
    for name in gates:
        if name not in GATES:
            close_matches = get_close_matches(name, list(GATES), 1)
            remedy = f"did you mean {close_matches[0]!r}?" if close_matches else "use the name of a gate of Kueue"
            yield FieldError(f"{path}.{name}", f"unknown feature gate {name!r}", remedy)
    yield from dependency_errors(gates, path)


def ignored_settings(configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts about ignored settings: feature gates."""
    names = changed_gates(configuration, GateEffect.NONE)
    if names:
        yield f"featureGates {', '.join(names)}"


def _parse_optional_duration(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)
