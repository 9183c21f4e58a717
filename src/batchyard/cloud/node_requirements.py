"""Node requirements of pods that no pool fits, from their selectors, tolerations and requests, as in GKE.

A non-system label is set on new nodes only if the pods tolerate a taint with the same key. The nodes get that taint
too, which separates workloads. Sources: GKE's autoscaler, pkg/podrequirements, pkg/autoprovisioning (injection.go,
gpu_requests.go, tpu_requests.go) and pkg/cloudprovider/gke/labels/system_labels.go.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.views.pod import Taint, Toleration
from batchyard.api.views.pods import PodView

_SYSTEM: Final = re.compile(r"\b(cloud\.google\.com|kubernetes\.io|k8s\.io|gke\.io)/")
_HARD: Final = ("NoSchedule", "NoExecute")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_DAY: Final = 24 * 3600
#: Minimum and maximum of maxRunDuration in seconds, and both in words.
_GENERAL: Final = (30, 120 * _DAY, "30 seconds - 120 days")
_FLEXIBLE: Final = (600, 7 * _DAY, "10 minutes - 7 days")
_GROUP_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_GROUP_NAME_MAX: Final = 40
_TOPOLOGY: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", re.ASCII)
#: Keeps other pods off auto-provisioned spot nodes.
SPOT_TAINT: Final = Taint(well_known.SPOT, "true", "NoSchedule")


class NodeRequirements(NamedTuple):
    """Node requirements; pods with equal ones may share nodes. Empty strings and zeros mean no requirement."""

    provisioning: str
    resource: str
    devices: int
    accelerator: str
    topology: str
    family: str
    machine_type: str
    placement_group: str
    reservation: str
    max_run_seconds: str
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]
    #: Whether spot machines are acceptable in place of others.
    tolerates_spot: bool


class UnsatisfiableRequirements(NamedTuple):
    """Why no pool can be created for a pod."""

    why: str


def needs_of(pod: PodView) -> NodeRequirements | UnsatisfiableRequirements:
    """Return the node requirements of a pod."""
    wanted = _wanted_labels(pod)
    taints = tuple(_separating(pod.tolerations, wanted))
    labels = tuple(sorted((key, value) for key, value in wanted.items() if not is_system_label(key)))
    separated = {taint.key for taint in taints}
    for key, _ in labels:
        if key not in separated:
            return UnsatisfiableRequirements(f"no toleration for a taint with the key of label {key}")
    resource, devices = _devices(pod)
    flaw = _flaw(wanted)
    if flaw:
        return UnsatisfiableRequirements(flaw)
    is_tpu = resource == well_known.TPU
    count = wanted.get(well_known.ACCELERATOR_COUNT, "")
    return NodeRequirements(
        provisioning=_provisioning(wanted),
        resource=resource,
        devices=int(count) if is_tpu and count.isdecimal() else devices,
        accelerator=wanted.get(well_known.TPU_ACCELERATOR if is_tpu else well_known.ACCELERATOR, ""),
        topology=wanted.get(well_known.TPU_TOPOLOGY, "") if is_tpu else "",
        family=wanted.get(well_known.MACHINE_FAMILY, ""),
        machine_type=wanted.get(well_known.INSTANCE_TYPE, ""),
        placement_group=wanted.get(well_known.PLACEMENT_GROUP, ""),
        reservation=wanted.get(well_known.RESERVATION_NAME, ""),
        max_run_seconds=wanted.get(well_known.MAX_RUN_DURATION, ""),
        labels=labels,
        taints=taints,
        tolerates_spot=any(_tolerates_spot(toleration) for toleration in pod.tolerations),
    )


def run_duration_fault(seconds: str, provisioning: str) -> str:
    """Return GKE's error for an invalid maxRunDuration; '' if it is valid or empty."""
    if not seconds:
        return ""
    if provisioning == "queued":
        return "MaxRunDuration cannot be set on non-bulk QueuedProvisioning pools."
    if not _NUMBER.fullmatch(seconds):
        return "MaxRunDuration is not a valid int64."
    shortest, longest, words = _FLEXIBLE if provisioning == "flex-start" else _GENERAL
    if shortest <= int(seconds) <= longest:
        return ""
    return f"MaxRunDuration is not within the allowed range ({words}). Got {int(seconds)} seconds."


def _flaw(wanted: Mapping[str, str]) -> str:
    """Return why nodes with these labels are impossible; '' if they are possible."""
    group = wanted.get(well_known.PLACEMENT_GROUP)
    if group and len(group) > _GROUP_NAME_MAX:
        return f'placement group name "{group}" is invalid, should be at most {_GROUP_NAME_MAX} characters long'
    if group and not _GROUP_NAME.fullmatch(group):
        rule = "should consist of alphanumerics and '-', start with a letter and end with an alphanumeric"
        return f'placement group name "{group}" is invalid, {rule}'
    topology = wanted.get(well_known.TPU_TOPOLOGY)
    if topology is not None and not _TOPOLOGY.fullmatch(topology):
        return f'TPU topology "{topology}" not supported'
    return ""


def is_system_label(key: str) -> bool:
    """Whether Kubernetes or GKE sets the label, not users."""
    return _SYSTEM.search(key) is not None


def _wanted_labels(pod: PodView) -> dict[str, str]:
    """Return the labels a node must have, one value per key, from the selector and the first affinity term."""
    wanted = dict(pod.node_selector)
    for expression in pod.affinity[0].labels if pod.affinity else ():
        if expression.operator == "In" and len(expression.values) == 1:
            wanted[expression.key] = expression.values[0]
    return wanted


def _separating(tolerations: tuple[Toleration, ...], wanted: Mapping[str, str]) -> list[Taint]:
    """Return the taints that keep other pods from nodes with these labels."""
    found: dict[Taint, None] = {}
    for toleration in tolerations:
        value = wanted.get(toleration.key)
        if value is None or is_system_label(toleration.key):
            continue
        if toleration.operator == "Exists" or toleration.value == value:
            effects = _HARD[:1] if not toleration.effect else tuple(e for e in _HARD if e == toleration.effect)
            found.update({Taint(toleration.key, value, effect): None for effect in effects})
    return list(found)


def _devices(pod: PodView) -> tuple[str, int]:
    """Return the accelerator resource that a pod requests, and the amount."""
    for resource, amount in pod.requests:
        if resource in {well_known.GPU, well_known.TPU}:
            return resource, amount
    return "", 0


def _tolerates_spot(toleration: Toleration) -> bool:
    """Whether a toleration is specific to spot machines; a toleration of every taint is not."""
    return toleration.key == well_known.SPOT and toleration.tolerates(SPOT_TAINT)


def _provisioning(wanted: Mapping[str, str]) -> str:
    """Return the provisioning model that the labels request."""
    if wanted.get(well_known.SPOT) == "true" or wanted.get(well_known.PROVISIONING) == "spot":
        return "spot"
    flexible = wanted.get(well_known.FLEX_START) == "true" or wanted.get(well_known.PROVISIONING) == "flex-start"
    return "flex-start" if flexible else "standard"
