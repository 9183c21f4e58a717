"""Rules of Clusters, NodePools, Instances, resize requests and Budgets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta
from batchyard.api.errors import FieldError
from batchyard.api.patterns import pattern_fault
from batchyard.api.times import ReservationWindow, is_time, moment, parse_time, window_of
from batchyard.api.validation import job, pods, rules
from batchyard.api.validation.job import topology_faults
from batchyard.api.validation.rules import is_extended
from batchyard.base.instant import HOUR, SECOND, parse_duration

# --- node pool ---
#
# Rules of NodePools and of the pools in a Cluster, of Instances, ResizeRequests and Budgets.
#
# Source: GKE's validation of new node pools; limits of run durations and compact placement from the autoscaler's
# pkg/autoprovisioning/injection.go.


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
    yield from rules.metadata_faults(pool)
    yield from pool_faults(pool.get("spec") or {}, "spec")


def node_pool_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a NodePool: its machine configuration is immutable."""
    yield from node_pool_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    for field in _KEPT:
        if spec.get(field) != before.get(field):
            yield rules.immutable(f"spec.{field}", spec.get(field), "make another pool, and delete this one")


def pool_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """Validate the fields of a pool, in a NodePool or a Cluster."""
    yield from rules.label_faults(pool.get("labels"), f"{path}.labels")
    yield from pods.taint_faults(pool.get("taints") or (), f"{path}.taints")
    yield from _size_faults(pool, path)
    yield from _provisioning_faults(pool, path)
    yield from run_duration_faults(pool, path)
    yield from _accelerator_faults(pool, path)
    yield from _placement_faults(pool, path)
    yield from job.slice_faults(pool, path)


def run_duration_faults(spec: Spec, path: str) -> Iterator[FieldError]:
    """The maximum run duration is within the limits of Compute Engine."""
    text = spec.get("maxRunDuration")
    if text is None:
        return
    shortest, longest, words = _DURATIONS[spec.get("provisioning", "standard")]
    if not shortest <= parse_duration(text) <= longest:
        yield rules.invalid(f"{path}.maxRunDuration", text, f"must be between {words}", "give a time within that")


def _size_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """A pool has a fixed number of nodes in each zone, or bounds with an initial count within them."""
    autoscaling, count = pool.get("autoscaling"), pool.get("nodeCount")
    if autoscaling is None:
        if count is None and pool.get("provisioning") != "queued":
            remedy = "say how many nodes each zone has, or give autoscaling: {min: 0, max: 3}"
            yield rules.required(f"{path}.nodeCount", "a pool without autoscaling has a fixed size", remedy)
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
        yield rules.forbidden(path, message, "give min and max of each zone, or totalMin and totalMax of all zones")
        return
    lowest, highest = ("totalMin", "totalMax") if in_all else ("min", "max")
    if autoscaling.get(highest) is None:
        yield rules.required(f"{path}.{highest}", "", "say how many nodes the pool may have at most")
    elif autoscaling.get(lowest, 0) > autoscaling[highest]:
        message = f"must be at most {highest}, which is {autoscaling[highest]}"
        yield rules.invalid(f"{path}.{lowest}", autoscaling[lowest], message, f"lower {lowest}, or raise {highest}")


