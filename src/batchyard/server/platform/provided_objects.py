"""Objects that the platform provides: definitions of its own kinds, APIServices, and Kueue's roles.

They are stored like others, so that clients list, watch and wait for them. A client takes one over by creating or
applying an object of that name; what the platform serves does not change. One that is deleted is made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from batchyard.api import well_known
from batchyard.api.custom_kinds import DEFINITION, FINALIZER
from batchyard.api.meta import Key, Obj, annotation, key_of, with_finalizer, with_metadata, with_status
from batchyard.api.scheme import FILES, KINDS, ServedKind
from batchyard.apiserver.api_services import API_SERVICE, provided_services, with_availability
from batchyard.apiserver.openapi.definitions import provided_definition
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import SECOND, Instant
from batchyard.housekeeping.custom_resources import status_of
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

#: Definitions that were stored before are compared with those of this release once the start is over.
_REFRESH_AFTER: Final = 5 * SECOND
_KUEUE_ROLES: Final = "kueue-"
_NATIVE: Final = ".k8s.io"


class Client(Reader, Protocol):
    """Reads and writes objects."""

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Do writes in order."""


class ProvidedObjects:
    """Keeps the objects that the platform provides."""

    def __init__(self, client: Client, kernel: Kernel, served: Callable[[], Sequence[Resource]]) -> None:
        self._client, self._kernel, self._served = client, kernel, served
        self._kinds = {f"{info.plural}.{info.group}": info for info in _defined_kinds()}
        self._is_due = False

    def begin(self) -> None:
        """Create what is missing; later, bring what an earlier release provided up to date."""
        self._synchronize_soon()
        for place, name in enumerate(self._kinds):
            if self._client.get(Key(DEFINITION, "", name)) is None:
                self._soon(partial(self._define, name))
            else:  # one at a time, so that requests are answered in between
                self._kernel.call_at(self._kernel.now() + _REFRESH_AFTER + place * SECOND, partial(self._refresh, name))

    def observe(self, event: WatchEvent) -> None:
        """Take note of a change."""
        if event.key.kind == DEFINITION:
            self._synchronize_soon()
            if event.type is EventType.DELETED and event.key.name in self._kinds:
                self._soon(partial(self._define, event.key.name))
        elif event.key.kind == API_SERVICE and not _is_update(event):
            self._synchronize_soon()

    def _define(self, name: str) -> None:
        """Store the definition of a kind, established, unless there is one."""
        if self._client.get(Key(DEFINITION, "", name)) is not None:
            return
        wanted = with_finalizer(provided_definition(self._kinds[name]), FINALIZER)
        self._write(Create(with_status(wanted, status_of(wanted, self._client, self._kernel.now()))))

    def _refresh(self, name: str) -> None:
        """Give a stored definition, which an earlier release may have provided, the schema of this one."""
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
        """Make the APIServices those of what is served."""
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
    """A bootstrap role; one of Kueue's can be taken over, since Kueue's manifests bring it along."""
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
        elif (told := with_availability(service, wanted, now)) is not service:
            yield UpdateStatus(told)


def _defined_kinds() -> Iterator[ServedKind]:
    """The kinds that are no files, and not of Kubernetes itself."""
    for info in KINDS:
        if "." in info.group and not info.group.endswith(_NATIVE) and info.constant not in FILES:
            yield info


def _is_update(event: WatchEvent) -> bool:
    return event.type is EventType.MODIFIED


def _ignore(_result: WriteResult) -> None:
    """Another write came first: the next change brings the object up to date."""
