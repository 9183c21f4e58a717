"""Rules of Clusters: all that one part of the description of a cluster may say against another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.times import parse_time
from batchyard.api.validation import cluster_settings, faults, metadata, names, node_pool
from batchyard.api.windows import Window, is_time, moment, window_of
from batchyard.base.instant import parse_duration

Spec = Mapping[str, Any]


def cluster_faults(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Cluster."""
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
    yield from cluster_settings.settings_faults(spec)


def cluster_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Cluster: it stays where it is."""
    yield from cluster_faults(new)
    region, before = ((obj.get("spec") or {}).get("region") for obj in (new, old))
    if region != before:
        yield faults.immutable("spec.region", region)


def _zone_faults(spec: Spec) -> Iterator[FieldError]:
    """The zones of a cluster are of its region."""
    region = spec["region"]
    for i, zone in enumerate(spec["zones"]):
        if zone != region and not zone.startswith(f"{region}-"):
            message = f"must be a zone of region {region}"
            remedy = f"use a zone such as {region}-a, or change spec.region"
            yield faults.invalid(f"spec.zones[{i}]", zone, message, remedy)


def _image_faults(row: Spec, path: str) -> Iterator[FieldError]:
    """One thing stands for an image, at a path that means the same wherever it is looked at from."""
    said = [field for field in ("environment", "root", "machine", "engine") if row.get(field)]
    if len(said) != 1:
        told = "must say one of environment, root, machine and engine"
        yield faults.invalid(
            path, row, told, "name a virtualenv, a root folder, or say machine: true, or engine: podman or docker"
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
    """A zone that is named is one of the cluster."""
    if zone not in spec["zones"]:
        remedy = f"use one of {', '.join(spec['zones'])}, or add it to spec.zones"
        yield faults.unsupported(path, zone, spec["zones"], remedy)


def _reservation_faults(reservation: Spec, spec: Spec, path: str) -> Iterator[FieldError]:
    """A reservation lies in a zone of the cluster, and ends after it starts."""
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
    """At no instant do reservations hold more machines of a type in a zone than can be booked.

    Sums are greatest where a window begins. A Cluster that is not stored yet begins with the first of its windows.
    """
    made = cluster["metadata"].get("creationTimestamp")
    began = parse_time(made) if made else 0
    rows = cluster["spec"].get("reservations") or ()
    windows = [window_of(row, began) for row in rows]
    for bound in cluster["spec"].get("bookable") or ():
        kind = bound["machineType"], bound["zone"]
        like = [i for i, row in enumerate(rows) if (row["machineType"], row["zone"]) == kind]
        for i in like:
            start = Window(windows[i].start, windows[i].start + 1)
            others = [n for n in like if n != i and windows[n].overlaps(start)]
            booked = sum(rows[n]["count"] for n in (i, *others))
            if booked > bound["count"]:
                names = ", ".join(rows[n]["name"] for n in others) or "no other reservation"
                told = f"{bound['count']} machines of {kind[0]} can be booked in {kind[1]}, not {booked}"
                remedy = f"lower count, or choose another window: {names} holds machines when it starts"
                yield faults.invalid(f"spec.reservations[{i}].count", rows[i]["count"], told, remedy)


def _pool_faults(pool: Spec, spec: Spec, path: str) -> Iterator[FieldError]:
    """A pool keeps the rules of pools, in zones of the cluster, with a reservation that is there."""
    for message in names.gke_name(pool["name"]):
        yield faults.invalid(f"{path}.name", pool["name"], message, metadata.name_remedy(pool["name"], names.gke_name))
    yield from node_pool.pool_faults(pool, path)
    for i, zone in enumerate(pool.get("zones") or ()):
        yield from _known_zone_faults(zone, spec, f"{path}.zones[{i}]")
    if name := pool.get("reservation"):
        yield from _use_faults(pool, name, spec, path)


def _use_faults(pool: Spec, name: str, spec: Spec, path: str) -> Iterator[FieldError]:
    """A pool that uses a reservation has its machines, where it has them."""
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
    """A placement group is that of one pool."""
    seen: dict[str, str] = {}
    for i, pool in enumerate(pools):
        group = pool.get("placementGroup")
        if group in seen:
            remedy = f"give it a group of its own: pool {seen[group]} has this one"
            yield faults.duplicate(f"spec.nodePools[{i}].placementGroup", group, remedy)
        elif group:
            seen[group] = pool["name"]


def _reserved_count_faults(spec: Spec) -> Iterator[FieldError]:
    """Pools of fixed size do not want more machines than their reservation has."""
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
