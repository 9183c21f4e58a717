"""Reservations: machines that are kept for who names them, for good or for a time that was booked (calendar mode)."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, parse_duration


def start_of(cluster: Obj) -> Instant:
    """When the world began, from which reservations count."""
    return parse_time(cluster["metadata"]["creationTimestamp"])


def find_reservation(cluster: Obj, name: str) -> Mapping[str, Any] | None:
    """A reservation by name, as the Cluster has it."""
    reservations = cluster["spec"].get("reservations") or ()
    return next((reservation for reservation in reservations if reservation["name"] == name), None)


def begins_at(cluster: Obj, reservation: Mapping[str, Any]) -> Instant:
    """From when on its machines can be had."""
    return start_of(cluster) + parse_duration(reservation.get("start") or "0s")


def ends_at(cluster: Obj, reservation: Mapping[str, Any]) -> Instant | None:
    """When its machines are taken back; None: never."""
    end = reservation.get("end")
    return None if end is None else start_of(cluster) + parse_duration(end)
