"""What Kueue's Configuration says about decisions, and what of it nobody here acts on.

A Configuration is one in its storage version that was decoded (`api.decode`): it has all defaults, and keeps the rules.
Source: apis/config/v1beta2 of Kueue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.kueue_features import DISABLE_WAIT_FOR_PODS_READY, GATES
from batchyard.api.selectors import Selector, selector
from batchyard.base.instant import SECOND, Duration, parse_duration
from batchyard.scheduling.cycle import Policy
from batchyard.scheduling.preemption.fair import Strategy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp

#: How Kueue's own pods are run and reached, and what is told of them.
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
#: The kinds of jobs that there are here.
_FRAMEWORKS: Final = ("batch/job", "jobset.x-k8s.io/jobset")
#: Gates that make a difference here.
_ACTED_ON: Final = frozenset({DISABLE_WAIT_FOR_PODS_READY})


def managed_namespaces(asked: Mapping[str, Any] | None = None, own: str = "kueue-system") -> Selector | None:
    """The selector of a Configuration, or Kueue's default: all Namespaces but that of the system and its own."""
    others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", own]}
    return selector(asked or {"matchExpressions": [others]})


@dataclass(frozen=True, slots=True)
class KueueSettings:
    """What decisions go by. As it is: what Kueue 0.19 does without a word of Configuration."""

    policy: Policy = field(default_factory=Policy)
    #: How long pods may take to be ready; None: as long as they like.
    pods_ready: PodsReadyPolicy | None = field(default_factory=PodsReadyPolicy)
    #: Labels of jobs that their Workloads get.
    copied_labels: tuple[str, ...] = ()
    #: The Namespaces whose jobs are managed; None: all.
    managed_namespaces: Selector | None = field(default_factory=managed_namespaces)

    def sharing_fairly(self) -> "KueueSettings":
        """The same, with fair sharing."""
        return replace(self, policy=replace(self.policy, fair_sharing=True))


#: What a simulated world goes by where nobody says otherwise.
SIMULATED: Final = KueueSettings(pods_ready=None, managed_namespaces=None)


def settings_of(configuration: Mapping[str, Any]) -> KueueSettings:
    """What a Configuration says."""
    fair = configuration.get("fairSharing")
    policy = Policy()
    if fair is not None:
        policy = Policy(fair_sharing=True, strategies=tuple(map(Strategy, fair["preemptionStrategies"])))
    is_off = (configuration.get("featureGates") or {}).get(DISABLE_WAIT_FOR_PODS_READY, False)
    waits = None if is_off else pods_ready_policy(configuration["waitForPodsReady"])
    copied = (configuration.get("integrations") or {}).get("labelKeysToCopy") or ()
    asked, own = configuration.get("managedJobsNamespaceSelector"), configuration.get("namespace") or "kueue-system"
    return KueueSettings(policy, waits, tuple(copied), managed_namespaces(asked, own))


def pods_ready_policy(asked: Mapping[str, Any]) -> PodsReadyPolicy:
    """How long pods may take to be ready, by a `waitForPodsReady` with all defaults; no time at all means the usual."""
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


def decisive(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Those parts of a Configuration that something is decided by here."""
    kept = {name: configuration[name] for name in _DECISIVE if name in configuration}
    labels = (configuration.get("integrations") or {}).get("labelKeysToCopy")
    return {**kept, **({"integrations": {"labelKeysToCopy": labels}} if labels else {})}


def of_deployment(configuration: Mapping[str, Any]) -> Sequence[str]:
    """The fields of a Configuration that say how Kueue itself runs."""
    return [name for name in _OF_DEPLOYMENT if name in configuration]


def decided_otherwise(configuration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What would decide about jobs and queues, and does not here: fields, each with what is so instead."""
    if configuration.get("manageJobsWithoutQueueName"):
        yield "manageJobsWithoutQueueName", "jobs that name no queue run as they are"
    if "admissionFairSharing" in configuration:
        yield "admissionFairSharing", "LocalQueues of a ClusterQueue share it by priority and age"
    for name in ("excludeResourcePrefixes", "transformations", "deviceClassMappings"):
        if (configuration.get("resources") or {}).get(name):
            yield f"resources.{name}", "resources count as pods ask for them"
    if (configuration.get("resources") or {}).get("quotaCheckStrategy") == "IgnoreUndeclared":
        yield "resources.quotaCheckStrategy", "resources that a ClusterQueue does not have keep Workloads waiting"


def not_done(configuration: Mapping[str, Any]) -> Iterator[FieldError]:
    """The same as faults, where it is to be decided by the Configuration."""
    for path, instead in decided_otherwise(configuration):
        yield FieldError(path, f"this is not done here: {instead}", "leave it out")


def left_aside(configuration: Mapping[str, Any]) -> Iterator[str]:
    """What there is nothing of here: kinds of jobs, MultiKueue, retention, gates that are not as Kueue has them."""
    integrations = configuration.get("integrations") or {}
    others = [name for name in integrations.get("frameworks") or () if name not in _FRAMEWORKS]
    others += integrations.get("externalFrameworks") or ()
    if others:
        yield f"integrations of {', '.join(others)}"
    missing = [name for name in _FRAMEWORKS if name not in integrations.get("frameworks", _FRAMEWORKS)]
    if missing:
        yield f"leaving {' and '.join(missing)} out of integrations.frameworks: they are queued all the same"
    yield from (name for name in ("multiKueue", "objectRetentionPolicies") if name in configuration)
    gates = configuration.get("featureGates") or {}
    changed = [name for name, is_on in gates.items() if GATES.get(name) is not is_on and name not in _ACTED_ON]
    if changed:
        yield f"featureGates {', '.join(changed)}"


def _duration(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)
