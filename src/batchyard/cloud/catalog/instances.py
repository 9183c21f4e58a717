"""Functions on Instance objects (an Instance is one cloud machine), and on the machine reservations of a Cluster."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, with_status
from batchyard.api.times import format_time, parse_time, reservation_window
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import uid_for

# Phases: requested (empty), Provisioning, Booting, Running, Stopping (shutdown announced), Failed (no machine
# available), Crashed (the machine is lost until it is replaced).
PROVISIONING: Final = "Provisioning"
BOOTING: Final = "Booting"
RUNNING: Final = "Running"
STOPPING: Final = "Stopping"
CRASHED: Final = "Crashed"
FAILED: Final = "Failed"

#: Notice before a machine is switched off.
PREEMPTION_NOTICE: Final = 30 * SECOND

#: Default maximum run time by provisioning model.
_DEFAULT_MAX_RUN_DURATIONS: Final = {"flex-start": "168h", "queued": "168h"}
_CLUSTER_AND_POOL_LENGTH_MAX: Final = 32
_NAME_LENGTH_MAX: Final = 16


def new_instance(pool: Obj, zone: str, cluster: Obj, *, resize_request: Obj | None = None) -> dict[str, Any]:
    """Return a new Instance of a node pool in a zone.

    A maximum run time in `resize_request` takes precedence over that of the pool. Without either, it is a week for the
    provisioning models flex-start and queued.
    """
    spec, name = pool["spec"], pool["metadata"]["name"]
    provisioning = spec.get("provisioning", "standard")
    run_spec = resize_request["spec"] if resize_request is not None else spec
    spec_fields = {
        "pool": name,
        "zone": zone,
        "machineType": spec["machineType"],
        "provisioning": provisioning,
        "resizeRequest": resize_request["metadata"]["name"] if resize_request is not None else None,
        "maxRunDuration": run_spec.get("maxRunDuration")
        or spec.get("maxRunDuration")
        or _DEFAULT_MAX_RUN_DURATIONS.get(provisioning),
    }
    metadata: dict[str, Any] = {
        "generateName": name_prefix(cluster["metadata"]["name"], name, zone),
        "labels": {well_known.NODE_POOL: name},
        "finalizers": [well_known.INSTANCE_FINALIZER],
    }
    if resize_request is not None:
        metadata["annotations"] = {well_known.RESIZE_REQUEST_UID: resize_request["metadata"].get("uid", "")}
    return {
        "apiVersion": scheme.kind_info(scheme.INSTANCE).api_version,
        "kind": "Instance",
        "metadata": metadata,
        "spec": {field: value for field, value in spec_fields.items() if value is not None},
    }


def name_prefix(cluster: str, pool: str, zone: str) -> str:
    """Return the name prefix of a node pool's machines in a zone, as in GKE: `gke-<cluster>-<pool>-<8 hex digits>-`.

    If the cluster and pool names have more than 32 characters together, each is cut to 16 characters.
    """
    hash_digits = uid_for(0, cluster, pool, zone)[:8]
    if len(cluster) + len(pool) > _CLUSTER_AND_POOL_LENGTH_MAX:
        cluster, pool = cluster[:_NAME_LENGTH_MAX], pool[:_NAME_LENGTH_MAX]
    return f"gke-{cluster}-{pool}-{hash_digits}-"


def phase_of(instance: Obj) -> str:
    """Return the phase of an Instance; '' while its machine is only requested."""
    return (instance.get("status") or {}).get("phase") or ""


def phase_start(instance: Obj) -> Instant:
    """Return when the current phase of an Instance began; the creation time if no phase is set yet."""
    start_text: str = (instance.get("status") or {}).get("since") or instance["metadata"]["creationTimestamp"]
    return parse_time(start_text)


def stops_at(instance: Obj) -> Instant | None:
    """Return when the machine of an Instance will be stopped; None if no time is set."""
    stop_text = (instance.get("status") or {}).get("stopAt")
    return None if stop_text is None else parse_time(stop_text)


def is_being_deleted(instance: Obj) -> bool:
    """Return whether the Instance is being deleted."""
    return "deletionTimestamp" in instance["metadata"]


def is_stopped(instance: Obj) -> bool:
    """Return whether the machine of an Instance is stopped; the Instance is then about to be deleted."""
    return "stoppedAt" in (instance.get("status") or {})


def with_phase(instance: Obj, phase: str, now: Instant, **fields: Any) -> dict[str, Any]:
    """Return a copy of an Instance that enters a phase at `now`: with `fields` in its status, without an old error."""
    status: Mapping[str, Any] = {**(instance.get("status") or {}), "phase": phase, "since": format_time(now), **fields}
    fields_to_keep = {field: value for field, value in status.items() if field in fields or field != "error"}
    return with_status(instance, fields_to_keep)


# Reservations: machines that only the pools that name them may use, permanently or for a booked time (calendar mode).


def creation_time_of(cluster: Obj) -> Instant:
    """Return the creation time of the Cluster; reservation times are relative to it."""
    return parse_time(cluster["metadata"]["creationTimestamp"])


def find_reservation(cluster: Obj, name: str) -> Mapping[str, Any] | None:
    """Return the reservation of the Cluster with this name, or None."""
    reservations = cluster["spec"].get("reservations") or ()
    return next((reservation for reservation in reservations if reservation["name"] == name), None)


def reservation_start(cluster: Obj, reservation: Mapping[str, Any]) -> Instant:
    """Return the time from which the machines of a reservation can be used."""
    return reservation_window(reservation, creation_time_of(cluster)).start


def reservation_end(cluster: Obj, reservation: Mapping[str, Any]) -> Instant | None:
    """Return the time at which the machines of a reservation are reclaimed; None if never."""
    return reservation_window(reservation, creation_time_of(cluster)).end
