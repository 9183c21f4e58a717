"""Rules of Clusters: consistency between the parts of a cluster's description."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.patterns import pattern_fault
from batchyard.api.times import ReservationWindow, is_time, moment, parse_time, window_of
from batchyard.api.validation import errors as amounts
from batchyard.api.validation import errors as faults
from batchyard.api.validation import metadata, names, node_pool
from batchyard.api.validation.queued_jobs import topology_faults
from batchyard.api.validation.resources import is_extended
from batchyard.base.instant import parse_duration

# --- cluster settings ---
#
# Rules of a Cluster beyond its pools: autoscaling, times, machine types and prices.


Spec = Mapping[str, Any]

#: GKE requires limits for these resources before it creates pools on its own.
_LIMITED: Final = ("cpu", "memory")
_STEPS: Final = ("provisioning", "boot", "registration", "network", "drivers", "shutdown", "podStart")
_AMOUNTS: Final = ("cpu", "sustainedCpu", "memory", "onDemand", "spot", "reserved", "flexStart")


def settings_faults(spec: Spec) -> Iterator[FieldError]:
    """Validate a Cluster's settings."""
    yield from _autoscaling_faults(spec.get("autoscaling") or {}, "spec.autoscaling")
    yield from _times_faults(spec.get("times") or {}, "spec.times")
    for machine, times in ((spec.get("times") or {}).get("byMachine") or {}).items():
        yield from _times_faults(times, f"spec.times.byMachine[{machine}]")
    for machine, prices in (spec.get("prices") or {}).items():
        for field, price in prices.items():
            yield from amounts.amount_faults(price, f"spec.prices[{machine}].{field}")
    for machine, described in (spec.get("catalog") or {}).items():
        if not machine or names.label_value(machine):
            message = "a machine type is a label of its nodes: at most 63 letters, digits, '-', '_' and '.'"
            yield faults.invalid("spec.catalog", machine, message, "use a name such as x1-huge-8")
        yield from _machine_faults(described, f"spec.catalog[{machine}]")


def _machine_faults(described: Spec, path: str) -> Iterator[FieldError]:
    """Amounts and prices of a machine are not negative, and sustained cpu is at most its cpu."""
    for field in _AMOUNTS:
        if field in described:
            yield from amounts.amount_faults(described[field], f"{path}.{field}")
    for field in ("cpu", "memory"):
        if amounts.nano(described[field]) == 0:
            yield faults.invalid(f"{path}.{field}", described[field], "must be greater than 0", "say what it has")
    sustained = described.get("sustainedCpu")
    if sustained is not None and amounts.exceeds(sustained, described["cpu"]):
        message = f"must be no more than its cpu, {amounts.shown(described['cpu'])}"
        yield faults.invalid(
            f"{path}.sustainedCpu", sustained, message, "give what it has all the time, or leave it out"
        )
    yield from _device_faults(described, path)


def _device_faults(described: Spec, path: str) -> Iterator[FieldError]:
    """The accelerator is an extended resource, and the topology has as many chips as the machine."""
    accelerator, topology = described.get("accelerator") or {}, described.get("topology")
    resource = accelerator.get("resource")
    if resource and not is_extended(resource):
        message = "must be a resource that is not Kubernetes' own, with a domain before a slash"
        yield faults.invalid(f"{path}.accelerator.resource", resource, message, "use a name such as example.com/gpu")
    if topology and not accelerator:
        message = "may not be set without accelerator: it is the arrangement of its chips"
        yield faults.forbidden(f"{path}.topology", message, "drop it, or give the accelerator")
    elif topology:
        yield from topology_faults(topology, f"{path}.topology", accelerator["count"])


