"""`serviceaccounts/NAME/token`: a token for a ServiceAccount, of limited life.

Source: Kubernetes's pkg/registry/core/serviceaccount/storage/token.go and pkg/apis/authentication/validation.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.api.validation import faults
from batchyard.apiserver.bodies import read_body
from batchyard.apiserver.objects import Found
from batchyard.apiserver.request import Refused, Request, Response, bad_request, causes_of
from batchyard.apiserver.resources import Answer
from batchyard.apiserver.reviews import check_kind
from batchyard.apiserver.tokens import ISSUER, Tokens
from batchyard.base.instant import SECOND

#: Who asks for a longer life gets this one, as with a limit of the API server for service account tokens.
LIFE_MAX: Final = 30 * 24 * 3600
_LIFE: Final = 3600
_LIFE_MIN: Final = 600
_ASKED_MAX: Final = 1 << 32
_KIND: Final = "TokenRequest"
_GROUP: Final = "authentication.k8s.io"
_BOUND: Final = {"Pod": (scheme.POD, "pods"), "Secret": (scheme.SECRET, "secrets")}


class TokenRequests:
    """See the module."""

    def __init__(self, objects: Found, tokens: Tokens) -> None:
        self._objects = objects
        self._tokens = tokens

    def answer(self) -> Answer:
        """Who answers there."""
        return Answer(_GROUP, "v1", _KIND, {"POST": self._create})

    def _create(self, request: Request, namespace: str, name: str) -> Response:
        sent = read_body(request).value
        sent = sent if isinstance(sent, Mapping) else {}
        check_kind(sent, f"{_GROUP}/v1", _KIND)
        _check_place(sent.get("metadata") or {}, namespace, name)
        spec = sent.get("spec")
        if not isinstance(spec, Mapping | None):
            raise bad_request("spec must be an object")
        spec = spec or {}
        seconds, audiences = _seconds(spec), _audiences(spec)
        account = self._found(Key(scheme.SERVICE_ACCOUNT, namespace, name), "serviceaccounts")
        bound = self._bound(spec.get("boundObjectRef"), namespace, name)
        expires_at = self._tokens.clock() + min(seconds, LIFE_MAX) * SECOND
        token = self._tokens.issue(account, bound, audiences, expires_at)
        told = format_time(expires_at // SECOND * SECOND)
        wanted = {**spec, "audiences": list(audiences), "expirationSeconds": min(seconds, LIFE_MAX)}
        status = {"token": token, "expirationTimestamp": told}
        metadata = {"name": name, "namespace": namespace}
        body = {"kind": _KIND, "apiVersion": f"{_GROUP}/v1", "metadata": metadata, "spec": wanted, "status": status}
        return Response(201, body)

    def _bound(self, reference: Any, namespace: str, account: str) -> Obj | None:
        """The object that a token is to be bound to."""
        if reference is None:
            return None
        kind = reference.get("kind") if isinstance(reference, Mapping) else None
        if not isinstance(kind, str) or kind not in _BOUND or reference.get("apiVersion", "v1") != "v1":
            raise bad_request(f"cannot bind token to object of type {kind}")
        bound = self._found(Key(_BOUND[kind][0], namespace, str(reference.get("name", ""))), _BOUND[kind][1])
        of = (bound.get("spec") or {}).get("serviceAccountName") or "default"
        if kind == "Pod" and of != account:
            told = f'cannot bind token for serviceaccount "{account}" to pod running with serviceaccount "{of}"'
            raise bad_request(told)
        wanted, uid = reference.get("uid"), bound["metadata"]["uid"]
        if wanted and wanted != uid:
            why = f"the UID in the bound object reference ({wanted}) does not match the UID in record"
            told = f'Operation cannot be fulfilled on {kind} "{bound["metadata"]["name"]}": {why}'
            raise Refused(409, "Conflict", told)
        return bound

    def _found(self, key: Key, resource: str) -> Obj:
        found = self._objects.get(key)
        if found is None:
            raise Refused(404, "NotFound", f'{resource} "{key.name}" not found', {"name": key.name, "kind": resource})
        return found


def _check_place(metadata: Any, namespace: str, name: str) -> None:
    """Refused where what was sent names another account than the path does."""
    if not isinstance(metadata, Mapping):
        raise bad_request("metadata must be an object")
    for field, wanted in (("name", name), ("namespace", namespace)):
        given = metadata.get(field)
        if given and given != wanted:
            told = f"must match the service account {field} if specified"
            raise _refused(faults.invalid(f"metadata.{field}", given, told, "leave it out"), name)


def _seconds(spec: Mapping[str, Any]) -> int:
    """How long a token is to be good."""
    asked = spec.get("expirationSeconds", _LIFE)
    path, remedy = "spec.expirationSeconds", "ask for ten minutes or more"
    if not isinstance(asked, int) or isinstance(asked, bool):
        raise bad_request(f"{path} must be an integer")
    if asked < _LIFE_MIN:
        raise _refused(faults.invalid(path, asked, "may not specify a duration less than 10 minutes", remedy))
    if asked > _ASKED_MAX:
        raise _refused(faults.invalid(path, asked, "may not specify a duration larger than 2^32 seconds", remedy))
    return asked


def _audiences(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """For whom a token is to be good; for the platform where nothing is said."""
    found = spec.get("audiences") or (ISSUER,)
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise bad_request("spec.audiences must be a list of strings")
    return tuple(found)


def _refused(fault: FieldError, name: str = "") -> Refused:
    named = {"name": name} if name else {}
    details = {**named, "group": _GROUP, "kind": _KIND, "causes": causes_of((fault,))}
    return Refused(422, "Invalid", f'{_KIND}.{_GROUP} "{name}" is invalid: {fault}', details)
