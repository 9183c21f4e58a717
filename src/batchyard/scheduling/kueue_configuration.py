"""Scheduling settings from Kueue's Configuration file, and the settings there that batchyard ignores or rejects.

A Configuration passed to these functions must be decoded (`api.decode`) and valid, and have all defaults. Source:
apis/config/v1beta2 of Kueue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import Selector, parse_selector
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY, GATES
from batchyard.base.instant import SECOND, Duration, parse_duration
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
    *("apiVersion", "kind", "metadata", "fairSharing", "featureGates", "managedJobsNamespaceSelector"),
    *("namespace", "waitForPodsReady"),
)
#: The supported job frameworks.
_SUPPORTED_FRAMEWORKS: Final = ("batch/job", "jobset.x-k8s.io/jobset")
#: The supported feature gates.
_SUPPORTED_GATES: Final = frozenset({DISABLE_WAIT_FOR_PODS_READY})


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
    #: The Namespaces whose jobs are managed; None for all.
    managed_namespaces: Selector | None = field(default_factory=managed_namespaces)
    #: The feature gates that are set, by name.
    feature_gates: Mapping[str, bool] = field(default_factory=dict)

    def with_fair_sharing(self) -> "KueueSettings":
        """Return a copy of the settings with fair sharing enabled."""
        return replace(self, policy=replace(self.policy, fair_sharing=True))


#: The default settings of a simulation: no PodsReady timeout, all Namespaces managed.
SIMULATION_SETTINGS: Final = KueueSettings(pods_ready=None, managed_namespaces=None)


def parse_kueue_settings(configuration: Mapping[str, Any]) -> KueueSettings:
    """Return the scheduling settings of a Kueue Configuration in which all defaults are set."""
    fair_sharing_settings = configuration.get("fairSharing")
    policy = SchedulingPolicy()
    if fair_sharing_settings is not None:
        strategies = tuple(map(FairSharingStrategy, fair_sharing_settings["preemptionStrategies"]))
        policy = SchedulingPolicy(fair_sharing=True, preemption_strategies=strategies)
    is_pods_ready_disabled = (configuration.get("featureGates") or {}).get(DISABLE_WAIT_FOR_PODS_READY, False)
    pods_ready = None if is_pods_ready_disabled else pods_ready_policy(configuration["waitForPodsReady"])
    copied_labels = (configuration.get("integrations") or {}).get("labelKeysToCopy") or ()
    kueue_namespace = configuration.get("namespace") or "kueue-system"
    namespace_selector = managed_namespaces(configuration.get("managedJobsNamespaceSelector"), kueue_namespace)
    feature_gates = configuration.get("featureGates") or {}
    return KueueSettings(policy, pods_ready, tuple(copied_labels), namespace_selector, feature_gates)


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
    """Return the names of the fields in a Kueue Configuration that concern Kueue's own deployment."""
    return [name for name in _DEPLOYMENT_FIELDS if name in configuration]


def unsupported_fields(configuration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path of each unsupported field of a Kueue Configuration, and what batchyard does instead."""
    if configuration.get("manageJobsWithoutQueueName"):
        yield "manageJobsWithoutQueueName", "jobs without a queue name start immediately, without quota"
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


def feature_gate_errors(gates: Mapping[str, bool], path: str) -> Iterator[FieldError]:
    """Yield an error for each name in `gates` that is no feature gate of Kueue; `path` is the path of the gates."""
    for name in gates:
        if name not in GATES:
            close_matches = get_close_matches(name, list(GATES), 1)
            remedy = f"did you mean {close_matches[0]!r}?" if close_matches else "use the name of a gate of Kueue"
            yield FieldError(f"{path}.{name}", f"unknown feature gate {name!r}", remedy)


def ignored_settings(configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts about ignored settings: job integrations, multiKueue, objectRetentionPolicies and feature gates."""
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
    yield from (name for name in ("multiKueue", "objectRetentionPolicies") if name in configuration)
    gates = configuration.get("featureGates") or {}
    names = [name for name, is_on in gates.items() if GATES.get(name) is not is_on and name not in _SUPPORTED_GATES]
    if names:
        yield f"featureGates {', '.join(names)}"


def _parse_optional_duration(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)
