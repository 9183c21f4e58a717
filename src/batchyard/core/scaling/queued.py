"""Where a queued ProvisioningRequest goes: all of it to one zone of one queued pool; or why it goes nowhere.

Source: GKE's autoscaler, pkg/provisioningrequests/scaleup (orchestrator.go, reasons).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.views.pods import PodView
from batchyard.core.scaling.demand import kinds_of
from batchyard.core.scaling.expander import Option, best_option
from batchyard.core.scaling.fleet import FULL, IN_BACKOFF
from batchyard.core.scaling.groups import NodeGroup
from batchyard.core.scaling.new_pools import PoolMaker
from batchyard.core.scaling.packing import misfit
from batchyard.core.scaling.request_states import FAILED, Said
from batchyard.core.scaling.scale_up import ScaleUp

_POOLS_TOLD_MAX: Final = 10
_MISFITS_TOLD_MAX: Final = 5
_INFEASIBLE: Final = "infeasible"
_EXCEEDED: Final = "exceeded"
_MISFIT: Final = "misfit"
#: What is told first, its reason and how its message begins.
_TOLD: Final[Mapping[str, tuple[str, str]]] = {
    _INFEASIBLE: (
        "ProvisioningRequestSingleZoneInfeasible",
        "Provisioning Request cannot be scheduled in a single zone of a single nodepool",
    ),
    FULL: ("NodepoolSizeReached", "Max nodepool size reached"),
    _EXCEEDED: ("OutOfResources", "Max cluster limit reached"),
    IN_BACKOFF: ("NodepoolInBackoff", "Nodepool in backoff after failed scale-up"),
    _MISFIT: (
        "ProvisioningRequestNotSchedulableInNodepool",
        "Provisioning Request's pods cannot be scheduled in the nodepool",
    ),
}
_NO_POOL: Final = Said(
    FAILED,
    True,
    "NoQueuedNodepoolAvailable",
    "No nodepool with QueuedProvisioning enabled is available for scale up",
)


class Skip(NamedTuple):
    """Why a group is not the one."""

    cause: str
    details: Sequence[str] = ()


def choose_group(pods: Sequence[PodView], scale_up: ScaleUp, maker: PoolMaker | None) -> Option | Said:
    """The group for all the pods of a request, and how many new nodes; or what the request is told."""
    skips: dict[NodeGroup, Skip] = {}
    options: list[Option] = []
    for group in scale_up.fleet.groups.values():
        if group.provisioning != "queued" or not group.is_autoscaled:
            continue
        found = _option(group, pods, scale_up)
        if isinstance(found, Skip):
            skips[group] = found
        else:
            options.append(found)
    if not options and maker is not None:
        options = [option for option in maker.options(pods, scale_up) if not option.left]
    if not options:
        return _tell(skips)
    ready = [option for option in options if _is_known(option, scale_up)]
    return best_option(ready or options, scale_up.situation.settings)


def _option(group: NodeGroup, pods: Sequence[PodView], scale_up: ScaleUp) -> Option | Skip:
    """All the pods on new nodes of a group."""
    fleet, limits = scale_up.fleet, scale_up.limits
    obstacle = fleet.obstacle(group, limits, scale_up.situation.now)
    if obstacle in (IN_BACKOFF, FULL):
        return Skip(obstacle)
    if obstacle:
        return Skip(_EXCEEDED, limits.exceeded(group.uses, group.hosts))
    for alike in kinds_of(pods, scale_up.nodes).values():
        reasons = misfit(alike[0], group, scale_up.nodes)
        if reasons:
            return Skip(_MISFIT, reasons)
    room = fleet.room(group)
    option = scale_up.option([group], pods, [])
    if option is None or option.left:
        count = 0 if option is None else len(option.nodes)
        if count >= room:
            return Skip(FULL)
        exceeded = limits.exceeded(group.uses, count + 1)
        return Skip(_EXCEEDED, exceeded) if exceeded else Skip(_INFEASIBLE)
    return option


def _is_known(option: Option, scale_up: ScaleUp) -> bool:
    """Whether the cloud is known to have the machines."""
    known = max(scale_up.fleet.known_room(group, scale_up.situation.cluster) for group in option.groups)
    return known >= len(option.nodes)


def _tell(skips: Mapping[NodeGroup, Skip]) -> Said:
    """What is told of the most telling cause."""
    for cause, (reason, beginning) in _TOLD.items():
        pools = {group.name.pool: skip.details for group, skip in skips.items() if skip.cause == cause}
        if pools:
            return Said(FAILED, True, reason, f"{beginning}{_told(cause, pools)}")
    return _NO_POOL


def _told(cause: str, pools: Mapping[str, Sequence[str]]) -> str:
    detailed = [f"{pool} ({', '.join(pools[pool])})" for pool in sorted(pools)]
    if cause == _MISFIT:
        return f". Predicate checking errors: {_cut(detailed, _MISFITS_TOLD_MAX)}"
    if cause == _EXCEEDED:
        return f", nodepools out of resources: {_cut(detailed, _POOLS_TOLD_MAX)}"
    return f", affected nodepools: {_cut(sorted(pools), _POOLS_TOLD_MAX)}"


def _cut(told: Sequence[str], most: int) -> str:
    return ", ".join([*told[:most], *(["..."] if len(told) > most else [])])
