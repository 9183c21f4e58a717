"""Objects that the platform provides, and the Cluster of `batchyard up --cluster`."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from batchyard.admission_plugins.built_in import SYSTEM_NAMESPACES, new_namespace
from batchyard.admission_plugins.service_accounts import default_service_account
from batchyard.api import well_known
from batchyard.api.custom_kinds import DEFINITION, FINALIZER
from batchyard.api.meta import Key, Obj, annotation, key_of, with_finalizer, with_metadata, with_status
from batchyard.api.scheme import FILE_KINDS, KINDS, WORKLOAD, ServedKind
from batchyard.api.validation.cluster import cluster_update_errors
from batchyard.api.validation.flow_control import provided_flow_objects
from batchyard.apiserver.api_services import API_SERVICE, provided_api_services, with_available_condition
from batchyard.apiserver.auth.authorization import bootstrap_roles
from batchyard.apiserver.openapi_definitions import platform_definition
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import SECOND, Instant
from batchyard.client.local import LocalClient
from batchyard.cloud.cluster_objects import initial_objects
from batchyard.housekeeping.controllers import definition_status
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
from batchyard.server.platform.data_dir import PlatformOptions
from batchyard.volumes.admission import default_storage_class

# Objects that the platform provides: definitions of its own kinds, APIServices, and Kueue's roles.
#
# They are stored like other objects, so that clients can list and watch them. A client can take over such an object by
# creating or applying an object of the same name, which does not change the served kinds. Deleted objects are created
# again.


#: The delay after the start before stored definitions are compared with those of this release.
_REFRESH_DELAY: Final = 5 * SECOND
_KUEUE_ROLE_PREFIX: Final = "kueue-"
_NATIVE_GROUP_SUFFIX: Final = ".k8s.io"


class ProvidedObjectsClient(Reader, Protocol):
    """A client that reads API objects and submits writes, as ProvidedObjects requires."""

    def submit(self, writes: Sequence[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Apply writes in order until one is rejected; `on_result` later gets the result of the last write tried."""


class ProvidedObjects:
    """Keeps the platform's own CustomResourceDefinitions and APIServices up to date."""

    def __init__(
        self,
        client: ProvidedObjectsClient,
        kernel: Kernel,
        resources: Callable[[], Sequence[Resource]],
        custom_groups: Collection[str] = (),
        job_controllers: Collection[str] = (),
    ) -> None:
        """Do not provide the definitions of the API groups `custom_groups`.

        The missing definitions of the kinds that `job_controllers`, such as `kubeflow`, run are created once.
        """
        self._client, self._kernel, self._served_resources = client, kernel, resources
        self._kinds = {f"{info.plural}.{info.group}": info for info in _defined_kinds(custom_groups)}
        self._job_controllers = job_controllers
        self._is_synchronization_scheduled = False

    def begin(self) -> None:
        """Schedule the creation or update of the CustomResourceDefinitions, and the update of the APIServices."""
        self._synchronize_soon()
        for index, name in enumerate(self._kinds):
            if self._client.get(Key(DEFINITION, "", name)) is None:
                self._schedule_now(partial(self._create_crd, name))
            else:  # staggered, so that requests are served in between
                self._kernel.call_at(
                    self._kernel.now() + _REFRESH_DELAY + index * SECOND, partial(self._update_crd, name)
                )
        if self._job_controllers:
            from batchyard.jobs.stand_ins.definitions import job_definitions  # noqa: PLC0415 - rarely needed

            for definition in job_definitions(self._job_controllers):
                self._schedule_now(partial(self._create_definition, definition))

    def observe(self, event: WatchEvent) -> None:
        """Schedule an update of the APIServices; create a deleted CustomResourceDefinition of the platform again.

        Changes of other kinds and updates of APIServices are ignored.
        """
        if event.key.kind == DEFINITION:
            self._synchronize_soon()
            if event.type is EventType.DELETED and event.key.name in self._kinds:
                self._schedule_now(partial(self._create_crd, event.key.name))
        elif event.key.kind == API_SERVICE and not _is_update(event):
            self._synchronize_soon()

    def _create_crd(self, name: str) -> None:
        self._create_definition(platform_definition(self._kinds[name]))

    def _create_definition(self, definition: Obj) -> None:
        if self._client.get(key_of(definition)) is not None:
            return
        definition = with_finalizer(definition, FINALIZER)
        self._write(Create(with_status(definition, definition_status(definition, self._client, self._kernel.now()))))

    def _update_crd(self, name: str) -> None:
        stored_definition = self._client.get(Key(DEFINITION, "", name))
        if stored_definition is None or annotation(stored_definition, well_known.PROVIDED) is None:
            return
        spec = platform_definition(self._kinds[name])["spec"]
        if any(stored_definition["spec"].get(field) != value for field, value in spec.items()):
            self._write(Update({**stored_definition, "spec": {**stored_definition["spec"], **spec}}))

    def _synchronize_soon(self) -> None:
        if not self._is_synchronization_scheduled:
            self._is_synchronization_scheduled = True
            self._schedule_now(self._synchronize_api_services)

    def _synchronize_api_services(self) -> None:
        self._is_synchronization_scheduled = False
        now = self._kernel.now()
        services = {
            service["metadata"]["name"]: service for service in provided_api_services(self._served_resources(), now)
        }
        stored_services = {key_of(service).name: service for service in self._client.list(API_SERVICE)}
        for write in _service_writes(services, stored_services, now):
            self._write(write)

    def _schedule_now(self, work: Callable[[], None]) -> None:
        self._kernel.call_at(self._kernel.now(), work)

    def _write(self, write: Write) -> None:
        self._client.submit([write], _ignore_result)


