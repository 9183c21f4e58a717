"""Scheduling settings from Kueue's Configuration file, and the settings there that batchyard ignores or rejects.

A Configuration passed to these functions must be decoded (`api.decode`) and valid, and have all defaults. Source:
apis/config/v1beta2 of Kueue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Selector, parse_selector
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY, GATES, UNSCHEDULED_TIMEOUT, WORKLOAD_LEVEL_TIMEOUTS
from batchyard.base.instant import HOUR, SECOND, Duration, parse_duration
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp

#: Settings of Kueue's own deployment, endpoints and metrics.
_DEPLOYMENT_FIELDS: Final = (
    "clientConnection",
    "controller",
    "health",
    "internalCertManagement",
    "leaderElection",
    "metrics",
    "pprofBindAddress",
    "tls",
    "visibilityServer",
    "webhook",
)
_DECISION_FIELDS: Final = (
    *("apiVersion", "kind", "metadata", "fairSharing", "featureGates", "manageJobsWithoutQueueName"),
    *("managedJobsNamespaceSelector", "namespace", "waitForPodsReady"),
)
_DECISION_INTEGRATIONS: Final = ("externalFrameworks", "frameworks", "labelKeysToCopy")
#: The supported job frameworks, with their kinds.
_SUPPORTED_FRAMEWORKS: Final[Mapping[str, str]] = {"batch/job": scheme.JOB, "jobset.x-k8s.io/jobset": scheme.JOB_SET}
#: Labels of Workloads that only Kueue's controllers set. Source: nonInheritableLabels in jobframework/utils.go.
_UNCOPIED_LABELS: Final = frozenset(
    {"kueue.x-k8s.io/concurrent-admission-parent", "kueue.x-k8s.io/job-uid", "kueue.x-k8s.io/multikueue-origin"}
)
#: The supported feature gates.
_SUPPORTED_GATES: Final = frozenset({DISABLE_WAIT_FOR_PODS_READY, UNSCHEDULED_TIMEOUT, WORKLOAD_LEVEL_TIMEOUTS})
#: The default of `waitForPodsReady.maxTimeoutOnWorkload`.
_TIMEOUT_ON_WORKLOAD_MAX: Final = 2 * HOUR


def managed_namespaces(
    namespace_selector: Mapping[str, Any] | None = None, kueue_namespace: str = "kueue-system"
) -> Selector | None:
    """Return the selector of the Namespaces whose jobs are managed; by default, all but kube-system and Kueue's own."""
    exclusion = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", kueue_namespace]}
    return parse_selector(namespace_selector or {"matchExpressions": [exclusion]})


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
    #: The jobs that are managed.
    managed_jobs: ManagedJobs = field(default_factory=lambda: ManagedJobs(managed_namespaces()))

    @property
    def tracks_scheduling(self) -> bool:
        """Whether the pods of admitted Workloads have a timeout to be scheduled."""
        return self.pods_ready is not None and self.pods_ready.unscheduled_timeout > 0

    @property
    def timeout_on_workload_max(self) -> Duration | None:
        """The maximum of the timeouts for ready pods that a job may set in an annotation; None if it may set none."""
        return None if self.pods_ready is None else self.pods_ready.timeout_on_workload_max

    def with_fair_sharing(self) -> "KueueSettings":
        """Return a copy of the settings with fair sharing enabled."""
        return replace(self, policy=replace(self.policy, fair_sharing=True))


#: The default settings of a simulation: no PodsReady timeout, all Namespaces managed.
SIMULATION_SETTINGS: Final = KueueSettings(pods_ready=None, managed_jobs=ManagedJobs())


