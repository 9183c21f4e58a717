"""Choice of one zone of one queued pool for a whole ProvisioningRequest, or the condition that says why none fits.

Source: GKE's autoscaler, pkg/provisioningrequests/scaleup (orchestrator.go, reasons).
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from batchyard.admission_plugins.pods import extended_resource_toleration
from batchyard.api import well_known
from batchyard.api.defaults.kubernetes import pod_defaults
from batchyard.api.meta import Obj, annotation, with_path
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.binpacking import misfit
from batchyard.autoscaler.expander import ScaleUpOption, best_option
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.node_groups_state import FULL, IN_BACKOFF
from batchyard.autoscaler.pending_units import kinds_of
from batchyard.autoscaler.provisioning_request_conditions import FAILED, QUEUED_CLASS, ConditionText
from batchyard.autoscaler.scale_up import ScaleUp

# --- request pods ---
#
# The pods of a ProvisioningRequest, built from its templates, and what GKE adds to the pods that consume it.
#
# Sources: kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/pods; GKE's autoscaler,
# pkg/provisioningrequests/pods and pkg/cloudprovider/gke/gceclient/resizerequest (ResizeRequestName).


_NAME_MAX: Final = 20
_HASH_LENGTH: Final = 16
_QUEUED_TOLERATION: Final = {
    "key": well_known.QUEUED,
    "operator": "Equal",
    "value": "true",
    "effect": "NoSchedule",
}


def resize_request_name(namespace: str, request: str) -> str:
    """Return the name of the ResizeRequest for a ProvisioningRequest."""
    digits = sha256(f"{namespace}/{request}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"gke-{namespace[:_NAME_MAX]}-{request[:_NAME_MAX]}-{digits}"


def consumed_request(pod: Obj) -> str:
    """Return the name of the ProvisioningRequest that a pod consumes; '' if none."""
    new = annotation(pod, well_known.CONSUME_PROVISIONING_REQUEST)
    return new or annotation(pod, well_known.OLD_CONSUME_PROVISIONING_REQUEST) or ""


def admit_queued_pod(pod: Obj) -> Obj:
    """Apply GKE's webhook to a new pod: one that consumes a queued request runs only on that request's nodes."""
    request = consumed_request(pod)
    named = annotation(pod, well_known.PROVISIONING_CLASS) or annotation(pod, well_known.OLD_PROVISIONING_CLASS)
    if not request or named != QUEUED_CLASS:
        return pod
    name = resize_request_name(pod["metadata"].get("namespace") or "", request)
    return _tolerating(with_path(pod, ("spec", "nodeSelector", well_known.NODE_PROVISIONING_REQUEST), name))


def pods_of(request: Obj, templates: Sequence[Obj]) -> list[PodView]:
    """Return the pods of a request; `templates` are in the order of its pod sets."""
    return [
        PodView(_pod(request, template, f"{set_index}-{index}"))
        for set_index, (pod_set, template) in enumerate(zip(request["spec"]["podSets"], templates, strict=True))
        for index in range(pod_set["count"])
    ]


def _pod(request: Obj, template: Obj, index: str) -> Obj:
    metadata, given = request["metadata"], template["template"]
    name = f"{metadata['name']}-{index}"
    spec: Mapping[str, Any] = given["spec"]
    selector = {k: v for k, v in (spec.get("nodeSelector") or {}).items() if k != well_known.NODE_PROVISIONING_REQUEST}
    pod = {
        "metadata": {
            **(given.get("metadata") or {}),
            "name": name,
            "namespace": metadata["namespace"],
            "uid": f"{metadata['namespace']}/{name}",
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {**spec, "nodeSelector": selector},
    }
    is_queued = request["spec"]["provisioningClassName"] == QUEUED_CLASS
    return extended_resource_toleration(pod_defaults(_tolerating(pod) if is_queued else pod))


def _tolerating(pod: Obj) -> Obj:
    tolerations = pod["spec"].get("tolerations") or []
    if _QUEUED_TOLERATION in tolerations:
        return pod
    return with_path(pod, ("spec", "tolerations"), [*tolerations, _QUEUED_TOLERATION])


_POOLS_LISTED_MAX: Final = 10
_MISFITS_LISTED_MAX: Final = 5
_INFEASIBLE: Final = "infeasible"
_EXCEEDED: Final = "exceeded"
_MISFIT: Final = "misfit"
#: Reason and start of the message by cause, the reported cause first.
_MESSAGES: Final[Mapping[str, tuple[str, str]]] = {
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
_NO_POOL: Final = ConditionText(
    FAILED,
    True,
    "NoQueuedNodepoolAvailable",
    "No nodepool with QueuedProvisioning enabled is available for scale up",
)


class Skip(NamedTuple):
    """Why a group cannot hold the request."""

    cause: str
    details: Sequence[str] = ()


def choose_group(
    pods: Sequence[PodView], scale_up: ScaleUp, maker: NodeAutoProvisioner | None
) -> ScaleUpOption | ConditionText:
    """Return the group for all the pods and its new nodes; else the condition of the request."""
    skips: dict[NodeGroup, Skip] = {}
    options: list[ScaleUpOption] = []
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
        return _condition_for(skips)
    ready = [option for option in options if _is_known(option, scale_up)]
    return best_option(ready or options, scale_up.situation.settings)


def _option(group: NodeGroup, pods: Sequence[PodView], scale_up: ScaleUp) -> ScaleUpOption | Skip:
    """Place all the pods on new nodes of a group."""
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


def _is_known(option: ScaleUpOption, scale_up: ScaleUp) -> bool:
    """Whether the cloud is known to have the machines."""
    known = max(scale_up.fleet.known_room(group, scale_up.situation.cluster) for group in option.groups)
    return known >= len(option.nodes)


def _condition_for(skips: Mapping[NodeGroup, Skip]) -> ConditionText:
    """Return the condition for the first cause that occurs."""
    for cause, (reason, beginning) in _MESSAGES.items():
        pools = {group.name.pool: skip.details for group, skip in skips.items() if skip.cause == cause}
        if pools:
            return ConditionText(FAILED, True, reason, f"{beginning}{_details(cause, pools)}")
    return _NO_POOL


def _details(cause: str, pools: Mapping[str, Sequence[str]]) -> str:
    detailed = [f"{pool} ({', '.join(pools[pool])})" for pool in sorted(pools)]
    if cause == _MISFIT:
        return f". Predicate checking errors: {_cut(detailed, _MISFITS_LISTED_MAX)}"
    if cause == _EXCEEDED:
        return f", nodepools out of resources: {_cut(detailed, _POOLS_LISTED_MAX)}"
    return f", affected nodepools: {_cut(sorted(pools), _POOLS_LISTED_MAX)}"


def _cut(items: Sequence[str], most: int) -> str:
    return ", ".join([*items[:most], *(["..."] if len(items) > most else [])])
