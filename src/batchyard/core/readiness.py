"""Whether a ClusterQueue can admit at all, and why not. Source: Kueue's pkg/cache/scheduler (inactiveReason)."""

from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from batchyard.api.views.queues import ClusterQueueView


class Readiness(NamedTuple):
    """The Active condition of a ClusterQueue."""

    active: bool
    reason: str
    message: str


READY: Final = Readiness(True, "Ready", "Can admit new workloads")
TERMINATING: Final = Readiness(False, "Terminating", "Can't admit new workloads; clusterQueue is terminating")


def readiness_of(
    view: ClusterQueueView, *, terminating: bool, flavors: Container[str], checks: Mapping[str, bool]
) -> Readiness:
    """A ClusterQueue's readiness; `checks` tells of each AdmissionCheck whether it is active."""
    if terminating:
        return TERMINATING
    faults: list[tuple[str, str]] = []
    if view.stop_policy != "None":
        faults.append(("Stopped", "is stopped"))
    missing = [flavor for group in view.groups for flavor in group.flavors if flavor not in flavors]
    if missing:
        faults.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing)}"))
    unknown = sorted(check for check in view.admission_checks if check not in checks)
    if unknown:
        faults.append(("AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(unknown)}"))
    inactive = sorted(check for check in view.admission_checks if not checks.get(check, True))
    if inactive:
        faults.append(("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(inactive)}"))
    if not faults:
        return READY
    return Readiness(False, faults[0][0], f"Can't admit new workloads: {', '.join(text for _, text in faults)}.")