def provided_role(role: Obj) -> Obj:
    """Return a bootstrap role as the platform stores it: Kueue's roles get an annotation.

    The annotation lets Kueue's manifests take the role over.
    """
    if not _is_kueue_role(role):
        return role
    return with_metadata(role, annotations={**(role["metadata"].get("annotations") or {}), well_known.PROVIDED: "true"})


def _is_kueue_role(role: Obj) -> bool:
    return bool(role["metadata"]["name"].startswith(_KUEUE_ROLE_PREFIX))


def _service_writes(services: Mapping[str, Obj], stored_services: Mapping[str, Obj], now: Instant) -> Iterator[Write]:
    for name, service in services.items():
        if name not in stored_services:
            yield Create(service)
    for name, service in stored_services.items():
        if name not in services and annotation(service, well_known.PROVIDED) is not None:
            yield Delete(key_of(service))
        elif (updated := with_available_condition(service, services, now)) is not service:
            yield UpdateStatus(updated)


def _defined_kinds(custom_groups: Collection[str]) -> Iterator[ServedKind]:
    for info in KINDS:
        if info.group in custom_groups:
            continue
        if "." in info.group and not info.group.endswith(_NATIVE_GROUP_SUFFIX) and info.constant not in FILE_KINDS:
            yield info


def _is_update(event: WatchEvent) -> bool:
    return event.type is EventType.MODIFIED


def _ignore_result(_result: WriteResult) -> None:
    """Ignore the result of a write: after a conflict, the next change triggers another update."""


def required_objects(custom_groups: Collection[str] = ()) -> list[Obj]:
    """Return the objects that the platform creates at its start if they do not exist.

    If the API groups `custom_groups` contain that of Kueue, Kueue's roles are omitted, since its manifests create them.
    """
    omits_kueue = WORKLOAD.partition(".")[2] in custom_groups
    roles = [role for role in bootstrap_roles() if not (omits_kueue and _is_kueue_role(role))]
    # Default ServiceAccounts too: their controller runs late at startup, and pods without one are rejected.
    objects = [*map(new_namespace, SYSTEM_NAMESPACES), *map(default_service_account, SYSTEM_NAMESPACES)]
    return [*objects, *map(provided_role, roles), default_storage_class(), *provided_flow_objects()]


# The Cluster of `batchyard up --cluster`, for a data directory that may already have a Cluster.


class ClusterConflictError(Exception):
    """The stored Cluster cannot be updated to that of `--cluster`. The message contains the reason and the remedy."""


def check_cluster_option(cluster: Obj | None, stored_clusters: Sequence[Obj], options: PlatformOptions) -> None:
    """Raise ClusterConflictError if the stored Cluster has another name than `cluster`, or cannot be updated to it."""
    if cluster is None or not stored_clusters:
        return
    stored_cluster, name = stored_clusters[0], cluster["metadata"]["name"]
    stored_name = stored_cluster["metadata"]["name"]
    problem = (
        f"{options.folder}: the platform has Cluster {stored_name}, which cannot become Cluster {name} (--cluster)"
    )
    if name != stored_name:
        remedy = f"rename Cluster {name} to {stored_name}, or set another folder with --data-dir"
        raise ClusterConflictError(f"{problem}: metadata.name differs; {remedy}")
    errors = list(cluster_update_errors(with_spec_of(stored_cluster, cluster), stored_cluster))
    if errors:
        remedy = "keep the stored value, or set another folder with --data-dir"
        raise ClusterConflictError("\n".join(f"{problem}: {error}; {remedy}" for error in errors))


def with_spec_of(stored_cluster: Obj, cluster: Obj) -> Obj:
    """Return the stored Cluster with the spec of `cluster`."""
    return {**stored_cluster, "spec": cluster["spec"]}


def store_cluster(client: LocalClient, cluster: Obj) -> None:
    """Store the Cluster of `--cluster`: create it with the objects that it needs, or update its spec."""
    stored_cluster = client.get(key_of(cluster))
    if stored_cluster is None:
        create_missing(client, initial_objects(cluster))
    elif stored_cluster["spec"] != cluster["spec"]:
        client.submit_directly([Update(with_spec_of(stored_cluster, cluster))], check_success)


def create_missing(client: LocalClient, objects: Iterable[Obj]) -> None:
    """Create those objects that do not exist."""
    for obj in objects:
        if client.get(key_of(obj)) is None:
            client.submit_directly([Create(obj)], check_success)


def check_success(result: WriteResult) -> None:
    """Raise the error of a write that failed."""
    if result.error is not None:
        raise result.error
