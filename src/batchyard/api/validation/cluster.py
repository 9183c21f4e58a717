"""Validation of the cloud kinds (Clusters, NodePools, Instances, ResizeRequests) and of Budgets.

For Clusters: settings, machine types, prices, reservations, local images and node pools.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta
from batchyard.api.errors import FieldError
from batchyard.api.patterns import pattern_fault
from batchyard.api.times import ReservationWindow, is_time, parse_time, parse_time_or_duration, reservation_window
from batchyard.api.validation import pods, rules
from batchyard.api.validation.rules import is_extended
from batchyard.api.validation.tpu_slices import single_zone_errors, tpu_slice_errors, tpu_topology_errors
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import HOUR, SECOND, parse_duration

# Rules of NodePools and of the pools in a Cluster.
#
# Source: GKE's validation of new node pools; limits of run durations and compact placement from the autoscaler's
# pkg/autoprovisioning/injection.go.


SpecFields = Mapping[str, Any]

_DAY_DURATION: Final = 24 * HOUR
#: The minimum and maximum run duration of a machine by provisioning model, and both as text.
_RUN_DURATION_LIMITS: Final = {
    "standard": (30 * SECOND, 120 * _DAY_DURATION, "30s and 2880h (120 days)"),
    "spot": (30 * SECOND, 120 * _DAY_DURATION, "30s and 2880h (120 days)"),
    "flex-start": (600 * SECOND, 7 * _DAY_DURATION, "10m and 168h (7 days)"),
    "queued": (30 * SECOND, 7 * _DAY_DURATION, "30s and 168h (7 days)"),
}
#: The numbers of accelerators that a machine can have.
_ACCELERATOR_COUNTS: Final = (1, 2, 4, 8, 16)
_PLACEMENT_GROUP_MAX: Final = 40
_IMMUTABLE_NODE_POOL_FIELDS: Final = (
    "machineType",
    "provisioning",
    "accelerator",
    "reservation",
    "placementGroup",
    "tpuTopology",
)


def node_pool_errors(pool: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a NodePool: its metadata and the fields of its spec."""
    yield from rules.metadata_errors(pool)
    yield from pool_errors(pool.get("spec") or {}, "spec")


def node_pool_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a NodePool: its machine configuration is immutable."""
    yield from node_pool_errors(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    for field in changed_machine_fields(spec, old_spec):
        yield rules.immutable(f"spec.{field}", spec.get(field), "create another NodePool, and delete this one")


def changed_machine_fields(pool: SpecFields, old_pool: SpecFields) -> list[str]:
    """Return the immutable fields in which two versions of a node pool differ."""
    return [field for field in _IMMUTABLE_NODE_POOL_FIELDS if pool.get(field) != old_pool.get(field)]


def pool_errors(pool: SpecFields, path: str) -> Iterator[FieldError]:
    """Validate a node pool's fields; `path` is their location in a NodePool or a Cluster."""
    yield from rules.label_errors(pool.get("labels"), f"{path}.labels")
    yield from pods.taint_errors(pool.get("taints") or (), f"{path}.taints")
    yield from _node_count_errors(pool, path)
    yield from _provisioning_errors(pool, path)
    yield from run_duration_errors(pool, path)
    yield from _accelerator_errors(pool, path)
    yield from _placement_errors(pool, path)
    yield from tpu_slice_errors(pool, path)


def run_duration_errors(spec: SpecFields, path: str) -> Iterator[FieldError]:
    """Report a maxRunDuration outside of the limits of Compute Engine for the provisioning model."""
    text = spec.get("maxRunDuration")
    if text is None:
        return
    minimum, maximum, limits = _RUN_DURATION_LIMITS[spec.get("provisioning", "standard")]
    if not minimum <= parse_duration(text) <= maximum:
        yield rules.invalid(f"{path}.maxRunDuration", text, f"must be between {limits}", f"use between {limits}")


