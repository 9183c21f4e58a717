"""Whether a ClusterQueue can admit at all, and why not. Source: Kueue's pkg/cache/scheduler (inactiveReason)."""

from collections.abc import Container, Mapping
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.queues import ClusterQueueView


class Readiness(NamedTuple):
    """The Active condition of a ClusterQueue."""

    active: bool
    reason: str
    message: str


class Check(NamedTuple):
    """What is known of an AdmissionCheck: whether its controller answers it, and which that is."""

    active: bool
    controller: str = ""


Fault: TypeAlias = tuple[str, str]

PROVISIONING: Final = "kueue.x-k8s.io/provisioning-request"
MULTI_KUEUE: Final = "kueue.x-k8s.io/multikueue"

READY: Final = Readiness(True, "Ready", "Can admit new workloads")
TERMINATING: Final = Readiness(False, "Terminating", "Can't admit new workloads; clusterQueue is terminating")


def readiness_of(
    view: ClusterQueueView, *, terminating: bool, flavors: Container[str], checks: Mapping[str, Check]
) -> Readiness:
    """A ClusterQueue's readiness, given the flavors and AdmissionChecks there are."""
    if terminating:
        return TERMINATING
    faults: list[Fault] = []
    if view.stop_policy != "None":
        faults.append(("Stopped", "is stopped"))
    missing = [flavor for flavor in view.flavors if flavor not in flavors]
    if missing:
        faults.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing)}"))
    if view.check_rules:
        faults += _faults_of_checks(view, checks)
    if not faults:
        return READY
    return Readiness(False, faults[0][0], f"Can't admit new workloads: {', '.join(text for _, text in faults)}.")


def _faults_of_checks(view: ClusterQueueView, checks: Mapping[str, Check]) -> list[Fault]:
    """Checks that are not there or not active, and those that do not go together."""
    rules = sorted(view.check_rules)
    known = [(rule, checks[rule.name]) for rule in rules if rule.name in checks]
    remote = [rule for rule, check in known if check.controller == MULTI_KUEUE]
    some = [rule.name for rule in remote if frozenset(rule.flavors) != frozenset(view.flavors)]
    local = [rule.name for rule, check in known if check.controller == PROVISIONING]
    faults = []
    if unknown := [rule.name for rule in rules if rule.name not in checks]:
        faults.append(("AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(unknown)}"))
    if inactive := [rule.name for rule, check in known if not check.active]:
        faults.append(("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(inactive)}"))
    names = ",".join(rule.name for rule in remote)
    if len(remote) > 1:
        text = f"Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: {names}"
        faults.append(("MultipleMultiKueueAdmissionChecks", text))
    if some:
        text = f"Cannot specify MultiKueue AdmissionCheck per flavor, found: {','.join(some)}"
        faults.append(("MultiKueueAdmissionCheckAppliedPerFlavor", text))
    if remote and local:
        both = f"found: {names}, {','.join(local)}"
        text = f"Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, {both}"
        faults.append(("MultiKueueWithProvisioningRequest", text))
    return faults
