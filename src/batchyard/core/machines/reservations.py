"""Reservations: machines that are kept for who names them, for good or for a time that was booked (calendar mode)."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.api.windows import window_of
from batchyard.base.instant import Instant


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