def _node_count_errors(pool: SpecFields, path: str) -> Iterator[FieldError]:
    autoscaling, node_count = pool.get("autoscaling"), pool.get("nodeCount")
    if autoscaling is None:
        if node_count is None and pool.get("provisioning") != "queued":
            remedy = "set nodeCount to the number of nodes in each zone, or set autoscaling: {min: 0, max: 3}"
            yield rules.required(f"{path}.nodeCount", "a pool without autoscaling has a fixed size", remedy)
        return
    bounds_errors = list(_autoscaling_bounds_errors(autoscaling, f"{path}.autoscaling"))
    yield from bounds_errors or _initial_count_errors(pool, autoscaling, path)


def _autoscaling_bounds_errors(autoscaling: SpecFields, path: str) -> Iterator[FieldError]:
    has_zone_bounds = "min" in autoscaling or "max" in autoscaling
    has_total_bounds = "totalMin" in autoscaling or "totalMax" in autoscaling
    if has_zone_bounds and has_total_bounds:
        message = "min and max are mutually exclusive with totalMin and totalMax"
        yield rules.forbidden(path, message, "set min and max for each zone, or totalMin and totalMax for all zones")
        return
    minimum, maximum = ("totalMin", "totalMax") if has_total_bounds else ("min", "max")
    if autoscaling.get(maximum) is None:
        yield rules.required(f"{path}.{maximum}", "", f"set {maximum} to the maximum number of nodes")
    elif autoscaling.get(minimum, 0) > autoscaling[maximum]:
        message = f"must be at most {maximum}, which is {autoscaling[maximum]}"
        yield rules.invalid(f"{path}.{minimum}", autoscaling[minimum], message, f"lower {minimum}, or raise {maximum}")


def _initial_count_errors(pool: SpecFields, autoscaling: SpecFields, path: str) -> Iterator[FieldError]:
    zone_node_count = pool.get("nodeCount", 0)
    total_count = zone_node_count * len(pool.get("zones") or [""])
    minimum, maximum, total_max = autoscaling.get("min", 0), autoscaling.get("max"), autoscaling.get("totalMax")
    if maximum is not None and not minimum <= zone_node_count <= maximum:
        message = f"must be between autoscaling.min and autoscaling.max, {minimum} and {maximum}"
        yield rules.invalid(f"{path}.nodeCount", zone_node_count, message, f"use a number from {minimum} to {maximum}")
    elif total_max is not None and total_count > total_max:
        message = f"must be at most autoscaling.totalMax, {total_max}, in all zones together: it is {total_count}"
        yield rules.invalid(f"{path}.nodeCount", zone_node_count, message, "lower nodeCount, or raise totalMax")


def _provisioning_errors(pool: SpecFields, path: str) -> Iterator[FieldError]:
    provisioning_model = pool.get("provisioning", "standard")
    if pool.get("reservation") and provisioning_model != "standard":
        message = f"{provisioning_model} machines do not use reservations"
        yield rules.forbidden(f"{path}.reservation", message, "remove reservation, or set provisioning to standard")
    if provisioning_model != "queued":
        return
    autoscaling = pool.get("autoscaling")
    if autoscaling is None:
        remedy = "add autoscaling, such as {totalMin: 0, totalMax: 8}"
        yield rules.required(f"{path}.autoscaling", "a pool with queued provisioning must be autoscaled", remedy)
        return
    minimum_counts = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "totalMin")}
    for field, count in {"nodeCount": pool.get("nodeCount"), **minimum_counts}.items():
        if count:
            message = "must be 0 with queued provisioning: only ProvisioningRequests create its nodes"
            yield rules.invalid(f"{path}.{field}", count, message, f"set {field} to 0")


def _accelerator_errors(pool: SpecFields, path: str) -> Iterator[FieldError]:
    accelerator = pool.get("accelerator")
    if accelerator is None:
        return
    if pool.get("tpuTopology"):
        message = "must not be set with tpuTopology: machines of a TPU slice include their chips"
        yield rules.forbidden(f"{path}.accelerator", message, "remove accelerator or tpuTopology")
    if accelerator["count"] not in _ACCELERATOR_COUNTS:
        allowed_counts = ", ".join(map(str, _ACCELERATOR_COUNTS))
        message = f"must be one of {allowed_counts}"
        yield rules.invalid(f"{path}.accelerator.count", accelerator["count"], message, f"use one of {allowed_counts}")


