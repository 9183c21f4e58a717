"""The Active condition of a ClusterQueue. Source: inactiveReason in Kueue's pkg/cache/scheduler/clusterqueue.go."""

from collections.abc import Container, Mapping
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.node import FlavorView
from batchyard.api.views.workload import ClusterQueueView


class QueueActiveStatus(NamedTuple):
    """The Active condition of a ClusterQueue or LocalQueue: whether it is True, its reason and its message."""

    active: bool
    reason: str
    message: str


class AdmissionCheckInfo(NamedTuple):
    """An AdmissionCheck's Active condition, and the name of the controller that handles it."""

    active: bool
    controller: str = ""


QueueFault: TypeAlias = tuple[str, str]

PROVISIONING_CONTROLLER_NAME: Final = "kueue.x-k8s.io/provisioning-request"
MULTIKUEUE_CONTROLLER_NAME: Final = "kueue.x-k8s.io/multikueue"

ACTIVE_READY: Final = QueueActiveStatus(True, "Ready", "Can admit new workloads")
INACTIVE_TERMINATING: Final = QueueActiveStatus(
    False, "Terminating", "Can't admit new workloads; clusterQueue is terminating"
)


def compute_active_status(
    view: ClusterQueueView,
    *,
    terminating: bool,
    flavors: Mapping[str, FlavorView],
    topologies: Container[str],
    checks: Mapping[str, AdmissionCheckInfo],
    is_cohort_cyclic: bool = False,
) -> QueueActiveStatus:
    """Return a ClusterQueue's Active condition, given the existing ResourceFlavors, Topologies and AdmissionChecks.

    `is_cohort_cyclic`: the parents of its Cohort form a cycle, which Kueue reports since 0.20.
    Source: inactiveReason in Kueue's pkg/cache/scheduler/clusterqueue.go.
    """
    if terminating:
        return INACTIVE_TERMINATING
    faults: list[QueueFault] = []
    if view.stop_policy != "None":
        faults.append(("Stopped", "is stopped"))
    missing_flavors = [flavor for flavor in view.flavors if flavor not in flavors]
    if missing_flavors:
        faults.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing_flavors)}"))
    if view.check_rules:
        faults += _check_faults(view, checks)
    if is_cohort_cyclic:
        faults.append(("CohortCycleDetected", f'Cohort "{view.cohort}" has a cycle in hierarchy'))
    topology_faults = _topology_faults(view, flavors, topologies)
    if not faults and (not topology_faults or _has_multikueue_check(view, checks)):
        return ACTIVE_READY
    faults += topology_faults
    fault_texts = ", ".join(text for _, text in faults)
    return QueueActiveStatus(False, faults[0][0], f"Can't admit new workloads: {fault_texts}.")


def _topology_faults(
    view: ClusterQueueView, flavors: Mapping[str, FlavorView], topologies: Container[str]
) -> list[QueueFault]:
    existing_flavors = [flavors[name] for name in view.flavors if name in flavors]
    return [
        ("TopologyNotFound", f'there is no Topology "{flavor.topology}" for TAS flavor "{flavor.name}"')
        for flavor in existing_flavors
        if flavor.topology and flavor.topology not in topologies
    ]


def _has_multikueue_check(view: ClusterQueueView, checks: Mapping[str, AdmissionCheckInfo]) -> bool:
    """Return whether a ClusterQueue has an existing MultiKueue admission check.

    With such a check, other clusters run the Workloads, so the Topologies need not exist here.
    """
    existing_checks = [checks[rule.name] for rule in view.check_rules if rule.name in checks]
    return any(check.controller == MULTIKUEUE_CONTROLLER_NAME for check in existing_checks)


def _check_faults(view: ClusterQueueView, checks: Mapping[str, AdmissionCheckInfo]) -> list[QueueFault]:
    check_rules = sorted(view.check_rules)
    existing_checks = [(rule, checks[rule.name]) for rule in check_rules if rule.name in checks]
    multikueue_rules = [rule for rule, check in existing_checks if check.controller == MULTIKUEUE_CONTROLLER_NAME]
    restricted_checks = [rule.name for rule in multikueue_rules if frozenset(rule.flavors) != frozenset(view.flavors)]
    provisioning_checks = [
        rule.name for rule, check in existing_checks if check.controller == PROVISIONING_CONTROLLER_NAME
    ]
    faults = []
    if missing_names := [rule.name for rule in check_rules if rule.name not in checks]:
        faults.append(("AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(missing_names)}"))
    if inactive_names := [rule.name for rule, check in existing_checks if not check.active]:
        faults.append(("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(inactive_names)}"))
    names = ",".join(rule.name for rule in multikueue_rules)
    if len(multikueue_rules) > 1:
        message = f"Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: {names}"
        faults.append(("MultipleMultiKueueAdmissionChecks", message))
    if restricted_checks:
        message = f"Cannot specify MultiKueue AdmissionCheck per flavor, found: {','.join(restricted_checks)}"
        faults.append(("MultiKueueAdmissionCheckAppliedPerFlavor", message))
    if multikueue_rules and provisioning_checks:
        found_checks_text = f"found: {names}, {','.join(provisioning_checks)}"
        message = f"Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, {found_checks_text}"
        faults.append(("MultiKueueWithProvisioningRequest", message))
    return faults
