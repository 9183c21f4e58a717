"""The served resources with the kind-specific logic of each, their API paths, and API errors about objects.

Built-in kinds are served from the start. Kinds of CustomResourceDefinitions change at runtime, so caches compare
`edition` to detect changes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from batchyard.api.errors import ApiError, Conflict, FieldError, Forbidden, InvalidObject, NotFound
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.printing import Column
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.conversions import ConversionNeeded, ObjectConverter
from batchyard.apiserver.patch import UNSTRUCTURED, MergeSchema
from batchyard.apiserver.request import AnyResponse, ApiRequest, StatusError, UserInfo, causes_of
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, ObjectReader, Propagation, Write, WriteResult

_T = TypeVar("_T")
_VERBS_BY_METHOD: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class ResourceStrategy(Protocol):
    """The kind-specific logic of a resource: decoding, conversion, validation and table output."""

    def decode(self, sent_object: Mapping[str, Any], namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
        """Decode an object into its storage version with defaults, or return its errors.

        `valid_obj` is an object in the storage version that was decoded before. Parts that `sent_object` shares with it
        are valid, and are not decoded again.
        """

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return an updated object, with the fields that clients cannot change restored from the old one."""

    def render(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Return a stored object in a served version, with times in whole seconds, except MicroTime fields."""

    def in_version(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Convert a stored object to a served version, to compare it; its times are not cut to seconds."""

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new object. Raises StatusError if its creation is not allowed."""

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update."""

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of a status update."""

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns in a version, including those of `-o wide`."""

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a stored object as text, one for each of `columns`."""

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return the OpenAPI schemas of the kind in a version, including referenced ones, by name."""


WriteGuard: TypeAlias = Callable[[UserInfo, Obj, Obj | None], None]
"""Checks a write of a new or changed object for a user, beyond authorization; raises StatusError to deny it."""


class EndpointHandlers(NamedTuple):
    """The handler functions of a subresource (such as `eviction`) or of a resource without stored objects."""

    group: str
    version: str
    kind: str
    #: Handlers by HTTP method, called with the request, and the namespace and name of its path.
    by_method: Mapping[str, Callable[[ApiRequest, str, str], AnyResponse]]
    #: Whether the path may continue after the subresource.
    takes_subpath: bool = False
    #: A verb that is required in addition to that of the method.
    required_verb: str = ""

    @property
    def verbs(self) -> list[str]:
        """The Kubernetes verbs of the HTTP methods that have handlers."""
        return [_VERBS_BY_METHOD[method] for method in self.by_method]


def _untyped_merge_schema(_version: str) -> MergeSchema:
    return UNSTRUCTURED


def no_decoding_error(_sent_object: Mapping[str, Any]) -> str | None:
    """Return None: the kind has no Go decoding errors."""
    return None


class Resource(NamedTuple):
    """A served resource: its kind, kind-specific logic, subresources and behavior."""

    served_kind: ServedKind
    strategy: ResourceStrategy
    #: Stored subresources, such as `status`.
    subresources: tuple[str, ...] = ()
    #: Subresources answered by functions; '' for a virtual resource without objects.
    handlers: Mapping[str, EndpointHandlers] = {}
    guard: WriteGuard | None = None
    #: The merge schema of the objects in a version.
    merge_schema: Callable[[str], MergeSchema] = _untyped_merge_schema
    #: Whether the kind is native to Kubernetes: it accepts strategic merge patches, and updates without
    #: resourceVersion.
    is_native: bool = False
    #: Returns Go's decoding error of a value with a wrong type; None if all values fit.
    find_decoding_error: Callable[[Mapping[str, Any]], str | None] = no_decoding_error
    #: Whether the strategy drops unknown fields silently, so that they must be detected before decoding.
    prunes_unknown: bool = False
    #: Whether a new object keeps the sent status.
    keeps_sent_status: bool = False
    #: Whether a delete returns the object instead of a Status.
    returns_deleted_object: bool = False
    #: Whether a client can take over a provided object by creating or applying one of the same name.
    is_adoptable: bool = False
    #: Whether deletecollection is supported.
    supports_deletecollection: bool = True
    #: Completes a new object with the user that creates it; None for kinds that do not store their creator.
    complete_new: Callable[[Obj, UserInfo], Obj] | None = None
    #: The default propagation policy, and the warning if a delete relies on it.
    propagation: Propagation = Propagation.BACKGROUND
    propagation_warning: str = ""
    #: The conversion webhook of a custom kind; None if the kind is converted without one.
    converter: ObjectConverter | None = None

    @property
    def has_typed_items(self) -> bool:
        """Whether list items carry `apiVersion` and `kind`, as those of custom resources do."""
        return not self.is_native and "" not in self.handlers


class Resources:
    """All served resources, by group, version and plural name."""

    def __init__(self, built_in_resources: Iterable[Resource]) -> None:
        self._built_in = list(built_in_resources)
        self._all = list(self._built_in)
        self._resources_by_path = _resources_by_path(self._all)
        self._namespaced_by_kind = _namespaced_by_kind(self._all)
        #: Incremented when the served resources change.
        self.edition = 0

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource with a group, version and plural name; None if it is not served."""
        return self._resources_by_path.get((group, version, plural))

    def is_group_version_served(self, group: str, version: str) -> bool:
        """Return whether a resource with a group and version is served."""
        return any(key[:2] == (group, version) for key in self._resources_by_path)

    def is_namespaced(self, api_version: str, kind: str) -> bool | None:
        """Return whether objects of a kind have namespaces; None if the kind is not served."""
        return self._namespaced_by_kind.get((api_version, kind))

    def all(self) -> Sequence[Resource]:
        """Return all resources, the built-in ones first."""
        return self._all

    def serve_always(self, resource: Resource) -> None:
        """Add a resource to the built-in ones.

        This removes the additional resources; call `serve_additional` afterwards to serve them again.
        """
        self._built_in.append(resource)
        self.serve_additional(())

    def serve_additional(self, additional_resources: Iterable[Resource]) -> None:
        """Replace the resources that are served in addition to the built-in ones."""
        self._all = [*self._built_in, *additional_resources]
        self._resources_by_path = _resources_by_path(self._all)
        self._namespaced_by_kind = _namespaced_by_kind(self._all)
        self.edition += 1


def _resources_by_path(resources: Iterable[Resource]) -> Mapping[tuple[str, str, str], Resource]:
    """Index resources; if two have the same group, version and plural name, the first one is used."""
    path_index: dict[tuple[str, str, str], Resource] = {}
    for resource in resources:
        served_kind = resource.served_kind
        for version in served_kind.versions:
            path_index.setdefault((served_kind.group, version, served_kind.plural), resource)
    return path_index


def _namespaced_by_kind(resources: Iterable[Resource]) -> Mapping[tuple[str, str], bool]:
    kinds = [resource.served_kind for resource in resources]
    return {
        (served_kind.api_version_for(version), served_kind.kind): served_kind.namespaced
        for served_kind in kinds
        for version in served_kind.versions
    }


def with_subresource_handlers(
    resources: Iterable[Resource], kind: str, handlers: Mapping[str, EndpointHandlers]
) -> list[Resource]:
    """Return the resources, with subresources added to one kind."""
    return [
        resource._replace(handlers={**resource.handlers, **handlers})
        if resource.served_kind.constant == kind
        else resource
        for resource in resources
    ]


# API paths: group, version, resource, namespace, name, subresource.
#
# Source: k8s.io/apiserver, pkg/endpoints/request/requestinfo.go.


class ResourcePath(NamedTuple):
    """The parsed path of a resource, an object or a subresource."""

    resource: Resource
    version: str
    namespace: str
    name: str
    subresource: str
    #: The requested version as in `apiVersion`.
    api_version: str

    @property
    def served_kind(self) -> ServedKind:
        """The kind of the objects at the path."""
        return self.resource.served_kind

    @property
    def handlers(self) -> EndpointHandlers | None:
        """The handlers of requests for the path; None if requests read or write stored objects."""
        return self.resource.handlers.get(self.subresource)


def parse_resource_path(resources: Resources, path: str) -> ResourcePath | None:
    """Parse an API path; return None if the path names no served resource."""
    segments = path.strip("/").split("/")
    if not all(segments):
        return None
    if segments[0] == "api" and len(segments) > 2:
        return _resource_path(resources, ("", segments[1]), segments[2:])
    if segments[0] == "apis" and len(segments) > 3:
        return _resource_path(resources, (segments[1], segments[2]), segments[3:])
    return None


def subresource_in_path(path: str) -> str:
    """Return the subresource that an API path ends with, even if it is not served; '' if the path has none."""
    segments = _object_segments(path)
    return segments[2] if len(segments) == 3 else ""


def subresource_before_subpath(path: str) -> str:
    """Return the subresource in an API path, even if it is not served and a subpath follows; '' if there is none."""
    segments = _object_segments(path)
    return segments[2] if len(segments) > 2 else ""


def _object_segments(path: str) -> Sequence[str]:
    """Return the resource, the name, the subresource and the subpath in an API path, as far as the path has them."""
    parts = path.strip("/").split("/")
    resource_index = {"api": 2, "apis": 3}.get(parts[0])
    if resource_index is None or len(parts) <= resource_index:
        return ()
    return _split_namespace(parts[resource_index:], is_core=resource_index == 2)[1]


def _split_namespace(segments: Sequence[str], *, is_core: bool) -> tuple[str, Sequence[str]]:
    """Split the segments of an API path into the namespace ('' if it has none) and the remaining segments.

    In the core group, `namespaces/NAME/status` and `namespaces/NAME/finalize` address the Namespace itself.
    """
    if segments[0] == "namespaces" and len(segments) > 2 and not (is_core and segments[2] in {"status", "finalize"}):
        return segments[1], segments[2:]
    return "", segments


def _resource_path(resources: Resources, group_version: tuple[str, str], parts: Sequence[str]) -> ResourcePath | None:
    group, version = group_version
    namespace, parts = _split_namespace(parts, is_core=not group)
    resource = resources.find(group, version, parts[0])
    if resource is None or (namespace and not resource.served_kind.namespaced):
        return None
    name, subresource = [*parts[1:], "", ""][:2]
    handlers = resource.handlers.get(subresource)
    if len(parts) > 3 and (handlers is None or not handlers.takes_subpath):
        return None
    api_version = f"{group}/{version}" if group else version
    return ResourcePath(resource, version, namespace, name, subresource, api_version)


# Access to stored objects: the part of the store's client that the API server uses.


RequestAuthorizer: TypeAlias = Callable[[ApiRequest, ResourcePath, str], None]
"""Authorizes a request for a resource with a verb; raises StatusError (403) if its user lacks the right."""


def authorize_any(_request: ApiRequest, _path: ResourcePath, _verb: str) -> None:
    """Allow any request, because another authorization covers it."""


class ApiObjectStore(ObjectReader, Protocol):
    """Read and write access to the stored objects."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def attempt(self, write: Write, *, dry_run: bool = False) -> WriteResult:
        """Execute one write synchronously and return its result; a dry run does everything except storing."""


def execute_write(
    objects: ApiObjectStore, write: Write, served_kind: ServedKind, name: str, *, dry_run: bool = False
) -> Obj:
    """Execute a write of an object with a kind and a name; return the written object.

    Raises StatusError if the write is rejected.
    """
    write_result = objects.attempt(write, dry_run=dry_run)
    if write_result.error is not None:
        raise _rejected_write_error(write_result.error, write, served_kind, name) from write_result.error
    assert write_result.obj is not None, "a successful write must return an object"
    return write_result.obj


def resumable(finish: Callable[[], _T]) -> _T:
    """Run the part of a request that follows a change. If a conversion interrupts it, only this part runs again."""
    try:
        return finish()
    except ConversionNeeded as need:
        need.resume = need.resume or finish
        raise


# API errors in Kubernetes' wording. Source: k8s.io/apimachinery, pkg/api/errors.


def _rejected_write_error(error: ApiError, write: Write, served_kind: ServedKind, name: str) -> StatusError:
    match error:
        case NotFound() if isinstance(write, Create):  # the missing object is the Namespace
            error_details = {"name": write.obj["metadata"].get("namespace", ""), "kind": "namespaces"}
            return StatusError(404, "NotFound", str(error), error_details)
        case NotFound():
            return not_found_error(served_kind, name)
        case Conflict() if isinstance(write, Create):
            message = f'{served_kind.group_resource} "{name}" already exists'
            return StatusError(409, "AlreadyExists", message, object_details(served_kind, name))
        case Conflict():
            return conflict_error(served_kind, name)
        case InvalidObject():
            return invalid_object_error(error, served_kind, name)
        case Forbidden():
            return StatusError(403, "Forbidden", str(error), object_details(served_kind, name))
    return StatusError(500, error.reason, str(error))


def not_found_error(served_kind: ServedKind, name: str) -> StatusError:
    """Return the 404 error of a missing object."""
    message = f'{served_kind.group_resource} "{name}" not found'
    return StatusError(404, "NotFound", message, object_details(served_kind, name))


_MODIFIED_MESSAGE: Final = "the object has been modified; please apply your changes to the latest version and try again"


def conflict_error(served_kind: ServedKind, name: str, reason: str = _MODIFIED_MESSAGE) -> StatusError:
    """Return the 409 error of a changed object or an unmet precondition."""
    message = f'Operation cannot be fulfilled on {served_kind.group_resource} "{name}": {reason}'
    return StatusError(409, "Conflict", message, object_details(served_kind, name))


def invalid_object_error(error: InvalidObject, served_kind: ServedKind, name: str) -> StatusError:
    """Return the 422 error of an invalid object, or 403 if only an admission webhook denied the object."""
    errors = tuple(fault for fault in error.faults if not fault.webhook)
    if error.faults and not errors:
        faults_text = _format_errors(error.faults)
        message = f'admission webhook "{error.faults[0].webhook}" denied the request: {faults_text}'
        return StatusError(403, "Forbidden", message)
    faults_text = _format_errors(errors)
    error_details = {"name": name, "group": served_kind.group, "kind": served_kind.kind, "causes": causes_of(errors)}
    message = f'{served_kind.group_kind} "{name}" is invalid: {faults_text}'
    return StatusError(422, "Invalid", message, {k: v for k, v in error_details.items() if v})


def _format_errors(errors: Sequence[FieldError]) -> str:
    return str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"


def object_details(served_kind: ServedKind, name: str) -> dict[str, str]:
    """Return the `details` of a Status about an object."""
    fields = {"name": name, "group": served_kind.group, "kind": served_kind.plural}
    return {field: value for field, value in fields.items() if value}