def _placement_errors(pool: SpecFields, path: str) -> Iterator[FieldError]:
    group = pool.get("placementGroup")
    if group is None:
        return
    group_path = f"{path}.placementGroup"
    if not group or rules.label_value_errors(group) or len(group) > _PLACEMENT_GROUP_MAX:
        message = f"must be a label value of 1 to {_PLACEMENT_GROUP_MAX} characters"
        yield rules.invalid(group_path, group, message, "use letters, digits, '-', '_' and '.', but not at the ends")
    if pool.get("provisioning") == "queued":
        message = "compact placement is not available with queued provisioning"
        yield rules.forbidden(group_path, message, "remove placementGroup, or set provisioning to standard or spot")
    yield from single_zone_errors(pool, path, "a placement group")


# Rules of Instances and ResizeRequests, whose specs are immutable.


_RECREATE_REMEDY: Final = "delete the object and recreate it"


def instance_errors(instance: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an Instance: its maxRunDuration, and a resizeRequest only with queued provisioning."""
    spec = instance.get("spec") or {}
    yield from rules.metadata_errors(instance)
    yield from run_duration_errors(spec, "spec")
    if spec.get("resizeRequest") and spec.get("provisioning", "standard") != "queued":
        message = "only instances with queued provisioning can belong to a ResizeRequest"
        yield rules.forbidden("spec.resizeRequest", message, "remove resizeRequest, or set spec.provisioning to queued")


def resize_request_errors(request: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ResizeRequest: its maxRunDuration and the name of its ProvisioningRequest."""
    spec = request.get("spec") or {}
    yield from rules.metadata_errors(request)
    yield from run_duration_errors({**spec, "provisioning": "queued"}, "spec")
    request_name = spec.get("provisioningRequest")
    if request_name is not None and not all(request_name.partition("/")):
        message = "must be the namespace and name of a ProvisioningRequest"
        yield rules.invalid("spec.provisioningRequest", request_name, message, "write it as namespace/name")


def instance_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of an Instance: its spec is immutable."""
    yield from instance_errors(new)
    if new.get("spec") != old.get("spec"):
        yield rules.schema_rule_fault("spec", "object", rules.IMMUTABLE_MESSAGE, _RECREATE_REMEDY)


def resize_request_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ResizeRequest: its spec is immutable."""
    yield from resize_request_errors(new)
    if new.get("spec") != old.get("spec"):
        yield rules.schema_rule_fault("spec", "object", rules.IMMUTABLE_MESSAGE, _RECREATE_REMEDY)


# Rules of Budgets: an amount in dollars or in accelerator hours, and the actions at its thresholds.


_BUDGET_AMOUNT_FIELDS: Final = ("dollars", "acceleratorHours")


def budget_errors(budget: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Budget: one amount, in dollars or accelerator hours, and settings that fit the threshold actions."""
    spec = budget.get("spec") or {}
    yield from rules.metadata_errors(budget)
    amount_fields = [field for field in _BUDGET_AMOUNT_FIELDS if spec.get(field) is not None]
    if not amount_fields:
        yield rules.required(
            "spec.dollars", "a Budget needs an amount", 'set dollars: "5000" or acceleratorHours: "120", for example'
        )
    if len(amount_fields) > 1:
        remedy = "create two Budgets, one in dollars and one in accelerator hours"
        yield rules.forbidden("spec.acceleratorHours", "must not be set together with dollars", remedy)
    for field in amount_fields:
        if meta.parse_quantity(spec[field]) < 0:
            yield rules.invalid(f"spec.{field}", spec[field], "must not be negative", "use 0 or more")
    for index, threshold in enumerate(spec.get("thresholds") or ()):
        path = f"spec.thresholds[{index}]"
        if threshold.get("drain") and threshold["action"] != "Hold":
            yield rules.forbidden(f"{path}.drain", "only action Hold can drain", "remove drain, or set action to Hold")
        if "priorityBoost" in threshold and threshold["action"] != "Demote":
            remedy = "remove priorityBoost, or set action to Demote"
            yield rules.forbidden(f"{path}.priorityBoost", "only action Demote can have a priorityBoost", remedy)


# Rules of a Cluster's settings: autoscaling, durations of machine operations, machine types and prices.


#: The resources that need limits before GKE creates node pools automatically (autoProvisioning).
_LIMITED_RESOURCES: Final = ("cpu", "memory")
_OPERATION_TIME_FIELDS: Final = ("provisioning", "boot", "registration", "network", "drivers", "shutdown", "podStart")
_MACHINE_AMOUNT_FIELDS: Final = ("cpu", "sustainedCpu", "memory", "onDemand", "spot", "reserved", "flexStart")


def settings_errors(spec: SpecFields) -> Iterator[FieldError]:
    """Validate a Cluster's autoscaling, durations of machine operations, prices, and machine types."""
    yield from _autoscaling_errors(spec.get("autoscaling") or {}, "spec.autoscaling")
    yield from _operation_times_errors(spec.get("times") or {}, "spec.times")
    for machine, times in ((spec.get("times") or {}).get("byMachine") or {}).items():
        yield from _operation_times_errors(times, f"spec.times.byMachine[{machine}]")
    for machine, prices in (spec.get("prices") or {}).items():
        for field, price in prices.items():
            yield from rules.amount_errors(price, f"spec.prices[{machine}].{field}")
    for machine, machine_type in (spec.get("catalog") or {}).items():
        if not machine or rules.label_value_errors(machine):
            message = "a machine type must be a label value: at most 63 letters, digits, '-', '_' and '.'"
            yield rules.invalid("spec.catalog", machine, message, "use a name such as x1-huge-8")
        yield from _machine_type_errors(machine_type, f"spec.catalog[{machine}]")


def _machine_type_errors(machine_type: SpecFields, path: str) -> Iterator[FieldError]:
    for field in _MACHINE_AMOUNT_FIELDS:
        if field in machine_type:
            yield from rules.amount_errors(machine_type[field], f"{path}.{field}")
    for field in ("cpu", "memory"):
        if rules.parse_nano_amount(machine_type[field]) == 0:
            remedy = f"specify the {field} of the machine"
            yield rules.invalid(f"{path}.{field}", machine_type[field], "must be greater than 0", remedy)
    sustained_cpu = machine_type.get("sustainedCpu")
    if sustained_cpu is not None and rules.exceeds_limit(sustained_cpu, machine_type["cpu"]):
        message = f"must be at most the machine's cpu, which is {rules.canonical_quantity_or_text(machine_type['cpu'])}"
        remedy = "specify the cpu that the machine can use permanently, or remove the field"
        yield rules.invalid(f"{path}.sustainedCpu", sustained_cpu, message, remedy)
    yield from _accelerator_device_errors(machine_type, path)


def _accelerator_device_errors(machine_type: SpecFields, path: str) -> Iterator[FieldError]:
    accelerator, topology = machine_type.get("accelerator") or {}, machine_type.get("topology")
    resource = accelerator.get("resource")
    if resource and not is_extended(resource):
        message = "must be an extended resource: a domain other than kubernetes.io, a slash and a name"
        yield rules.invalid(f"{path}.accelerator.resource", resource, message, "use a name such as example.com/gpu")
    if topology and not accelerator:
        message = "must not be set without accelerator: it describes how the chips of the accelerator are arranged"
        yield rules.forbidden(f"{path}.topology", message, "remove topology, or set accelerator")
    elif topology:
        yield from tpu_topology_errors(topology, f"{path}.topology", accelerator["count"])


def _autoscaling_errors(autoscaling: SpecFields, path: str) -> Iterator[FieldError]:
    threshold = autoscaling.get("utilizationThreshold", 0)
    if rules.exceeds_limit(threshold, 1) or rules.exceeds_limit(0, threshold):
        message = "must be between 0 and 1"
        yield rules.invalid(f"{path}.utilizationThreshold", threshold, message, "use a fraction such as 0.5")
    for field, default in (("scanInterval", "10s"), ("maxNodeProvisionTime", "15m")):
        duration = autoscaling.get(field, default)
        if parse_duration(duration) <= 0:
            yield rules.invalid(f"{path}.{field}", duration, "must be greater than 0", f"use {default}")
    yield from _expander_priorities_errors(autoscaling, f"{path}.priorities")
    limits = (autoscaling.get("autoProvisioning") or {}).get("limits")
    if limits is not None:
        yield from _auto_provisioning_limits_errors(limits, f"{path}.autoProvisioning.limits")


def _expander_priorities_errors(autoscaling: SpecFields, path: str) -> Iterator[FieldError]:
    priorities, expander = autoscaling.get("priorities"), autoscaling.get("expander", "least-waste")
    if expander == "priority" and not priorities:
        remedy = "list names of node pools, highest priority first, or use another expander"
        yield rules.required(path, "the expander priority needs this list", remedy)
    elif priorities and expander != "priority":
        message = f"the expander {expander} does not use priorities"
        yield rules.forbidden(path, message, "remove priorities, or set expander to priority")
    for i, pattern in enumerate(priorities or ()):
        if pattern_error := pattern_fault(pattern):
            message = f"must be a regular expression ({pattern_error})"
            yield rules.invalid(
                f"{path}[{i}]", pattern, message, "use the name of a node pool, or a regular expression such as spot-.*"
            )


def _auto_provisioning_limits_errors(limits: Sequence[SpecFields], path: str) -> Iterator[FieldError]:
    for i, limit in enumerate(limits):
        if limit.get("min", 0) > limit["max"]:
            message = f"must be at most max, which is {limit['max']}"
            yield rules.invalid(f"{path}[{i}].min", limit["min"], message, "lower min, or raise max")
    limited_resources = {limit["resource"] for limit in limits}
    for resource in _LIMITED_RESOURCES:
        if resource not in limited_resources:
            remedy = f"add {{resource: {resource}, max: 1000}}{' (memory in GB)' if resource == 'memory' else ''}"
            yield rules.required(path, f"autoProvisioning needs a limit for {resource}", remedy)


def _operation_times_errors(operation_times: SpecFields, path: str) -> Iterator[FieldError]:
    for field in _OPERATION_TIME_FIELDS:
        if durations := operation_times.get(field):
            minimum, typical, maximum = (parse_duration(durations[bound]) for bound in ("min", "typical", "max"))
            if not minimum <= typical <= maximum:
                message = "must be in order: min, typical, max"
                yield rules.invalid(
                    f"{path}.{field}", durations, message, "use {min: 30s, typical: 60s, max: 90s}, for example"
                )


def cluster_errors(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Cluster: its zones, reservations, capacity, node pools, local images and settings."""
    spec = cluster.get("spec") or {}
    yield from rules.metadata_errors(cluster)
    yield from _region_zone_errors(spec)
    reservations = enumerate(spec.get("reservations") or ())
    errors = [fault for i, each in reservations for fault in _reservation_errors(each, spec, f"spec.reservations[{i}]")]
    yield from errors or _overbooking_errors(cluster)
    for i, capacity in enumerate(spec.get("capacity") or ()):
        yield from _known_zone_errors(capacity["zone"], spec, f"spec.capacity[{i}].zone")
    for i, pool in enumerate(spec.get("nodePools") or ()):
        yield from _pool_errors(pool, spec, f"spec.nodePools[{i}]")
    yield from _shared_placement_group_errors(spec.get("nodePools") or ())
    yield from _reserved_count_errors(spec)
    for i, entry in enumerate((spec.get("local") or {}).get("images") or ()):
        yield from _container_image_errors(entry, f"spec.local.images[{i}]")
    yield from settings_errors(spec)


def cluster_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Cluster: its region and the machine configuration of its node pools are immutable."""
    yield from cluster_errors(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    if spec.get("region") != old_spec.get("region"):
        yield rules.immutable("spec.region", spec.get("region"))
    old_pools = {pool["name"]: pool for pool in old_spec.get("nodePools") or ()}
    for i, pool in enumerate(spec.get("nodePools") or ()):
        for field in changed_machine_fields(pool, old_pools.get(pool["name"], pool)):
            remedy = "give the changed pool another name: it is created, and the old one is deleted"
            yield rules.immutable(f"spec.nodePools[{i}].{field}", pool.get(field), remedy)


def _region_zone_errors(spec: SpecFields) -> Iterator[FieldError]:
    region = spec["region"]
    for i, zone in enumerate(spec["zones"]):
        if zone != region and not zone.startswith(f"{region}-"):
            message = f"must be a zone of region {region}"
            remedy = f"use a zone such as {region}-a, or change spec.region"
            yield rules.invalid(f"spec.zones[{i}]", zone, message, remedy)


def _container_image_errors(image: SpecFields, path: str) -> Iterator[FieldError]:
    image_source_fields = [field for field in ("environment", "root", "machine", "engine") if image.get(field)]
    if len(image_source_fields) != 1:
        message = "must set exactly one of environment, root, machine and engine"
        remedy = "set environment (a virtualenv), root (a folder), machine: true, or engine (podman or docker)"
        yield rules.invalid(path, image, message, remedy)
    field, message = "image", "must not be set without engine"
    if image.get("engine") is not None:
        field, message = "workingDir", "must not be set with engine"
    if image.get(field):
        yield rules.invalid(f"{path}.{field}", image[field], message, f"remove {field}")
    for field in ("environment", "root", "workingDir"):
        if image.get(field) and not image[field].startswith("/"):
            yield rules.invalid(f"{path}.{field}", image[field], "must be an absolute path", "start the path with /")


def _known_zone_errors(zone: str, spec: SpecFields, path: str) -> Iterator[FieldError]:
    if zone not in spec["zones"]:
        remedy = f"use one of {', '.join(spec['zones'])}, or add the zone to spec.zones"
        yield rules.unsupported(path, zone, spec["zones"], remedy)


def _reservation_errors(reservation: SpecFields, spec: SpecFields, path: str) -> Iterator[FieldError]:
    yield from _known_zone_errors(reservation["zone"], spec, f"{path}.zone")
    is_malformed = False
    for field in ("start", "end"):
        text = reservation.get(field)
        if text is not None and not _is_time_or_duration(text):
            is_malformed = True
            remedy = "use a time such as 2026-12-01T20:00:00Z, or a duration after the simulation's start such as 90m"
            yield rules.invalid(f"{path}.{field}", text, "must be a time or a duration", remedy)
    if is_malformed:
        return
    start, end, duration = reservation.get("start", "0s"), reservation.get("end"), reservation.get("duration")
    if end is not None and duration is not None:
        yield rules.forbidden(f"{path}.duration", "must not be set together with end", "remove duration or end")
    elif end is not None and is_time(end) != is_time(start):
        message = f"must be a time or a duration like start, which is {start}"
        yield rules.invalid(f"{path}.end", end, message, "write start and end in the same notation")
    elif end is not None and parse_time_or_duration(end, 0) <= parse_time_or_duration(start, 0):
        yield rules.invalid(f"{path}.end", end, f"must be after start, which is {start}", "set a later end")
    elif duration is not None and parse_duration(duration) == 0:
        yield rules.invalid(f"{path}.duration", duration, "must be greater than 0", "use a duration such as 24h")


def _is_time_or_duration(text: str) -> bool:
    try:
        parse_time_or_duration(text, 0)
    except ValueError:
        return False
    return True


def _overbooking_errors(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """Report reservations of a Cluster that together need more machines of a type than can be reserved in a zone.

    The sum is greatest at the start of a reservation, so only these times are checked. Durations count from the
    creation of the Cluster.
    """
    creation_time = cluster["metadata"].get("creationTimestamp")
    creation_instant = parse_time(creation_time) if creation_time else 0
    reservations = cluster["spec"].get("reservations") or ()
    reservation_windows = [reservation_window(reservation, creation_instant) for reservation in reservations]
    for bookable in cluster["spec"].get("bookable") or ():
        machine_type, zone = bookable["machineType"], bookable["zone"]
        same_type_indexes = [
            i for i, each in enumerate(reservations) if (each["machineType"], each["zone"]) == (machine_type, zone)
        ]
        for i in same_type_indexes:
            start = ReservationWindow(reservation_windows[i].start, reservation_windows[i].start + 1)
            overlapping_indexes = [n for n in same_type_indexes if n != i and reservation_windows[n].overlaps(start)]
            booked_count = sum(reservations[n]["count"] for n in (i, *overlapping_indexes))
            if booked_count > bookable["count"]:
                names = ", ".join(reservations[n]["name"] for n in overlapping_indexes)
                bookable_text = count_with_noun(bookable["count"], "machine")
                message = f"{bookable_text} of {machine_type} can be booked in {zone}, not {booked_count}"
                remedy = f"lower count, or choose a time that does not overlap with {names}" if names else "lower count"
                yield rules.invalid(f"spec.reservations[{i}].count", reservations[i]["count"], message, remedy)


def _pool_errors(pool: SpecFields, spec: SpecFields, path: str) -> Iterator[FieldError]:
    for error in rules.gke_name_errors(pool["name"]):
        yield rules.invalid(f"{path}.name", pool["name"], error, rules.name_remedy(pool["name"], rules.gke_name_errors))
    yield from pool_errors(pool, path)
    for i, zone in enumerate(pool.get("zones") or ()):
        yield from _known_zone_errors(zone, spec, f"{path}.zones[{i}]")
    if name := pool.get("reservation"):
        yield from _reservation_use_errors(pool, name, spec, path)


def _reservation_use_errors(pool: SpecFields, name: str, spec: SpecFields, path: str) -> Iterator[FieldError]:
    reservations = {each["name"]: each for each in spec.get("reservations") or ()}
    reservation = reservations.get(name)
    if reservation is None:
        remedy = "add the reservation to spec.reservations"
        choice_text = f"use one of {', '.join(reservations)}, or " if reservations else ""
        yield rules.not_found(f"{path}.reservation", name, f"{choice_text}{remedy}")
        return
    if pool["machineType"] != reservation["machineType"]:
        message = f"must be the machine type of reservation {name}, {reservation['machineType']}"
        remedy = f"use {reservation['machineType']}, or another reservation"
        yield rules.invalid(f"{path}.machineType", pool["machineType"], message, remedy)
    zones = pool.get("zones") or [reservation["zone"]]
    if zones != [reservation["zone"]]:
        message = f"must be the zone of reservation {name}, {reservation['zone']}"
        yield rules.invalid(f"{path}.zones", zones, message, f"use [{reservation['zone']}], or remove the field")


def _shared_placement_group_errors(pools: Sequence[SpecFields]) -> Iterator[FieldError]:
    pool_by_group: dict[str, str] = {}
    for i, pool in enumerate(pools):
        placement_group = pool.get("placementGroup")
        if placement_group in pool_by_group:
            remedy = f"use another placement group: node pool {pool_by_group[placement_group]} already uses this one"
            yield rules.duplicate(f"spec.nodePools[{i}].placementGroup", placement_group, remedy)
        elif placement_group:
            pool_by_group[placement_group] = pool["name"]


def _reserved_count_errors(spec: SpecFields) -> Iterator[FieldError]:
    for reservation in spec.get("reservations") or ():
        node_count = 0
        for i, pool in enumerate(spec.get("nodePools") or ()):
            if pool.get("reservation") != reservation["name"] or pool.get("autoscaling") is not None:
                continue
            node_count += pool.get("nodeCount", 0)
            if node_count > reservation["count"]:
                reserved_text = count_with_noun(reservation["count"], "machine")
                message = f"reservation {reservation['name']} has {reserved_text}, not {node_count}"
                remedy = "reduce nodeCount, or increase the reservation's count"
                yield rules.invalid(f"spec.nodePools[{i}].nodeCount", pool["nodeCount"], message, remedy)
