"""Scheduling settings of Kueue's Configuration, and the settings that are not supported here.

A Configuration here is decoded from its storage version (`api.decode`): it has all defaults and is valid.
Source: apis/config/v1beta2 of Kueue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import Selector, selector
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY, GATES
from batchyard.base.instant import SECOND, Duration, parse_duration
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp

#: Settings of Kueue's own deployment, endpoints and metrics.
_OF_DEPLOYMENT: Final = (
    "clientConnection",
    "controller",
    "health",
    "internalCertManagement",
    "leaderElection",
    "metrics",
    "namespace",
    "pprofBindAddress",
    "tls",
    "visibilityServer",
    "webhook",
)
_DECISIVE: Final = (
    *("apiVersion", "kind", "metadata", "fairSharing", "featureGates", "managedJobsNamespaceSelector"),
    "waitForPodsReady",
)
#: The supported job frameworks.
_FRAMEWORKS: Final = ("batch/job", "jobset.x-k8s.io/jobset")
#: The supported feature gates.
_ACTED_ON: Final = frozenset({DISABLE_WAIT_FOR_PODS_READY})


def managed_namespaces(asked: Mapping[str, Any] | None = None, own: str = "kueue-system") -> Selector | None:
    """Return the selector of a Configuration, or Kueue's default: all Namespaces except kube-system and Kueue's own."""
    others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", own]}
    return selector(asked or {"matchExpressions": [others]})


@dataclass(frozen=True, slots=True)
class KueueSettings:
    """The settings that affect decisions. The defaults are those of Kueue 0.19 without a Configuration."""

    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    #: The PodsReady timeout and requeue settings; None disables the timeout.
    pods_ready: PodsReadyPolicy | None = field(default_factory=PodsReadyPolicy)
    #: Job labels that are copied to their Workloads.
    copied_labels: tuple[str, ...] = ()
    #: The Namespaces whose jobs are managed; None for all.
    managed_namespaces: Selector | None = field(default_factory=managed_namespaces)

    def sharing_fairly(self) -> "KueueSettings":
        """Return the same settings with fair sharing."""
        return replace(self, policy=replace(self.policy, fair_sharing=True))


#: The defaults of a simulated world.
SIMULATED: Final = KueueSettings(pods_ready=None, managed_namespaces=None)


def parse_kueue_settings(configuration: Mapping[str, Any]) -> KueueSettings:
    """Return the settings of a Configuration."""
    fair = configuration.get("fairSharing")
    policy = SchedulingPolicy()
    if fair is not None:
        policy = SchedulingPolicy(
            fair_sharing=True, strategies=tuple(map(FairSharingStrategy, fair["preemptionStrategies"]))
        )
    is_off = (configuration.get("featureGates") or {}).get(DISABLE_WAIT_FOR_PODS_READY, False)
    waits = None if is_off else pods_ready_policy(configuration["waitForPodsReady"])
    copied = (configuration.get("integrations") or {}).get("labelKeysToCopy") or ()
    asked, own = configuration.get("managedJobsNamespaceSelector"), configuration.get("namespace") or "kueue-system"
    return KueueSettings(policy, waits, tuple(copied), managed_namespaces(asked, own))


def pods_ready_policy(asked: Mapping[str, Any]) -> PodsReadyPolicy:
    """Return the PodsReady policy of a `waitForPodsReady` with all defaults; a timeout of zero means the default."""
    strategy = asked["requeuingStrategy"]
    return PodsReadyPolicy(
        timeout=parse_duration(asked["timeout"]) or PodsReadyPolicy().timeout,
        recovery_timeout=_duration(asked.get("recoveryTimeout")),
        block_admission=asked["blockAdmission"],
        requeuing_timestamp=RequeuingTimestamp(strategy["timestamp"]),
        backoff_limit_count=strategy.get("backoffLimitCount"),
        backoff_base=strategy["backoffBaseSeconds"] * SECOND,
        backoff_max=strategy["backoffMaxSeconds"] * SECOND,
    )


def decision_fields(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a Configuration that decisions depend on."""
    kept = {name: configuration[name] for name in _DECISIVE if name in configuration}
    labels = (configuration.get("integrations") or {}).get("labelKeysToCopy")
    return {**kept, **({"integrations": {"labelKeysToCopy": labels}} if labels else {})}


def deployment_fields(configuration: Mapping[str, Any]) -> Sequence[str]:
    """Return the fields of a Configuration about Kueue's own deployment."""
    return [name for name in _OF_DEPLOYMENT if name in configuration]


def unsupported_fields(configuration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield unsupported fields that would affect jobs and queues, each with the behavior here."""
    if configuration.get("manageJobsWithoutQueueName"):
        yield "manageJobsWithoutQueueName", "jobs that name no queue run as they are"
    if "admissionFairSharing" in configuration:
        yield "admissionFairSharing", "LocalQueues of a ClusterQueue share it by priority and age"
    for name in ("excludeResourcePrefixes", "transformations", "deviceClassMappings"):
        if (configuration.get("resources") or {}).get(name):
            yield f"resources.{name}", "resources count as pods ask for them"
    if (configuration.get("resources") or {}).get("quotaCheckStrategy") == "IgnoreUndeclared":
        yield "resources.quotaCheckStrategy", "resources that a ClusterQueue does not have keep Workloads waiting"


def unsupported_field_errors(configuration: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the same as errors, for callers that require the Configuration to be supported."""
    for path, instead in unsupported_fields(configuration):
        yield FieldError(path, f"this is not done here: {instead}", "leave it out")


def ignored_settings(configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield ignored settings: other frameworks, MultiKueue, retention, and changed feature gates."""
    integrations = configuration.get("integrations") or {}
    others = [name for name in integrations.get("frameworks") or () if name not in _FRAMEWORKS]
    others += integrations.get("externalFrameworks") or ()
    if others:
        yield f"integrations of {', '.join(others)}"
    missing = [name for name in _FRAMEWORKS if name not in integrations.get("frameworks", _FRAMEWORKS)]
    if missing:
        yield f"leaving {' and '.join(missing)} out of integrations.frameworks: their jobs are queued regardless"
    yield from (name for name in ("multiKueue", "objectRetentionPolicies") if name in configuration)
    gates = configuration.get("featureGates") or {}
    changed = [name for name, is_on in gates.items() if GATES.get(name) is not is_on and name not in _ACTED_ON]
    if changed:
        yield f"featureGates {', '.join(changed)}"


def _duration(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)