def _autoscaling_faults(autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """Autoscaler settings are in range, and the priority expander has priorities."""
    threshold = autoscaling.get("utilizationThreshold", 0)
    if amounts.exceeds(threshold, 1) or amounts.exceeds(0, threshold):
        message = "must be between 0 and 1"
        yield faults.invalid(f"{path}.utilizationThreshold", threshold, message, "give a share, such as 0.5")
    for field, usual in (("scanInterval", "10s"), ("maxNodeProvisionTime", "15m")):
        duration = autoscaling.get(field, usual)
        if parse_duration(duration) <= 0:
            yield faults.invalid(f"{path}.{field}", duration, "must be greater than 0", f"use {usual}")
    yield from _priorities_faults(autoscaling, f"{path}.priorities")
    limits = (autoscaling.get("autoProvisioning") or {}).get("limits")
    if limits is not None:
        yield from _limits_faults(limits, f"{path}.autoProvisioning.limits")


def _priorities_faults(autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """Priorities are regular expressions, and only the priority expander uses them."""
    priorities, expander = autoscaling.get("priorities"), autoscaling.get("expander", "least-waste")
    if expander == "priority" and not priorities:
        remedy = "list pools, most wanted first, or use another expander"
        yield faults.required(path, "the expander priority goes by it", remedy)
    elif priorities and expander != "priority":
        message = f"the expander {expander} does not go by it"
        yield faults.forbidden(path, message, "drop it, or set expander to priority")
    for i, pattern in enumerate(priorities or ()):
        if wrong := pattern_fault(pattern):
            message = f"must be a regular expression ({wrong})"
            yield faults.invalid(
                f"{path}[{i}]", pattern, message, "use the name of a pool, or a pattern such as spot-.*"
            )


def _limits_faults(limits: Sequence[Spec], path: str) -> Iterator[FieldError]:
    """Automatic provisioning has limits, of cpu and memory at least."""
    for i, limit in enumerate(limits):
        if limit.get("min", 0) > limit["max"]:
            message = f"must be at most max, which is {limit['max']}"
            yield faults.invalid(f"{path}[{i}].min", limit["min"], message, "lower min, or raise max")
    given = {limit["resource"] for limit in limits}
    for resource in _LIMITED:
        if resource not in given:
            remedy = f"add {{resource: {resource}, max: 1000}}{' (memory in GB)' if resource == 'memory' else ''}"
            yield faults.required(path, f"a limit of {resource} must be given", remedy)


def _times_faults(times: Spec, path: str) -> Iterator[FieldError]:
    """The typical duration of a step is between the shortest and the longest."""
    for field in _STEPS:
        if spread := times.get(field):
            lowest, typical, highest = (parse_duration(spread[bound]) for bound in ("min", "typical", "max"))
            if not lowest <= typical <= highest:
                message = "must be in order: min, typical, max"
                yield faults.invalid(f"{path}.{field}", spread, message, "give times such as 30s, 60s, 120s")


def cluster_faults(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Cluster."""
    spec = cluster.get("spec") or {}
    yield from metadata.metadata_faults(cluster)
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
        yield faults.immutable("spec.region", region)


def _zone_faults(spec: Spec) -> Iterator[FieldError]:
    """The zones of a cluster belong to its region."""
    region = spec["region"]
    for i, zone in enumerate(spec["zones"]):
        if zone != region and not zone.startswith(f"{region}-"):
            message = f"must be a zone of region {region}"
            remedy = f"use a zone such as {region}-a, or change spec.region"
            yield faults.invalid(f"spec.zones[{i}]", zone, message, remedy)


def _image_faults(row: Spec, path: str) -> Iterator[FieldError]:
    """An image row names exactly one source, and its paths are absolute."""
    sources = [field for field in ("environment", "root", "machine", "engine") if row.get(field)]
    if len(sources) != 1:
        message = "must say one of environment, root, machine and engine"
        yield faults.invalid(
            path, row, message, "name a virtualenv, a root folder, or say machine: true, or engine: podman or docker"
        )
    for field in ("image",) if row.get("engine") is None else ("workingDir",):
        if row.get(field):
            yield faults.invalid(
                f"{path}.{field}", row[field], "does not go with what the row says", f"leave out {field}"
            )
    for field in ("environment", "root", "workingDir"):
        if row.get(field) and not row[field].startswith("/"):
            yield faults.invalid(f"{path}.{field}", row[field], "must be an absolute path", "begin it with /")


def _known_zone_faults(zone: str, spec: Spec, path: str) -> Iterator[FieldError]:
    """A zone is one of the cluster's."""
    if zone not in spec["zones"]:
        remedy = f"use one of {', '.join(spec['zones'])}, or add it to spec.zones"
        yield faults.unsupported(path, zone, spec["zones"], remedy)


def _reservation_faults(reservation: Spec, spec: Spec, path: str) -> Iterator[FieldError]:
    """A reservation is in a zone of the cluster, and ends after it starts."""
    yield from _known_zone_faults(reservation["zone"], spec, f"{path}.zone")
    wrong = False
    for field in ("start", "end"):
        text = reservation.get(field)
        if text is not None and not _is_moment(text):
            wrong = True
            remedy = "write a time such as 2026-12-01T20:00:00Z, or a duration from the start such as 90m"
            yield faults.invalid(f"{path}.{field}", text, "must be a time or a duration", remedy)
    if wrong:
        return
    start, end, duration = reservation.get("start", "0s"), reservation.get("end"), reservation.get("duration")
    if end is not None and duration is not None:
        yield faults.forbidden(f"{path}.duration", "may not be set with end", "drop one of both")
    elif end is not None and is_time(end) != is_time(start):
        yield faults.invalid(f"{path}.end", end, f"must be written as start is, which is {start}", "give two times")
    elif end is not None and moment(end, 0) <= moment(start, 0):
        yield faults.invalid(f"{path}.end", end, f"must be after start, which is {start}", "give a later end")
    elif duration is not None and parse_duration(duration) == 0:
        yield faults.invalid(f"{path}.duration", duration, "must be greater than 0", "say how long it lasts")


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
                yield faults.invalid(f"spec.reservations[{i}].count", rows[i]["count"], message, remedy)


def _pool_faults(pool: Spec, spec: Spec, path: str) -> Iterator[FieldError]:
    """A pool follows the rules of pools; its zones and its reservation exist in the cluster."""
    for message in names.gke_name(pool["name"]):
        yield faults.invalid(f"{path}.name", pool["name"], message, metadata.name_remedy(pool["name"], names.gke_name))
    yield from node_pool.pool_faults(pool, path)
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
        yield faults.not_found(f"{path}.reservation", name, f"{choice} it to spec.reservations")
        return
    if pool["machineType"] != found["machineType"]:
        message = f"must be that of reservation {name}, which is {found['machineType']}"
        remedy = f"use {found['machineType']}, or another reservation"
        yield faults.invalid(f"{path}.machineType", pool["machineType"], message, remedy)
    zones = pool.get("zones") or [found["zone"]]
    if zones != [found["zone"]]:
        message = f"must be that of reservation {name}, which is {found['zone']}"
        yield faults.invalid(f"{path}.zones", zones, message, f"set it to [{found['zone']}], or leave it out")


def _sharing_faults(pools: Sequence[Spec]) -> Iterator[FieldError]:
    """A placement group belongs to one pool."""
    seen: dict[str, str] = {}
    for i, pool in enumerate(pools):
        group = pool.get("placementGroup")
        if group in seen:
            remedy = f"give it a group of its own: pool {seen[group]} has this one"
            yield faults.duplicate(f"spec.nodePools[{i}].placementGroup", group, remedy)
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
                yield faults.invalid(f"spec.nodePools[{i}].nodeCount", pool["nodeCount"], message, remedy)
