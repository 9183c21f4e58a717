"""Scheduling settings from Kueue's Configuration file, and the settings there that batchyard ignores or rejects.

A Configuration passed to these functions must be decoded (`api.decode`) and valid, and have all defaults. Source:
apis/config/v1beta2 of Kueue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import Selector, parse_selector
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY
from batchyard.base.instant import SECOND, Duration, parse_duration
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.kueue_gates import (
    ADMISSION_FAIR_SHARING,
    GATE_RULES,
    MULTI_KUEUE,
    PARTIAL_ADMISSION,
    QUOTA_CHECK_STRATEGY,
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
    *("apiVersion", "kind", "metadata", "fairSharing", "featureGates", "managedJobsNamespaceSelector"),
    *("namespace", "objectRetentionPolicies", "resources", "waitForPodsReady"),
)
#: The supported job frameworks.
_SUPPORTED_FRAMEWORKS: Final = ("batch/job", "jobset.x-k8s.io/jobset")


def managed_namespaces(
    namespace_selector: Mapping[str, Any] | None = None, kueue_namespace: str = "kueue-system"
) -> Selector | None:
    """Return the selector of the Namespaces whose jobs are managed; by default, all but kube-system and Kueue's own."""
    exclusion = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", kueue_namespace]}
    return parse_selector(namespace_selector or {"matchExpressions": [exclusion]})


@dataclass(frozen=True, slots=True)
class CustomMetricLabel:
    """A label of metrics whose value is that of a label or annotation of a queue or Cohort."""

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
    #: The Namespaces whose jobs are managed; None for all.
    managed_namespaces: Selector | None = field(default_factory=managed_namespaces)
    #: The resources that quota is charged for.
    resources: ResourceRules = field(default_factory=ResourceRules)
    #: How long finished Workloads and deactivated jobs are kept.
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    #: Which metrics are served; they have no effect on decisions.
    metrics: MetricsSettings = field(default_factory=MetricsSettings)

    def with_fair_sharing(self) -> "KueueSettings":
        """Return a copy of the settings with fair sharing enabled."""
        return replace(self, policy=replace(self.policy, fair_sharing=True))


#: The default settings of a simulation: no PodsReady timeout, all Namespaces managed.
SIMULATION_SETTINGS: Final = KueueSettings(pods_ready=None, managed_namespaces=None)


def parse_kueue_settings(configuration: Mapping[str, Any]) -> KueueSettings:
    """Return the scheduling settings of a Kueue Configuration in which all defaults are set."""
    fair_sharing_settings = configuration.get("fairSharing")
    policy = SchedulingPolicy(partial_admission=is_gate_enabled(configuration, PARTIAL_ADMISSION))
    if fair_sharing_settings is not None:
        strategies = tuple(map(FairSharingStrategy, fair_sharing_settings["preemptionStrategies"]))
        policy = replace(policy, fair_sharing=True, preemption_strategies=strategies)
    is_pods_ready_disabled = is_gate_enabled(configuration, DISABLE_WAIT_FOR_PODS_READY)
    pods_ready = None if is_pods_ready_disabled else pods_ready_policy(configuration["waitForPodsReady"])
    copied_labels = (configuration.get("integrations") or {}).get("labelKeysToCopy") or ()
    kueue_namespace = configuration.get("namespace") or "kueue-system"
    namespace_selector = managed_namespaces(configuration.get("managedJobsNamespaceSelector"), kueue_namespace)
    resource_rules = parse_resource_rules(
        configuration.get("resources") or {}, is_strategy_enabled=is_gate_enabled(configuration, QUOTA_CHECK_STRATEGY)
    )
    retention = parse_retention_policy(configuration.get("objectRetentionPolicies") or {})
    metrics = parse_metrics_settings(configuration)
    return KueueSettings(
        policy, pods_ready, tuple(copied_labels), namespace_selector, resource_rules, retention, metrics
    )


