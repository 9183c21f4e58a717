"""The attributes of a write request that admission webhooks and policies see."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.manifests import DecodedObject
from batchyard.apiserver.conversions import convert
from batchyard.apiserver.request import ApiRequest, StatusError, UserInfo
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.serialization import read_body

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"
CONNECT: Final = "CONNECT"
#: The kinds of webhook configurations.
WEBHOOK_KINDS: Final = (scheme.MUTATING_WEBHOOKS, scheme.VALIDATING_WEBHOOKS)
#: The kinds of admission policies and their bindings.
POLICY_KINDS: Final = frozenset(
    {
        *(scheme.MUTATING_POLICY, scheme.MUTATING_POLICY_BINDING),
        *(scheme.VALIDATING_POLICY, scheme.VALIDATING_POLICY_BINDING),
    }
)


class AdmissionAttributes(NamedTuple):
    """One write request. Source: k8s.io/apiserver, pkg/admission/attributes.go."""

    operation: str
    #: The resource, its requested version, the subresource, the Namespace ("" if none), and the name ("" if generated).
    path: ResourcePath
    #: The new object in the version of the request; None for DELETE.
    obj: Mapping[str, Any] | None
    #: The stored object in the version of the request; None for CREATE.
    old_object: Mapping[str, Any] | None
    #: The `options_object` of the request; {} for CONNECT.
    options: Mapping[str, Any]
    user: UserInfo
    dry_run: bool


def request_kind(path: ResourcePath) -> tuple[str, str, str]:
    """Return group, version and kind of the object in a request, such as those of a Scale for `scale`."""
    if path.handlers is not None:
        return path.handlers.group, path.handlers.version, path.handlers.kind
    return path.served_kind.group, path.version, path.served_kind.kind


def request_namespace(path: ResourcePath) -> str:
    """Return the namespace of a request; for a Namespace its own name, '' for other cluster-scoped objects."""
    return path.name if path.served_kind.constant == scheme.NAMESPACE else path.namespace


def review_fields(attributes: AdmissionAttributes, version: str) -> dict[str, Any]:
    """Return the fields of an AdmissionRequest without uid and objects, for an object in a version of the resource.

    Source: k8s.io/apiserver, pkg/admission/plugin/webhook/request/admissionreview.go.
    """
    path, (group, kind_version, kind) = attributes.path, request_kind(attributes.path)
    served_kind = path.served_kind
    has_own_kind = path.handlers is not None
    fields: dict[str, Any] = {
        "kind": {"group": group, "version": kind_version if has_own_kind else version, "kind": kind},
        "resource": {"group": served_kind.group, "version": version, "resource": served_kind.plural},
        "subResource": path.subresource,
        "requestKind": {"group": group, "version": kind_version, "kind": kind},
        "requestResource": {"group": served_kind.group, "version": path.version, "resource": served_kind.plural},
        "requestSubResource": path.subresource,
        "name": path.name,
        "namespace": request_namespace(path),
        "operation": attributes.operation,
        "userInfo": attributes.user.to_json(),
    }
    fields = {field: value for field, value in fields.items() if value}
    return {**fields, "dryRun": attributes.dry_run, "options": attributes.options or None}


def convert_object(obj: Mapping[str, Any], path: ResourcePath, version: str) -> DecodedObject:
    """Convert an object of a request to a version of its resource, or return its errors.

    Raises ConversionNeeded if the conversion webhook of the resource must convert it first.
    """
    strategy, converter = path.resource.strategy, path.resource.converter
    if converter is not None:
        return DecodedObject(dict(convert(converter, obj, path.served_kind.api_version_for(version))), [], [])
    decoded_object = strategy.decode(obj, path.namespace)
    if decoded_object.obj is None:
        return decoded_object
    return decoded_object._replace(obj=strategy.render(decoded_object.obj, path.served_kind.api_version_for(version)))


# Options of requests. A patch has the options of the operation that it performs: it creates or updates.
#
# Sources: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,delete}.go; k8s.io/apimachinery,
# pkg/apis/meta/v1/types.go.


_OPTIONS_VERSION: Final = "meta.k8s.io/v1"
_WRITE_OPTIONS: Final = ("dryRun", "fieldManager", "fieldValidation")
_OPTIONS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    CREATE: ("CreateOptions", _WRITE_OPTIONS),
    UPDATE: ("UpdateOptions", _WRITE_OPTIONS),
    DELETE: (
        "DeleteOptions",
        ("gracePeriodSeconds", "preconditions", "orphanDependents", "propagationPolicy", "dryRun"),
    ),
}


def options_object(operation: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an operation as an object: those of `fields` that are known and set."""
    kind, names = _OPTIONS[operation]
    known_fields = {name: fields[name] for name in names if fields.get(name) not in (None, "", [])}
    return {"kind": kind, "apiVersion": _OPTIONS_VERSION, **known_fields}


def request_options(request: ApiRequest, operation: str) -> dict[str, Any]:
    """Return the options of a request as an object; those of a delete come from its body, if it has one."""
    if operation == DELETE and request.body:
        body = read_body(request).value
        return options_object(operation, body if isinstance(body, Mapping) else {})
    fields: dict[str, Any] = dict(request.query)
    if "dryRun" in fields:
        fields["dryRun"] = [fields["dryRun"]]
    if operation == DELETE:
        grace_period = fields.pop("gracePeriodSeconds", "")
        fields |= {"gracePeriodSeconds": int(grace_period)} if grace_period.removeprefix("-").isdecimal() else {}
        fields |= {"orphanDependents": request.has_flag("orphanDependents")} if "orphanDependents" in fields else {}
    return options_object(operation, fields)


class PolicyVerdict(NamedTuple):
    """What the ValidatingAdmissionPolicies decide about a request."""

    #: The error that denies the request; None if it is allowed.
    error: StatusError | None
    warnings: tuple[str, ...] = ()
    #: The annotations of the audit event.
    annotations: Mapping[str, str] = {}
