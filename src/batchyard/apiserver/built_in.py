"""The built-in kinds: the strategy that connects `batchyard.api` to the registry."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api import conversion, scheme, validation
from batchyard.api.decode import DecodedObject, complete
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.printing import Column, columns, row
from batchyard.api.schema.tables import NATIVE, scope_for
from batchyard.api.scheme import FILES, KINDS, ServedKind, kind_info
from batchyard.api.wire_times import ShownTimesCache, TimeLocations, times_of
from batchyard.apiserver.go_errors import misfit
from batchyard.apiserver.merge_schema import shape_of_kind
from batchyard.apiserver.openapi.schemas import schemas_of
from batchyard.apiserver.resources import Resource, no_misfit
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Propagation


class BuiltIn:
    """The strategy of one built-in kind."""

    def __init__(self, constant: str) -> None:
        self._constant = constant
        self._seconds = ShownTimesCache()
        #: The paths of time fields, by version.
        self._times: dict[str, TimeLocations] = {}

    def decode(self, sent: Mapping[str, Any], namespace: str, sound: Obj | None = None) -> DecodedObject:
        """Decode an object into its storage version with defaults; or return its errors."""
        return complete(sent, namespace, sound)

    def prepared(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return an updated object unchanged: clients may change all fields."""
        return new

    def show(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Return a stored object in a served version, with times in whole seconds."""
        times = self._times.get(api_version)
        if times is None:
            times = self._times[api_version] = self.times(api_version)
        return self._seconds.in_whole_seconds(self.in_version(stored, api_version), times)

    def in_version(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Convert a stored object without rounding times, for comparison."""
        return conversion.from_storage(stored, api_version)

    def times(self, api_version: str) -> TimeLocations:
        """Return the paths of time fields in a version."""
        return times_of(kind_info(self._constant), api_version.rpartition("/")[2])

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new object."""
        return validation.validate(new)

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update."""
        return validation.validate_update(new, old)

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of a status update."""
        return validation.validate_status(new, old)

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns, including those of `-o wide`."""
        return columns(self._constant, wide=True)

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a stored object."""
        return row(stored, now=now, wide=True)

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return the OpenAPI schemas of the kind in a version, including referenced ones, by name."""
        return schemas_of(kind_info(self._constant), version)


#: Source: Kubernetes's pkg/registry/batch/job/strategy.go.
_ORPHANS: Final = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
#: Source: `ReturnDeletedObject` in Kubernetes's pkg/registry/core.
_RETURN_DELETED: Final = frozenset(
    {
        scheme.NAMESPACE,
        scheme.PERSISTENT_VOLUME,
        scheme.PERSISTENT_VOLUME_CLAIM,
        scheme.POD,
        scheme.POD_TEMPLATE,
        scheme.RESOURCE_QUOTA,
        scheme.SERVICE,
        scheme.SERVICE_ACCOUNT,
    }
)


def built_in_resources() -> list[Resource]:
    """Return the resources of the built-in kinds, except file formats."""
    return [_resource(info) for info in KINDS if info.constant not in FILES]


def _resource(info: ServedKind) -> Resource:
    orphans, fields = info.constant == scheme.JOB, scope_for(info, info.storage_version)
    is_native = fields.name == NATIVE
    return Resource(
        info,
        BuiltIn(info.constant),
        ("status",) if info.has_status else (),
        shape=partial(shape_of_kind, info),
        is_native=is_native,
        misfit=partial(misfit, of=fields, type_name=info.kind) if is_native else no_misfit,
        # kubelets create Nodes with a status
        is_born_with_status=info.constant == scheme.NODE,
        returns_deleted=info.constant in _RETURN_DELETED,
        is_adoptable=info.constant == scheme.CLUSTER_ROLE,
        propagation=Propagation.ORPHAN if orphans else Propagation.BACKGROUND,
        propagation_warning=_ORPHANS if orphans else "",
    )