def _beginning_faults(pool: Spec, autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """The initial count is within the bounds, for each zone or for all zones together."""
    count = pool.get("nodeCount", 0)
    total, highest, in_all = count * len(pool.get("zones") or [""]), autoscaling.get("max"), autoscaling.get("totalMax")
    if highest is not None and not autoscaling.get("min", 0) <= count <= highest:
        message = f"must be between autoscaling.min and autoscaling.max, {autoscaling.get('min', 0)} and {highest}"
        yield rules.invalid(f"{path}.nodeCount", count, message, "begin with a number within the bounds")
    elif in_all is not None and total > in_all:
        message = f"must not be more than autoscaling.totalMax over all zones: {total} nodes, and {in_all} at most"
        yield rules.invalid(f"{path}.nodeCount", count, message, "lower nodeCount, or raise totalMax")


def _provisioning_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """Only standard machines use reservations; queued pools start empty and have autoscaling."""
    provisioning = pool.get("provisioning", "standard")
    if pool.get("reservation") and provisioning != "standard":
        message = f"{provisioning} machines do not use reservations"
        yield rules.forbidden(f"{path}.reservation", message, "drop it, or set provisioning to standard")
    if provisioning != "queued":
        return
    autoscaling = pool.get("autoscaling")
    if autoscaling is None:
        remedy = "give autoscaling: {totalMin: 0, totalMax: 8}"
        yield rules.required(f"{path}.autoscaling", "a queued pool grows by requests", remedy)
        return
    begun = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "totalMin")}
    for field, count in {"nodeCount": pool.get("nodeCount"), **begun}.items():
        if count:
            message = "must be 0: nodes of a queued pool come with ProvisioningRequests alone"
            yield rules.invalid(f"{path}.{field}", count, message, "set it to 0")


def _accelerator_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """Attached accelerators have an allowed count; TPU slice machines have their own chips."""
    accelerator = pool.get("accelerator")
    if accelerator is None:
        return
    if pool.get("tpuTopology"):
        message = "may not be set with tpuTopology: the machines of a slice bring their chips"
        yield rules.forbidden(f"{path}.accelerator", message, "drop accelerator or tpuTopology")
    if accelerator["count"] not in _COUNTS:
        counts = ", ".join(map(str, _COUNTS))
        message = f"must be one of {counts}"
        yield rules.invalid(f"{path}.accelerator.count", accelerator["count"], message, f"use one of {counts}")


def _placement_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """A placement group is in one zone, and its name is a label value."""
    group = pool.get("placementGroup")
    if group is None:
        return
    at = f"{path}.placementGroup"
    if not group or rules.label_value(group) or len(group) > _GROUP_LENGTH_MAX:
        message = f"must be a label value of 1 to {_GROUP_LENGTH_MAX} characters"
        yield rules.invalid(at, group, message, "use letters, digits, '-', '_' and '.', a letter or digit first")
    if pool.get("provisioning") == "queued":
        message = "compact placement is not available with queued provisioning"
        yield rules.forbidden(at, message, "drop it, or set provisioning to standard or spot")
    yield from job.one_zone_faults(pool, path, "a placement group")


# --- instances ---
#
# Rules of Instances and ResizeRequests: a request to the cloud is immutable.


_REMEDY: Final = "delete the object and recreate it"