def parse_kueue_settings(configuration: Mapping[str, Any]) -> KueueSettings:
    """Return the scheduling settings of a Kueue Configuration in which all defaults are set."""
    fair_sharing_settings = configuration.get("fairSharing")
    policy = SchedulingPolicy()
    if fair_sharing_settings is not None:
        strategies = tuple(map(FairSharingStrategy, fair_sharing_settings["preemptionStrategies"]))
        policy = SchedulingPolicy(fair_sharing=True, preemption_strategies=strategies)
    is_pods_ready_disabled = (configuration.get("featureGates") or {}).get(DISABLE_WAIT_FOR_PODS_READY, False)
    gates = {**GATES, **(configuration.get("featureGates") or {})}
    pods_ready = None if is_pods_ready_disabled else pods_ready_policy(configuration["waitForPodsReady"], gates)
    label_keys = (configuration.get("integrations") or {}).get("labelKeysToCopy") or ()
    copied_labels = tuple(key for key in label_keys if key not in _UNCOPIED_LABELS)
    return KueueSettings(policy, pods_ready, copied_labels, _managed_jobs(configuration))


def _managed_jobs(configuration: Mapping[str, Any]) -> ManagedJobs:
    """Return which jobs a Configuration manages; without a list of frameworks, all supported kinds."""
    integrations = configuration.get("integrations") or {}
    frameworks = integrations.get("frameworks") or _SUPPORTED_FRAMEWORKS
    kueue_namespace = configuration.get("namespace") or "kueue-system"
    external_names = [name.split(".", 2) for name in integrations.get("externalFrameworks") or ()]
    return ManagedJobs(
        managed_namespaces(configuration.get("managedJobsNamespaceSelector"), kueue_namespace),
        bool(configuration.get("manageJobsWithoutQueueName")),
        tuple(kind for framework, kind in _SUPPORTED_FRAMEWORKS.items() if framework in frameworks),
        tuple((f"{group}/{version}", kind) for kind, version, group in external_names),
    )


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
    """Return a Kueue Configuration reduced to `_DECISION_FIELDS` and the relevant fields of `integrations`."""
    decision_relevant_fields = {name: configuration[name] for name in _DECISION_FIELDS if name in configuration}
    integrations = configuration.get("integrations") or {}
    relevant_integrations = {name: integrations[name] for name in _DECISION_INTEGRATIONS if integrations.get(name)}
    return {**decision_relevant_fields, **({"integrations": relevant_integrations} if relevant_integrations else {})}


def deployment_fields(configuration: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the fields in a Kueue Configuration that concern Kueue's own deployment."""
    return [name for name in _DEPLOYMENT_FIELDS if name in configuration]


def unsupported_fields(configuration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path of each unsupported field of a Kueue Configuration, and what batchyard does instead."""
    if "admissionFairSharing" in configuration:
        yield "admissionFairSharing", "Workloads of all LocalQueues of a ClusterQueue are ordered by priority and age"
    for name in ("excludeResourcePrefixes", "transformations", "deviceClassMappings"):
        if (configuration.get("resources") or {}).get(name):
            yield f"resources.{name}", "quota is charged for the resources exactly as pods request them"
    if (configuration.get("resources") or {}).get("quotaCheckStrategy") == "IgnoreUndeclared":
        actual_behavior = "Workloads that request a resource without quota in their ClusterQueue stay pending"
        yield "resources.quotaCheckStrategy", actual_behavior


def unsupported_field_errors(configuration: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each unsupported field of a Kueue Configuration."""
    for path, actual_behavior in unsupported_fields(configuration):
        yield FieldError(path, f"this setting is not supported: {actual_behavior}", "remove the field")


def ignored_settings(configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts about ignored settings: job integrations, multiKueue, objectRetentionPolicies and feature gates."""
    integrations = configuration.get("integrations") or {}
    ignored_frameworks = [name for name in integrations.get("frameworks") or () if name not in _SUPPORTED_FRAMEWORKS]
    if ignored_frameworks:
        yield f"the job integrations {', '.join(ignored_frameworks)}"
    yield from (name for name in ("multiKueue", "objectRetentionPolicies") if name in configuration)
    gates = configuration.get("featureGates") or {}
    names = [name for name, is_on in gates.items() if GATES.get(name) is not is_on and name not in _SUPPORTED_GATES]
    if names:
        yield f"featureGates {', '.join(names)}"


def _parse_optional_duration(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)