def pods_ready_policy(wait_for_pods_ready: Mapping[str, Any]) -> PodsReadyPolicy:
    """Parse the `waitForPodsReady` object of a Configuration with all defaults; a timeout of 0 means the default."""
    requeuing_strategy = wait_for_pods_ready["requeuingStrategy"]
    return PodsReadyPolicy(
        timeout=parse_duration(wait_for_pods_ready["timeout"]) or PodsReadyPolicy().timeout,
        recovery_timeout=_parse_optional_duration(wait_for_pods_ready.get("recoveryTimeout")),
        block_admission=wait_for_pods_ready["blockAdmission"],
        requeuing_timestamp=RequeuingTimestamp(requeuing_strategy["timestamp"]),
        backoff_limit_count=requeuing_strategy.get("backoffLimitCount"),
        backoff_base=requeuing_strategy["backoffBaseSeconds"] * SECOND,
        backoff_max=requeuing_strategy["backoffMaxSeconds"] * SECOND,
    )


def decision_fields(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Kueue Configuration reduced to `_DECISION_FIELDS` and, if set, `integrations.labelKeysToCopy`."""
    decision_relevant_fields = {name: configuration[name] for name in _DECISION_FIELDS if name in configuration}
    labels = (configuration.get("integrations") or {}).get("labelKeysToCopy")
    return {**decision_relevant_fields, **({"integrations": {"labelKeysToCopy": labels}} if labels else {})}


def deployment_fields(configuration: Mapping[str, Any]) -> Sequence[str]:
    """Return the paths of the fields in a Kueue Configuration that concern Kueue's own deployment."""
    has_metrics_address = "bindAddress" in (configuration.get("metrics") or {})
    paths = [name for name in _DEPLOYMENT_FIELDS if name in configuration]
    return sorted([*paths, "metrics.bindAddress"]) if has_metrics_address else paths


def unsupported_fields(configuration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path of each unsupported field of a Kueue Configuration, and what batchyard does instead."""
    if configuration.get("manageJobsWithoutQueueName"):
        yield "manageJobsWithoutQueueName", "jobs without a queue name start immediately, without quota"
    if "admissionFairSharing" in configuration and is_gate_enabled(configuration, ADMISSION_FAIR_SHARING):
        yield "admissionFairSharing", "Workloads of all LocalQueues of a ClusterQueue are ordered by priority and age"
    if (configuration.get("resources") or {}).get("deviceClassMappings"):
        yield "resources.deviceClassMappings", "quota is not charged for the devices of ResourceClaims"
    if configuration.get("multiKueue") and is_gate_enabled(configuration, MULTI_KUEUE):
        yield "multiKueue", "Workloads are not dispatched to other clusters"
    for i, label in enumerate((configuration.get("metrics") or {}).get("customLabels") or ()):
        if label.get("sourceKind") == "Workload" and is_gate_enabled(configuration, "CustomMetricLabels"):
            actual_behavior = "metrics have labels of queues and Cohorts only"
            yield f"metrics.customLabels[{i}].sourceKind", actual_behavior
    for name in changed_gates(configuration, GateEffect.REFUSED):
        yield f"featureGates.{name}", GATE_RULES[name].reason


def unsupported_field_errors(configuration: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each unsupported field of a Kueue Configuration."""
    for path, actual_behavior in unsupported_fields(configuration):
        yield FieldError(path, f"this setting is not supported: {actual_behavior}", "remove the field")


def ignored_settings(configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts about ignored settings: job integrations and feature gates."""
    integrations = configuration.get("integrations") or {}
    ignored_frameworks = [name for name in integrations.get("frameworks") or () if name not in _SUPPORTED_FRAMEWORKS]
    ignored_frameworks += integrations.get("externalFrameworks") or ()
    if ignored_frameworks:
        yield f"the job integrations {', '.join(ignored_frameworks)}"
    omitted_names = [
        key for key in _SUPPORTED_FRAMEWORKS if key not in integrations.get("frameworks", _SUPPORTED_FRAMEWORKS)
    ]
    if omitted_names:
        yield f"omitting {' and '.join(omitted_names)} from integrations.frameworks: their jobs are queued regardless"
    names = changed_gates(configuration, GateEffect.NONE)
    if names:
        yield f"featureGates {', '.join(names)}"


def _parse_optional_duration(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)
