"""Rules of NodePools and of the pools in a Cluster, of Instances, ResizeRequests and Budgets.

Source: GKE's validation of new node pools; limits of run durations and compact placement from the autoscaler's
pkg/autoprovisioning/injection.go.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import quantity
from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as faults
from batchyard.api.validation import metadata, names, node_constraints, queued_jobs
from batchyard.base.instant import HOUR, SECOND, parse_duration

Spec = Mapping[str, Any]

_DAY: Final = 24 * HOUR
#: The minimum and maximum run duration of a machine by provisioning, and in words.
_DURATIONS: Final = {
    "standard": (30 * SECOND, 120 * _DAY, "30s and 2880h (120 days)"),
    "spot": (30 * SECOND, 120 * _DAY, "30s and 2880h (120 days)"),
    "flex-start": (600 * SECOND, 7 * _DAY, "10m and 168h (7 days)"),
    "queued": (30 * SECOND, 7 * _DAY, "30s and 168h (7 days)"),
}
#: The numbers of accelerators that a machine can have.
_COUNTS: Final = (1, 2, 4, 8, 16)
_GROUP_LENGTH_MAX: Final = 40
_KEPT: Final = ("machineType", "provisioning", "accelerator", "reservation", "placementGroup", "tpuTopology")


def node_pool_faults(pool: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a NodePool."""
    yield from metadata.metadata_faults(pool)
    yield from pool_faults(pool.get("spec") or {}, "spec")


def node_pool_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a NodePool: its machine configuration is immutable."""
    yield from node_pool_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    for field in _KEPT:
        if spec.get(field) != before.get(field):
            yield faults.immutable(f"spec.{field}", spec.get(field), "make another pool, and delete this one")


def pool_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """Validate the fields of a pool, in a NodePool or a Cluster."""
    yield from metadata.label_faults(pool.get("labels"), f"{path}.labels")
    yield from node_constraints.taint_faults(pool.get("taints") or (), f"{path}.taints")
    yield from _size_faults(pool, path)
    yield from _provisioning_faults(pool, path)
    yield from run_duration_faults(pool, path)
    yield from _accelerator_faults(pool, path)
    yield from _placement_faults(pool, path)
    yield from queued_jobs.slice_faults(pool, path)


def run_duration_faults(spec: Spec, path: str) -> Iterator[FieldError]:
    """The maximum run duration is within the limits of Compute Engine."""
    text = spec.get("maxRunDuration")
    if text is None:
        return
    shortest, longest, words = _DURATIONS[spec.get("provisioning", "standard")]
    if not shortest <= parse_duration(text) <= longest:
        yield faults.invalid(f"{path}.maxRunDuration", text, f"must be between {words}", "give a time within that")


def _size_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """A pool has a fixed number of nodes in each zone, or bounds with an initial count within them."""
    autoscaling, count = pool.get("autoscaling"), pool.get("nodeCount")
    if autoscaling is None:
        if count is None and pool.get("provisioning") != "queued":
            remedy = "say how many nodes each zone has, or give autoscaling: {min: 0, max: 3}"
            yield faults.required(f"{path}.nodeCount", "a pool without autoscaling has a fixed size", remedy)
        return
    contradictions = list(_bounds_faults(autoscaling, f"{path}.autoscaling"))
    yield from contradictions or _beginning_faults(pool, autoscaling, path)


def _bounds_faults(autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """Bounds are for each zone or for all together, and in order."""
    by_zone, in_all = (
        any(field in autoscaling for field in pair) for pair in (("min", "max"), ("totalMin", "totalMax"))
    )
    if by_zone and in_all:
        message = "min and max are mutually exclusive with totalMin and totalMax"
        yield faults.forbidden(path, message, "give min and max of each zone, or totalMin and totalMax of all zones")
        return
    lowest, highest = ("totalMin", "totalMax") if in_all else ("min", "max")
    if autoscaling.get(highest) is None:
        yield faults.required(f"{path}.{highest}", "", "say how many nodes the pool may have at most")
    elif autoscaling.get(lowest, 0) > autoscaling[highest]:
        message = f"must be at most {highest}, which is {autoscaling[highest]}"
        yield faults.invalid(f"{path}.{lowest}", autoscaling[lowest], message, f"lower {lowest}, or raise {highest}")


def _beginning_faults(pool: Spec, autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """The initial count is within the bounds, for each zone or for all zones together."""
    count = pool.get("nodeCount", 0)
    total, highest, in_all = count * len(pool.get("zones") or [""]), autoscaling.get("max"), autoscaling.get("totalMax")
    if highest is not None and not autoscaling.get("min", 0) <= count <= highest:
        message = f"must be between autoscaling.min and autoscaling.max, {autoscaling.get('min', 0)} and {highest}"
        yield faults.invalid(f"{path}.nodeCount", count, message, "begin with a number within the bounds")
    elif in_all is not None and total > in_all:
        message = f"must not be more than autoscaling.totalMax over all zones: {total} nodes, and {in_all} at most"
        yield faults.invalid(f"{path}.nodeCount", count, message, "lower nodeCount, or raise totalMax")


def _provisioning_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """Only standard machines use reservations; queued pools start empty and have autoscaling."""
    provisioning = pool.get("provisioning", "standard")
    if pool.get("reservation") and provisioning != "standard":
        message = f"{provisioning} machines do not use reservations"
        yield faults.forbidden(f"{path}.reservation", message, "drop it, or set provisioning to standard")
    if provisioning != "queued":
        return
    autoscaling = pool.get("autoscaling")
    if autoscaling is None:
        remedy = "give autoscaling: {totalMin: 0, totalMax: 8}"
        yield faults.required(f"{path}.autoscaling", "a queued pool grows by requests", remedy)
        return
    begun = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "totalMin")}
    for field, count in {"nodeCount": pool.get("nodeCount"), **begun}.items():
        if count:
            message = "must be 0: nodes of a queued pool come with ProvisioningRequests alone"
            yield faults.invalid(f"{path}.{field}", count, message, "set it to 0")


def _accelerator_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """Attached accelerators have an allowed count; TPU slice machines have their own chips."""
    accelerator = pool.get("accelerator")
    if accelerator is None:
        return
    if pool.get("tpuTopology"):
        message = "may not be set with tpuTopology: the machines of a slice bring their chips"
        yield faults.forbidden(f"{path}.accelerator", message, "drop accelerator or tpuTopology")
    if accelerator["count"] not in _COUNTS:
        counts = ", ".join(map(str, _COUNTS))
        message = f"must be one of {counts}"
        yield faults.invalid(f"{path}.accelerator.count", accelerator["count"], message, f"use one of {counts}")


def _placement_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """A placement group is in one zone, and its name is a label value."""
    group = pool.get("placementGroup")
    if group is None:
        return
    at = f"{path}.placementGroup"
    if not group or names.label_value(group) or len(group) > _GROUP_LENGTH_MAX:
        message = f"must be a label value of 1 to {_GROUP_LENGTH_MAX} characters"
        yield faults.invalid(at, group, message, "use letters, digits, '-', '_' and '.', a letter or digit first")
    if pool.get("provisioning") == "queued":
        message = "compact placement is not available with queued provisioning"
        yield faults.forbidden(at, message, "drop it, or set provisioning to standard or spot")
    yield from queued_jobs.one_zone_faults(pool, path, "a placement group")


# --- instances ---
#
# Rules of Instances and ResizeRequests: a request to the cloud is immutable.


_REMEDY: Final = "delete the object and recreate it"


def instance_faults(instance: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an Instance."""
    spec = instance.get("spec") or {}
    yield from metadata.metadata_faults(instance)
    yield from run_duration_faults(spec, "spec")
    if spec.get("resizeRequest") and spec.get("provisioning", "standard") != "queued":
        message = "only queued instances come with a ResizeRequest"
        yield faults.forbidden("spec.resizeRequest", message, "drop it, or set spec.provisioning to queued")


