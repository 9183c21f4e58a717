"""Objects that the platform provides: definitions of its own kinds, APIServices, and Kueue's roles.

They are stored like other objects, so that clients can list and watch them. A client takes over an object by creating
or applying one of that name. That does not change what the platform serves. A deleted object is created again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from batchyard.api import well_known
from batchyard.api.custom_kinds import DEFINITION, FINALIZER
from batchyard.api.meta import Key, Obj, annotation, key_of, with_finalizer, with_metadata, with_status
from batchyard.api.scheme import FILES, KINDS, ServedKind
from batchyard.apiserver.api_services import API_SERVICE, provided_services, with_availability
from batchyard.apiserver.openapi import provided_definition
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import SECOND, Instant
from batchyard.housekeeping.controllers import status_of
from batchyard.interfaces.client import (
    Create,
    Delete,
    EventType,
    Reader,
    Update,
    UpdateStatus,
    WatchEvent,
    Write,
    WriteResult,
)
from batchyard.interfaces.controller import Kernel

#: Stored definitions are compared with those of this release after the start.
_REFRESH_AFTER: Final = 5 * SECOND
_KUEUE_ROLES: Final = "kueue-"
_NATIVE: Final = ".k8s.io"


class ProvidedObjectsClient(Reader, Protocol):
    """Reads and writes objects."""

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Submit writes, in order."""


class ProvidedObjects:
    """Creates and updates the objects that the platform provides."""

    def __init__(self, client: ProvidedObjectsClient, kernel: Kernel, served: Callable[[], Sequence[Resource]]) -> None:
        self._client, self._kernel, self._served = client, kernel, served
        self._kinds = {f"{info.plural}.{info.group}": info for info in _defined_kinds()}
        self._is_due = False

    def begin(self) -> None:
        """Create missing objects now, and later update those that an earlier release provided."""
        self._synchronize_soon()
        for place, name in enumerate(self._kinds):
            if self._client.get(Key(DEFINITION, "", name)) is None:
                self._soon(partial(self._define, name))
            else:  # staggered, so that requests are served in between
                self._kernel.call_at(self._kernel.now() + _REFRESH_AFTER + place * SECOND, partial(self._refresh, name))

    def observe(self, event: WatchEvent) -> None:
        """Recreate or update provided objects after a change of a definition or an APIService."""
        if event.key.kind == DEFINITION:
            self._synchronize_soon()
            if event.type is EventType.DELETED and event.key.name in self._kinds:
                self._soon(partial(self._define, event.key.name))
        elif event.key.kind == API_SERVICE and not _is_update(event):
            self._synchronize_soon()

    def _define(self, name: str) -> None:
        """Store the definition of a kind as established, unless one exists."""
        if self._client.get(Key(DEFINITION, "", name)) is not None:
            return
        wanted = with_finalizer(provided_definition(self._kinds[name]), FINALIZER)
        self._write(Create(with_status(wanted, status_of(wanted, self._client, self._kernel.now()))))

    def _refresh(self, name: str) -> None:
        """Update the schema of a stored definition that an earlier release provided."""
        stored = self._client.get(Key(DEFINITION, "", name))
        if stored is None or annotation(stored, well_known.PROVIDED) is None:
            return
        spec = provided_definition(self._kinds[name])["spec"]
        if any(stored["spec"].get(field) != value for field, value in spec.items()):
            self._write(Update({**stored, "spec": {**stored["spec"], **spec}}))

    def _synchronize_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._soon(self._synchronize)

    def _synchronize(self) -> None:
        """Create, delete and update APIServices to match the served resources."""
        self._is_due = False
        now = self._kernel.now()
        wanted = {service["metadata"]["name"]: service for service in provided_services(self._served(), now)}
        stored = {key_of(service).name: service for service in self._client.list(API_SERVICE)}
        for write in _differences(wanted, stored, now):
            self._write(write)

    def _soon(self, work: Callable[[], None]) -> None:
        self._kernel.call_at(self._kernel.now(), work)

    def _write(self, write: Write) -> None:
        self._client.submit([write], _ignore)


def provided_role(role: Obj) -> Obj:
    """Return a bootstrap role. Kueue's roles are marked as provided, since Kueue's manifests may take them over."""
    if not role["metadata"]["name"].startswith(_KUEUE_ROLES):
        return role
    return with_metadata(role, annotations={**(role["metadata"].get("annotations") or {}), well_known.PROVIDED: "true"})


def _differences(wanted: Mapping[str, Obj], stored: Mapping[str, Obj], now: Instant) -> Iterator[Write]:
    for name, service in wanted.items():
        if name not in stored:
            yield Create(service)
    for name, service in stored.items():
        if name not in wanted and annotation(service, well_known.PROVIDED) is not None:
            yield Delete(key_of(service))
        elif (updated := with_availability(service, wanted, now)) is not service:
            yield UpdateStatus(updated)


def _defined_kinds() -> Iterator[ServedKind]:
    """Yield the kinds that are served as custom resources: no file formats, and none of Kubernetes itself."""
    for info in KINDS:
        if "." in info.group and not info.group.endswith(_NATIVE) and info.constant not in FILES:
            yield info


def _is_update(event: WatchEvent) -> bool:
    return event.type is EventType.MODIFIED


def _ignore(_result: WriteResult) -> None:
    """Ignore a conflict with another write: the next change triggers another update."""
