"""The resource `certificatesigningrequests` with its subresources `approval` and `status`.

The spec of a request is immutable and names the user that created it. `approval` changes only conditions, and requires
the verb `approve` on the signer. `status` sets the certificate, and requires `sign`.
Sources: Kubernetes's pkg/registry/certificates/certificates, plugin/pkg/admission/certificates, pkg/certauthorization,
pkg/printers/internalversion.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cryptography.x509.oid import NameOID

from batchyard.api.conversion import TimeLocations, metadata_time_locations
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.printing import Column, cells
from batchyard.api.scheme import ServedKind
from batchyard.api.times import format_time
from batchyard.apiserver.auth.authorization import Authorizer, RequestAttributes, forbidden_resource_error
from batchyard.apiserver.certificates import validation
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.handlers.write import WriteHandler
from batchyard.apiserver.request import CONTROLLER_USERNAME, MASTERS_GROUP, ApiRequest, Response, UserInfo
from batchyard.apiserver.resources import ApiObjectStore, EndpointHandlers, Resource, ResourcePath, not_found_error
from batchyard.base.instant import SECOND, Instant, format_age

CERTIFICATE_REQUEST: Final = "CertificateSigningRequest.certificates.k8s.io"
CLIENT_SIGNER: Final = "kubernetes.io/kube-apiserver-client"
#: The prefix of the names of batchyard's own users, such as a standby.
_RESERVED_USERS_PREFIX: Final = "system:batchyard:"
_GROUP: Final = "certificates.k8s.io"
_PLURAL: Final = "certificatesigningrequests"
_API_VERSION: Final = f"{_GROUP}/v1"
_KIND: Final = "CertificateSigningRequest"
_SERVED_KIND: Final = ServedKind(
    CERTIFICATE_REQUEST,
    _KIND,
    _GROUP,
    ("v1",),
    "v1",
    _PLURAL,
    "certificatesigningrequest",
    ("csr",),
    has_status=True,
    selectable_fields=("spec.signerName",),
)
_STRING: Final = {"type": "string"}
_BYTES: Final = {"type": "string", "format": "byte"}
_TIME: Final = {"type": "string", "format": "date-time", "nullable": True}
_STRINGS: Final = {"type": "array", "items": _STRING}
_SPEC: Final = {
    "type": "object",
    "required": ["request", "signerName"],
    "properties": {
        "expirationSeconds": {"type": "integer", "format": "int32"},
        "extra": {"type": "object", "additionalProperties": _STRINGS},
        "groups": _STRINGS,
        "request": _BYTES,
        "signerName": _STRING,
        "uid": _STRING,
        "usages": _STRINGS,
        "username": _STRING,
    },
}
_CONDITION: Final = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        **dict.fromkeys(("message", "reason", "status", "type"), _STRING),
        **dict.fromkeys(("lastTransitionTime", "lastUpdateTime"), _TIME),
    },
}
_CONDITIONS: Final = {
    "type": "array",
    "items": _CONDITION,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}
_STATUS: Final = {"type": "object", "properties": {"certificate": _BYTES, "conditions": _CONDITIONS}}
_SCHEMA: Final = {"type": "object", "required": ["spec"], "properties": {"spec": _SPEC, "status": _STATUS}}
_VERSION: Final = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _SCHEMA}}
_CONDITION_TIMES: Final = ("lastTransitionTime", "lastUpdateTime")
_NONE_TEXT: Final = "<none>"
_SUBRESOURCE_METHODS: Final = ("PUT", "PATCH")


class CertificateRequestStrategy(CustomStrategy):
    """The kind-specific API logic of CertificateSigningRequests; their spec is immutable."""

    #: The parts of the status that updates may change.
    settable: validation.SettableStatus = validation.SettableStatus()

    def __init__(self, now: Callable[[], Instant]) -> None:
        super().__init__(_SERVED_KIND, [_VERSION])
        self._now = now

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return the new object with the spec and status of the old one."""
        return {**new, "spec": old["spec"], "status": old.get("status") or {}}

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new object."""
        return list(validation.creation_errors(new))

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update, which concern the status only: the spec is immutable."""
        return list(validation.update_errors(new, old, self.settable))

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns of CertificateSigningRequests."""
        names = ("Age", "SignerName", "Requestor", "RequestedDuration", "Condition")
        return [Column("Name", format="name"), *map(Column, names)]

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a CertificateSigningRequest."""
        spec, seconds = stored_object["spec"], stored_object["spec"].get("expirationSeconds")
        lifetime = _NONE_TEXT if seconds is None else format_age(seconds * SECOND)
        names = (spec.get("signerName") or _NONE_TEXT, spec.get("username", ""))
        age = cells.age_text(stored_object, now)
        return [stored_object["metadata"]["name"], age, *names, lifetime, _condition_text(stored_object)]

    def _time_locations(self) -> TimeLocations:
        conditions: TimeLocations = {name: {} for name in _CONDITION_TIMES}
        return {**metadata_time_locations(), "status": {"conditions": conditions}}

    def _with_times(self, new: Obj, old: Obj) -> list[dict[str, Any]]:
        """Return the conditions of the new object with their missing times set."""
        now, timed_conditions = format_time(self._now()), []
        for condition in validation.conditions_of(new):
            same = [
                each.get("lastTransitionTime")
                for each in validation.conditions_of(old, condition.get("type", ""))
                if each.get("status") == condition.get("status")
            ]
            transition_time = condition.get("lastTransitionTime") or next(filter(None, same), now)
            times = {"lastUpdateTime": condition.get("lastUpdateTime") or now, "lastTransitionTime": transition_time}
            timed_conditions.append({**condition, **times})
        return timed_conditions


