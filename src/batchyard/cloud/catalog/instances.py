"""Instance objects: one machine each. Whoever wants a machine creates one of these, whoever gives it up deletes it."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, with_status
from batchyard.api.times import format_time, parse_time, window_of
from batchyard.base.ids import uid_for
from batchyard.base.instant import SECOND, Instant

# The phases: asked for (no phase), then Provisioning, Booting, Running; Failed never came, Crashed is lost until it is
# replaced, Stopping was told when it will be switched off.
PROVISIONING: Final = "Provisioning"
BOOTING: Final = "Booting"
RUNNING: Final = "Running"
STOPPING: Final = "Stopping"
CRASHED: Final = "Crashed"
FAILED: Final = "Failed"

#: How long before it is switched off a machine is told.
NOTICE: Final = 30 * SECOND

#: How long machines run at the longest that the cloud gives out for a time only, if nobody says.
_LONGEST_RUNS: Final = {"flex-start": "168h", "queued": "168h"}
_NAMES_MAX: Final = 32
_NAME_CUT: Final = 16


def new_instance(pool: Obj, zone: str, cluster: Obj, *, resize_request: Obj | None = None) -> dict[str, Any]:
    """An Instance of a pool in a zone, yet to be created; one of a ResizeRequest runs as long as that says."""
    spec, name = pool["spec"], pool["metadata"]["name"]
    provisioning = spec.get("provisioning", "standard")
    asked = resize_request["spec"] if resize_request is not None else spec
    own = {
        "pool": name,
        "zone": zone,
        "machineType": spec["machineType"],
        "provisioning": provisioning,
        "resizeRequest": resize_request["metadata"]["name"] if resize_request is not None else None,
        "maxRunDuration": asked.get("maxRunDuration") or spec.get("maxRunDuration") or _LONGEST_RUNS.get(provisioning),
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
        "spec": {field: value for field, value in own.items() if value is not None},
    }


def name_prefix(cluster: str, pool: str, zone: str) -> str:
    """What the names of a pool's machines in a zone begin with: `gke-<cluster>-<pool>-<8 hex digits>-`, as GKE's.

    Where both names together are long, each is cut.
    """
    digits = uid_for(0, cluster, pool, zone)[:8]
    if len(cluster) + len(pool) > _NAMES_MAX:
        cluster, pool = cluster[:_NAME_CUT], pool[:_NAME_CUT]
    return f"gke-{cluster}-{pool}-{digits}-"


def phase_of(instance: Obj) -> str:
    """Its phase; empty while it is only asked for."""
    return (instance.get("status") or {}).get("phase") or ""


def since(instance: Obj) -> Instant:
    """When its phase began; for one that is only asked for, when that was."""
    at: str = (instance.get("status") or {}).get("since") or instance["metadata"]["creationTimestamp"]
    return parse_time(at)


def stops_at(instance: Obj) -> Instant | None:
    """When it will be switched off, if that is known."""
    at = (instance.get("status") or {}).get("stopAt")
    return None if at is None else parse_time(at)


def is_leaving(instance: Obj) -> bool:
    """Whether it has been given up."""
    return "deletionTimestamp" in instance["metadata"]


def is_off(instance: Obj) -> bool:
    """Whether it was switched off, and is about to go."""
    return "stoppedAt" in (instance.get("status") or {})


def in_phase(instance: Obj, phase: str, now: Instant, **fields: Any) -> dict[str, Any]:
    """The Instance in a phase from now on; what the status said of an error is over, `fields` are added."""
    status: Mapping[str, Any] = {**(instance.get("status") or {}), "phase": phase, "since": format_time(now), **fields}
    kept = {field: value for field, value in status.items() if field in fields or field != "error"}
    return with_status(instance, kept)


# --- reservations ---
#
# Reservations: machines that are kept for who names them, for good or for a time that was booked (calendar mode).


def start_of(cluster: Obj) -> Instant:
    """When the world began, from which reservations count."""
    return parse_time(cluster["metadata"]["creationTimestamp"])


def find_reservation(cluster: Obj, name: str) -> Mapping[str, Any] | None:
    """A reservation by name, as the Cluster has it."""
    reservations = cluster["spec"].get("reservations") or ()
    return next((reservation for reservation in reservations if reservation["name"] == name), None)


def begins_at(cluster: Obj, reservation: Mapping[str, Any]) -> Instant:
    """Return from when on its machines can be used."""
    return window_of(reservation, start_of(cluster)).start


def ends_at(cluster: Obj, reservation: Mapping[str, Any]) -> Instant | None:
    """Return when its machines are taken back; None: never."""
    return window_of(reservation, start_of(cluster)).end