def instance_faults(instance: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an Instance."""
    spec = instance.get("spec") or {}
    yield from rules.metadata_faults(instance)
    yield from run_duration_faults(spec, "spec")
    if spec.get("resizeRequest") and spec.get("provisioning", "standard") != "queued":
        message = "only queued instances come with a ResizeRequest"
        yield rules.forbidden("spec.resizeRequest", message, "drop it, or set spec.provisioning to queued")


def resize_request_faults(request: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ResizeRequest."""
    spec = request.get("spec") or {}
    yield from rules.metadata_faults(request)
    yield from run_duration_faults({**spec, "provisioning": "queued"}, "spec")
    wanted = spec.get("provisioningRequest")
    if wanted is not None and not all(wanted.partition("/")):
        message = "must be the namespace and the name of a ProvisioningRequest"
        yield rules.invalid("spec.provisioningRequest", wanted, message, "write it as namespace/name")


def instance_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of an Instance: its spec is immutable."""
    yield from instance_faults(new)
    if new.get("spec") != old.get("spec"):
        yield rules.broken_rule("spec", "object", rules.IMMUTABLE, _REMEDY)


def resize_request_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ResizeRequest: its spec is immutable."""
    yield from resize_request_faults(new)
    if new.get("spec") != old.get("spec"):
        yield rules.broken_rule("spec", "object", rules.IMMUTABLE, _REMEDY)


# --- budget ---
#
# Rules of Budgets: one amount, and the actions at its thresholds.


_AMOUNTS: Final = ("dollars", "acceleratorHours")


def budget_faults(budget: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Budget."""
    spec = budget.get("spec") or {}
    yield from rules.metadata_faults(budget)
    given = [field for field in _AMOUNTS if spec.get(field) is not None]
    if not given:
        yield rules.required(
            "spec.dollars", "a Budget says how much", 'set dollars: "5000", or acceleratorHours: "120"'
        )
    if len(given) > 1:
        remedy = "make two Budgets, one for each"
        yield rules.forbidden("spec.acceleratorHours", "may not be set beside dollars", remedy)
    for field in given:
        if meta.parse(spec[field]) < 0:
            yield rules.invalid(f"spec.{field}", spec[field], "must not be negative", "use 0 to allow nothing")
    for place, threshold in enumerate(spec.get("thresholds") or ()):
        path = f"spec.thresholds[{place}]"
        if threshold.get("drain") and threshold["action"] != "Hold":
            yield rules.forbidden(f"{path}.drain", "only those that Hold drain", "drop it, or set action to Hold")
        if "priorityBoost" in threshold and threshold["action"] != "Demote":
            remedy = "drop it, or set action to Demote"
            yield rules.forbidden(f"{path}.priorityBoost", "only those that Demote have one", remedy)


# --- cluster settings ---
#
# Rules of a Cluster beyond its pools: autoscaling, times, machine types and prices.


#: GKE requires limits for these resources before it creates pools on its own.
_LIMITED: Final = ("cpu", "memory")
_STEPS: Final = ("provisioning", "boot", "registration", "network", "drivers", "shutdown", "podStart")
_CLUSTER_AMOUNTS: Final = ("cpu", "sustainedCpu", "memory", "onDemand", "spot", "reserved", "flexStart")


def settings_faults(spec: Spec) -> Iterator[FieldError]:
    """Validate a Cluster's settings."""
    yield from _autoscaling_faults(spec.get("autoscaling") or {}, "spec.autoscaling")
    yield from _times_faults(spec.get("times") or {}, "spec.times")
    for machine, times in ((spec.get("times") or {}).get("byMachine") or {}).items():
        yield from _times_faults(times, f"spec.times.byMachine[{machine}]")
    for machine, prices in (spec.get("prices") or {}).items():
        for field, price in prices.items():
            yield from rules.amount_faults(price, f"spec.prices[{machine}].{field}")
    for machine, described in (spec.get("catalog") or {}).items():
        if not machine or rules.label_value(machine):
            message = "a machine type is a label of its nodes: at most 63 letters, digits, '-', '_' and '.'"
            yield rules.invalid("spec.catalog", machine, message, "use a name such as x1-huge-8")
        yield from _machine_faults(described, f"spec.catalog[{machine}]")


def _machine_faults(described: Spec, path: str) -> Iterator[FieldError]:
    """Amounts and prices of a machine are not negative, and sustained cpu is at most its cpu."""
    for field in _CLUSTER_AMOUNTS:
        if field in described:
            yield from rules.amount_faults(described[field], f"{path}.{field}")
    for field in ("cpu", "memory"):
        if rules.nano(described[field]) == 0:
            yield rules.invalid(f"{path}.{field}", described[field], "must be greater than 0", "say what it has")
    sustained = described.get("sustainedCpu")
    if sustained is not None and rules.exceeds(sustained, described["cpu"]):
        message = f"must be no more than its cpu, {rules.shown(described['cpu'])}"
        yield rules.invalid(
            f"{path}.sustainedCpu", sustained, message, "give what it has all the time, or leave it out"
        )
    yield from _device_faults(described, path)


def _device_faults(described: Spec, path: str) -> Iterator[FieldError]:
    """The accelerator is an extended resource, and the topology has as many chips as the machine."""
    accelerator, topology = described.get("accelerator") or {}, described.get("topology")
    resource = accelerator.get("resource")
    if resource and not is_extended(resource):
        message = "must be a resource that is not Kubernetes' own, with a domain before a slash"
        yield rules.invalid(f"{path}.accelerator.resource", resource, message, "use a name such as example.com/gpu")
    if topology and not accelerator:
        message = "may not be set without accelerator: it is the arrangement of its chips"
        yield rules.forbidden(f"{path}.topology", message, "drop it, or give the accelerator")
    elif topology:
        yield from topology_faults(topology, f"{path}.topology", accelerator["count"])


def _autoscaling_faults(autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """Autoscaler settings are in range, and the priority expander has priorities."""
    threshold = autoscaling.get("utilizationThreshold", 0)
    if rules.exceeds(threshold, 1) or rules.exceeds(0, threshold):
        message = "must be between 0 and 1"
        yield rules.invalid(f"{path}.utilizationThreshold", threshold, message, "give a share, such as 0.5")
    for field, usual in (("scanInterval", "10s"), ("maxNodeProvisionTime", "15m")):
        duration = autoscaling.get(field, usual)
        if parse_duration(duration) <= 0:
            yield rules.invalid(f"{path}.{field}", duration, "must be greater than 0", f"use {usual}")
    yield from _priorities_faults(autoscaling, f"{path}.priorities")
    limits = (autoscaling.get("autoProvisioning") or {}).get("limits")
    if limits is not None:
        yield from _limits_faults(limits, f"{path}.autoProvisioning.limits")


def _priorities_faults(autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """Priorities are regular expressions, and only the priority expander uses them."""
    priorities, expander = autoscaling.get("priorities"), autoscaling.get("expander", "least-waste")
    if expander == "priority" and not priorities:
        remedy = "list pools, most wanted first, or use another expander"
        yield rules.required(path, "the expander priority goes by it", remedy)
    elif priorities and expander != "priority":
        message = f"the expander {expander} does not go by it"
        yield rules.forbidden(path, message, "drop it, or set expander to priority")
    for i, pattern in enumerate(priorities or ()):
        if wrong := pattern_fault(pattern):
            message = f"must be a regular expression ({wrong})"
            yield rules.invalid(
                f"{path}[{i}]", pattern, message, "use the name of a pool, or a pattern such as spot-.*"
            )


def _limits_faults(limits: Sequence[Spec], path: str) -> Iterator[FieldError]:
    """Automatic provisioning has limits, of cpu and memory at least."""
    for i, limit in enumerate(limits):
        if limit.get("min", 0) > limit["max"]:
            message = f"must be at most max, which is {limit['max']}"
            yield rules.invalid(f"{path}[{i}].min", limit["min"], message, "lower min, or raise max")
    given = {limit["resource"] for limit in limits}
    for resource in _LIMITED:
        if resource not in given:
            remedy = f"add {{resource: {resource}, max: 1000}}{' (memory in GB)' if resource == 'memory' else ''}"
            yield rules.required(path, f"a limit of {resource} must be given", remedy)


def _times_faults(times: Spec, path: str) -> Iterator[FieldError]:
    """The typical duration of a step is between the shortest and the longest."""
    for field in _STEPS:
        if spread := times.get(field):
            lowest, typical, highest = (parse_duration(spread[bound]) for bound in ("min", "typical", "max"))
            if not lowest <= typical <= highest:
                message = "must be in order: min, typical, max"
                yield rules.invalid(f"{path}.{field}", spread, message, "give times such as 30s, 60s, 120s")


def cluster_faults(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Cluster."""
    spec = cluster.get("spec") or {}
    yield from rules.metadata_faults(cluster)
    yield from _zone_faults(spec)
    rows = enumerate(spec.get("reservations") or ())
    found = [fault for i, row in rows for fault in _reservation_faults(row, spec, f"spec.reservations[{i}]")]
    yield from found or _booking_faults(cluster)
    for i, capacity in enumerate(spec.get("capacity") or ()):
        yield from _known_zone_faults(capacity["zone"], spec, f"spec.capacity[{i}].zone")
    for i, pool in enumerate(spec.get("nodePools") or ()):
        yield from _pool_faults(pool, spec, f"spec.nodePools[{i}]")
    yield from _sharing_faults(spec.get("nodePools") or ())
    yield from _reserved_count_faults(spec)
    for i, row in enumerate((spec.get("local") or {}).get("images") or ()):
        yield from _image_faults(row, f"spec.local.images[{i}]")
    yield from settings_faults(spec)


def cluster_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Cluster: its region is immutable."""
    yield from cluster_faults(new)
    region, before = ((obj.get("spec") or {}).get("region") for obj in (new, old))
    if region != before:
        yield rules.immutable("spec.region", region)


def _zone_faults(spec: Spec) -> Iterator[FieldError]:
    """The zones of a cluster belong to its region."""
    region = spec["region"]
    for i, zone in enumerate(spec["zones"]):
        if zone != region and not zone.startswith(f"{region}-"):
            message = f"must be a zone of region {region}"
            remedy = f"use a zone such as {region}-a, or change spec.region"
            yield rules.invalid(f"spec.zones[{i}]", zone, message, remedy)


def _image_faults(row: Spec, path: str) -> Iterator[FieldError]:
    """An image row names exactly one source, and its paths are absolute."""
    sources = [field for field in ("environment", "root", "machine", "engine") if row.get(field)]
    if len(sources) != 1:
        message = "must say one of environment, root, machine and engine"
        yield rules.invalid(
            path, row, message, "name a virtualenv, a root folder, or say machine: true, or engine: podman or docker"
        )
    for field in ("image",) if row.get("engine") is None else ("workingDir",):
        if row.get(field):
            yield rules.invalid(
                f"{path}.{field}", row[field], "does not go with what the row says", f"leave out {field}"
            )
    for field in ("environment", "root", "workingDir"):
        if row.get(field) and not row[field].startswith("/"):
            yield rules.invalid(f"{path}.{field}", row[field], "must be an absolute path", "begin it with /")


def _known_zone_faults(zone: str, spec: Spec, path: str) -> Iterator[FieldError]:
    """A zone is one of the cluster's."""
    if zone not in spec["zones"]:
        remedy = f"use one of {', '.join(spec['zones'])}, or add it to spec.zones"
        yield rules.unsupported(path, zone, spec["zones"], remedy)


def _reservation_faults(reservation: Spec, spec: Spec, path: str) -> Iterator[FieldError]:
    """A reservation is in a zone of the cluster, and ends after it starts."""
    yield from _known_zone_faults(reservation["zone"], spec, f"{path}.zone")
    wrong = False
    for field in ("start", "end"):
        text = reservation.get(field)
        if text is not None and not _is_moment(text):
            wrong = True
            remedy = "write a time such as 2026-12-01T20:00:00Z, or a duration from the start such as 90m"
            yield rules.invalid(f"{path}.{field}", text, "must be a time or a duration", remedy)
    if wrong:
        return
    start, end, duration = reservation.get("start", "0s"), reservation.get("end"), reservation.get("duration")
    if end is not None and duration is not None:
        yield rules.forbidden(f"{path}.duration", "may not be set with end", "drop one of both")
    elif end is not None and is_time(end) != is_time(start):
        yield rules.invalid(f"{path}.end", end, f"must be written as start is, which is {start}", "give two times")
    elif end is not None and moment(end, 0) <= moment(start, 0):
        yield rules.invalid(f"{path}.end", end, f"must be after start, which is {start}", "give a later end")
    elif duration is not None and parse_duration(duration) == 0:
        yield rules.invalid(f"{path}.duration", duration, "must be greater than 0", "say how long it lasts")


def _is_moment(text: str) -> bool:
    try:
        moment(text, 0)
    except ValueError:
        return False
    return True


def _booking_faults(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """At no time do reservations exceed the number of machines of a type that can be booked in a zone.

    Sums are greatest at the start of a window. A Cluster that is not stored yet starts with the first of its windows.
    """
    made = cluster["metadata"].get("creationTimestamp")
    began = parse_time(made) if made else 0
    rows = cluster["spec"].get("reservations") or ()
    windows = [window_of(row, began) for row in rows]
    for bound in cluster["spec"].get("bookable") or ():
        kind = bound["machineType"], bound["zone"]
        like = [i for i, row in enumerate(rows) if (row["machineType"], row["zone"]) == kind]
        for i in like:
            start = ReservationWindow(windows[i].start, windows[i].start + 1)
            others = [n for n in like if n != i and windows[n].overlaps(start)]
            booked = sum(rows[n]["count"] for n in (i, *others))
            if booked > bound["count"]:
                names = ", ".join(rows[n]["name"] for n in others) or "no other reservation"
                message = f"{bound['count']} machines of {kind[0]} can be booked in {kind[1]}, not {booked}"
                remedy = f"lower count, or choose another window: {names} holds machines when it starts"
                yield rules.invalid(f"spec.reservations[{i}].count", rows[i]["count"], message, remedy)


def _pool_faults(pool: Spec, spec: Spec, path: str) -> Iterator[FieldError]:
    """A pool follows the rules of pools; its zones and its reservation exist in the cluster."""
    for message in rules.gke_name(pool["name"]):
        yield rules.invalid(f"{path}.name", pool["name"], message, rules.name_remedy(pool["name"], rules.gke_name))
    yield from pool_faults(pool, path)
    for i, zone in enumerate(pool.get("zones") or ()):
        yield from _known_zone_faults(zone, spec, f"{path}.zones[{i}]")
    if name := pool.get("reservation"):
        yield from _use_faults(pool, name, spec, path)


def _use_faults(pool: Spec, name: str, spec: Spec, path: str) -> Iterator[FieldError]:
    """A pool with a reservation has the reservation's machine type and zone."""
    reservations = {each["name"]: each for each in spec.get("reservations") or ()}
    found = reservations.get(name)
    if found is None:
        choice = f"use one of {', '.join(reservations)}, or add" if reservations else "add"
        yield rules.not_found(f"{path}.reservation", name, f"{choice} it to spec.reservations")
        return
    if pool["machineType"] != found["machineType"]:
        message = f"must be that of reservation {name}, which is {found['machineType']}"
        remedy = f"use {found['machineType']}, or another reservation"
        yield rules.invalid(f"{path}.machineType", pool["machineType"], message, remedy)
    zones = pool.get("zones") or [found["zone"]]
    if zones != [found["zone"]]:
        message = f"must be that of reservation {name}, which is {found['zone']}"
        yield rules.invalid(f"{path}.zones", zones, message, f"set it to [{found['zone']}], or leave it out")


def _sharing_faults(pools: Sequence[Spec]) -> Iterator[FieldError]:
    """A placement group belongs to one pool."""
    seen: dict[str, str] = {}
    for i, pool in enumerate(pools):
        group = pool.get("placementGroup")
        if group in seen:
            remedy = f"give it a group of its own: pool {seen[group]} has this one"
            yield rules.duplicate(f"spec.nodePools[{i}].placementGroup", group, remedy)
        elif group:
            seen[group] = pool["name"]


def _reserved_count_faults(spec: Spec) -> Iterator[FieldError]:
    """Pools of fixed size use no more machines than their reservation has."""
    for reservation in spec.get("reservations") or ():
        wanted = 0
        for i, pool in enumerate(spec.get("nodePools") or ()):
            if pool.get("reservation") != reservation["name"] or pool.get("autoscaling") is not None:
                continue
            wanted += pool.get("nodeCount", 0)
            if wanted > reservation["count"]:
                message = f"reservation {reservation['name']} has {reservation['count']} machines, not {wanted}"
                remedy = "lower nodeCount, or raise the reservation's count"
                yield rules.invalid(f"spec.nodePools[{i}].nodeCount", pool["nodeCount"], message, remedy)