def resize_request_faults(request: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ResizeRequest."""
    spec = request.get("spec") or {}
    yield from metadata.metadata_faults(request)
    yield from run_duration_faults({**spec, "provisioning": "queued"}, "spec")
    wanted = spec.get("provisioningRequest")
    if wanted is not None and not all(wanted.partition("/")):
        message = "must be the namespace and the name of a ProvisioningRequest"
        yield faults.invalid("spec.provisioningRequest", wanted, message, "write it as namespace/name")


def instance_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of an Instance: its spec is immutable."""
    yield from instance_faults(new)
    if new.get("spec") != old.get("spec"):
        yield faults.broken_rule("spec", "object", faults.IMMUTABLE, _REMEDY)


def resize_request_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ResizeRequest: its spec is immutable."""
    yield from resize_request_faults(new)
    if new.get("spec") != old.get("spec"):
        yield faults.broken_rule("spec", "object", faults.IMMUTABLE, _REMEDY)


# --- budget ---
#
# Rules of Budgets: one amount, and the actions at its thresholds.


_AMOUNTS: Final = ("dollars", "acceleratorHours")


def budget_faults(budget: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Budget."""
    spec = budget.get("spec") or {}
    yield from metadata.metadata_faults(budget)
    given = [field for field in _AMOUNTS if spec.get(field) is not None]
    if not given:
        yield faults.required(
            "spec.dollars", "a Budget says how much", 'set dollars: "5000", or acceleratorHours: "120"'
        )
    if len(given) > 1:
        remedy = "make two Budgets, one for each"
        yield faults.forbidden("spec.acceleratorHours", "may not be set beside dollars", remedy)
    for field in given:
        if quantity.parse(spec[field]) < 0:
            yield faults.invalid(f"spec.{field}", spec[field], "must not be negative", "use 0 to allow nothing")
    for place, threshold in enumerate(spec.get("thresholds") or ()):
        path = f"spec.thresholds[{place}]"
        if threshold.get("drain") and threshold["action"] != "Hold":
            yield faults.forbidden(f"{path}.drain", "only those that Hold drain", "drop it, or set action to Hold")
        if "priorityBoost" in threshold and threshold["action"] != "Demote":
            remedy = "drop it, or set action to Demote"
            yield faults.forbidden(f"{path}.priorityBoost", "only those that Demote have one", remedy)