class CertificateApprovalStrategy(CertificateRequestStrategy):
    """The API logic of the subresource `approval`, which changes only the conditions."""

    settable = validation.SettableStatus(approval=True)

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return the old object with the conditions of the new one; missing times are set."""
        status = {**(old.get("status") or {}), "conditions": self._with_times(new, old)}
        return {**new, "spec": old["spec"], "status": status}


class CertificateStatusStrategy(CertificateRequestStrategy):
    """The API logic of the subresource `status`, which keeps the conditions Approved and Denied."""

    settable = validation.SettableStatus(certificate=True)

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return the new object with the old spec and approval conditions; missing times are set."""
        decisions = {each["type"]: each for each in validation.conditions_of(old, validation.APPROVED)}
        decisions |= {each["type"]: each for each in validation.conditions_of(old, validation.DENIED)}
        conditions = [decisions.get(each.get("type", ""), each) for each in validation.conditions_of(new)]
        status = {**(new.get("status") or {}), **({"conditions": conditions} if conditions else {})}
        if conditions:
            status["conditions"] = self._with_times({"status": status}, old)
        return {**new, "spec": old["spec"], "status": status}


class CertificateRequests:
    """Serves CertificateSigningRequests. Set `authorizer` before requests for subresources are served."""

    def __init__(self, objects: ApiObjectStore, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._writes = WriteHandler(objects, now)
        #: Decides whether users may approve or sign requests for a signer; None denies it to all users.
        self.authorizer: Authorizer | None = None
        plain_strategy = CertificateRequestStrategy(now)
        self._resource = Resource(
            _SERVED_KIND,
            plain_strategy,
            ("status",),
            guard=_check_subject,
            merge_schema=plain_strategy.merge_schema,
            is_native=True,
            prunes_unknown=True,
            complete_new=with_creator,
        )
        self._approval = self._resource._replace(strategy=CertificateApprovalStrategy(now))
        self._status = self._resource._replace(strategy=CertificateStatusStrategy(now))

    def resource(self) -> Resource:
        """Return the resource with its subresources `approval` and `status`."""
        handlers = {"approval": self._handlers(self._approve), "status": self._handlers(self._update_status)}
        return self._resource._replace(handlers=handlers)

    def _handlers(self, write: Callable[[ApiRequest, str, str], Response]) -> EndpointHandlers:
        return EndpointHandlers(_GROUP, "v1", _KIND, {"GET": self._get, **dict.fromkeys(_SUBRESOURCE_METHODS, write)})

    def _get(self, _request: ApiRequest, _namespace: str, name: str) -> Response:
        return Response(200, self._resource.strategy.render(self._stored(name), _API_VERSION))

    def _approve(self, request: ApiRequest, _namespace: str, name: str) -> Response:
        self._check_signer(request.user, "approve", self._stored(name))
        return self._writes.handle(request, _status_path(self._approval, name))

    def _update_status(self, request: ApiRequest, _namespace: str, name: str) -> Response:
        stored_object, path = self._stored(name), _status_path(self._status, name)
        prepared_write = self._writes.prepare(request, path)
        if _signed_parts(prepared_write.write.obj) != _signed_parts(stored_object):
            self._check_signer(request.user, "sign", stored_object)
        return self._writes.store_prepared(prepared_write, path)

    def _stored(self, name: str) -> Obj:
        stored_object = self._objects.get(Key(CERTIFICATE_REQUEST, "", name))
        if stored_object is None:
            raise not_found_error(_SERVED_KIND, name)
        return stored_object

    def _check_signer(self, user: UserInfo, verb: str, csr: Obj) -> None:
        """Raise StatusError unless a user may approve or sign requests for the signer, or all signers of its domain."""
        signer = csr["spec"]["signerName"]
        names = (signer, f"{signer.partition('/')[0]}/*")
        attributes = [RequestAttributes(user, verb, _GROUP, "signers", name=name) for name in names]
        if self.authorizer is None or not any(self.authorizer.decide(each).allowed for each in attributes):
            reason = f'user not permitted to {verb} requests with signerName "{signer}"'
            raise forbidden_resource_error(_GROUP, _PLURAL, csr["metadata"]["name"], reason)


def with_creator(csr: Obj, user: UserInfo) -> Obj:
    """Return a new object with the user that created it in its spec, and without a status."""
    creator_fields = ("username", "uid", "groups", "extra")
    spec = {field: value for field, value in csr["spec"].items() if field not in creator_fields}
    return with_status({**csr, "spec": {**spec, **user.to_json()}}, {})


def _check_subject(_user: UserInfo, new: Obj, old: Obj | None) -> None:
    """Raise StatusError if a new request asks for a client certificate of a reserved group or user."""
    if old is not None or new["spec"].get("signerName") != CLIENT_SIGNER:
        return
    try:
        request = validation.parse_certificate_request(new)
    except ValueError:
        return  # the validation reports the error
    users = validation.names_of(request, NameOID.COMMON_NAME)
    reserved = [f"{name} group" for name in validation.organizations_of(request) if name == MASTERS_GROUP]
    reserved += [f"{name} user" for name in users if _is_reserved_user(name)]
    if reserved:
        reason = f"use of {CLIENT_SIGNER} signer with {reserved[0]} is not allowed"
        raise forbidden_resource_error(_GROUP, _PLURAL, new["metadata"].get("name", ""), reason)


def _is_reserved_user(name: str) -> bool:
    return name == CONTROLLER_USERNAME or name.startswith(_RESERVED_USERS_PREFIX)


def _signed_parts(csr: Obj) -> tuple[Any, Any]:
    """Return the parts of the status whose change requires the right to sign."""
    return validation.conditions_of(csr), (csr.get("status") or {}).get("certificate") or ""


def _status_path(resource: Resource, name: str) -> ResourcePath:
    return ResourcePath(resource, "v1", "", name, "status", _API_VERSION)


def _condition_text(csr: Obj) -> str:
    types: Mapping[str, Any] = {condition["type"]: None for condition in validation.conditions_of(csr)}
    decision = next((each for each in (validation.DENIED, validation.APPROVED) if each in types), "Pending")
    failure = f",{validation.FAILED}" if validation.FAILED in types else ""
    issued = ",Issued" if (csr.get("status") or {}).get("certificate") else ""
    return f"{decision}{failure}{issued}"
