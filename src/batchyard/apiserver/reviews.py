"""Questions that are asked by creating an object, and answered in its status; none is ever stored.

Who may do what: SubjectAccessReview, its local and its own form, SelfSubjectRulesReview. Who is who: TokenReview,
SelfSubjectReview. Sources: Kubernetes's pkg/registry/{authorization,authentication}, pkg/apis/authorization/validation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults
from batchyard.apiserver.authentication import User
from batchyard.apiserver.authorization import Attributes
from batchyard.apiserver.bodies import read_body
from batchyard.apiserver.rbac import Rbac
from batchyard.apiserver.request import Refused, Request, Response, bad_request, causes_of, method_not_allowed
from batchyard.apiserver.resources import Answer, Resource
from batchyard.apiserver.tokens import ISSUER, Tokens
from batchyard.apiserver.unstored import unstored, unstored_kind

AUTHORIZATION: Final = "authorization.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
_VERSION: Final = "v1"
_REMEDY: Final = "say what is asked about"

Review: TypeAlias = Callable[[Request, Mapping[str, Any], str], Mapping[str, Any]]
"""The status that answers a review: from the request, the spec and the namespace of its path."""


class Reviews:
    """See the module."""

    def __init__(self, rbac: Rbac, tokens: Tokens) -> None:
        self._rbac = rbac
        self._tokens = tokens

    def resources(self) -> list[Resource]:
        """The kinds of reviews as resources that can only be created."""
        return [
            _resource(AUTHORIZATION, "SelfSubjectAccessReview", self._own_access),
            _resource(AUTHORIZATION, "SubjectAccessReview", self._access),
            _resource(AUTHORIZATION, "LocalSubjectAccessReview", self._local_access, namespaced=True),
            _resource(AUTHORIZATION, "SelfSubjectRulesReview", self._own_rules),
            _resource(AUTHENTICATION, "TokenReview", self._token),
            _resource(AUTHENTICATION, "SelfSubjectReview", self._own_user),
        ]

    def _own_access(self, request: Request, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        return self._decided("SelfSubjectAccessReview", request.user, spec)

    def _access(self, _request: Request, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        return self._decided("SubjectAccessReview", _user_in("SubjectAccessReview", spec), spec)

    def _local_access(self, _request: Request, spec: Mapping[str, Any], namespace: str) -> Mapping[str, Any]:
        """As `_access`, of what is in the namespace of the path alone."""
        kind = "LocalSubjectAccessReview"
        user = _user_in(kind, spec)
        if spec.get("nonResourceAttributes"):
            told = "disallowed on this kind of request"
            raise _refused(kind, faults.invalid("spec.nonResourceAttributes", {}, told, _REMEDY))
        asked = _text(_object(spec, "resourceAttributes"), "namespace")
        if asked != namespace:
            told = f"must match metadata.namespace: {namespace}"
            raise _refused(kind, faults.invalid("spec.resourceAttributes.namespace", asked, told, "leave it out"))
        return self._decided(kind, user, spec)

    def _own_rules(self, request: Request, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        namespace = _text(spec, "namespace")
        if not namespace:
            raise bad_request("no namespace on request")
        rules = [rule.told() for rule in self._rbac.rules_for(request.user, namespace)]
        return {
            "resourceRules": [rule for rule in rules if "resources" in rule],
            "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
            "incomplete": False,
        }

    def _token(self, _request: Request, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        token = _text(spec, "token")
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        verified = self._tokens.verified(token)
        wanted = _texts(spec, "audiences") or (ISSUER,)
        audiences = [] if verified is None else [each for each in wanted if each in verified.audiences]
        if verified is None or not audiences:
            return {"error": "the token is not good, or not for these audiences"}
        return {"authenticated": True, "user": verified.user.told(), "audiences": audiences}

    def _own_user(self, request: Request, _spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        return {"userInfo": request.user.told()}

    def _decided(self, kind: str, user: User, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whether a user may do what a spec describes."""
        of_resource, of_path = _object(spec, "resourceAttributes"), _object(spec, "nonResourceAttributes")
        is_of_path = spec.get("nonResourceAttributes") is not None
        if (spec.get("resourceAttributes") is not None) == is_of_path:
            told = (
                "cannot be specified in combination with resourceAttributes"
                if is_of_path
                else "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            )
            field = "spec.nonResourceAttributes" if is_of_path else "spec.resourceAttributes"
            raise _refused(kind, faults.invalid(field, of_path, told, _REMEDY))
        if is_of_path:
            asked = Attributes(user, _text(of_path, "verb"), path=_text(of_path, "path"))
        else:
            fields = ("verb", "group", "resource", "subresource", "namespace", "name")
            asked = Attributes(user, *(_text(of_resource, field) for field in fields))
        allowed, reason = self._rbac.decide(asked)
        return {"allowed": allowed, "reason": reason} if reason else {"allowed": allowed}


def _resource(group: str, kind: str, review: Review, *, namespaced: bool = False) -> Resource:
    """A resource that has no objects: creating one asks a question."""

    def create(request: Request, namespace: str, name: str) -> Response:
        if name:
            raise method_not_allowed()
        sent = read_body(request).value
        if not isinstance(sent, Mapping):
            raise bad_request("the request's body is no object")
        check_kind(sent, f"{group}/{_VERSION}", kind)
        metadata = _object(sent, "metadata")
        if group == AUTHORIZATION and kind.endswith("AccessReview"):
            _check_unnamed(kind, metadata, is_placed=namespaced)
        status = review(request, _object(sent, "spec"), namespace)
        told = {"kind": kind, "apiVersion": f"{group}/{_VERSION}", "metadata": metadata, "spec": sent.get("spec", {})}
        return Response(201, {**told, "status": status})

    singular = kind.lower()
    info = unstored_kind(group, _VERSION, kind, f"{singular}s", singular, namespaced=namespaced)
    return unstored(info, {"": Answer(group, _VERSION, kind, {"POST": create})})


def _check_unnamed(kind: str, metadata: Mapping[str, Any], *, is_placed: bool) -> None:
    """Refused where a question about access has metadata of its own."""
    ignored = ("managedFields", "namespace") if is_placed else ("managedFields",)
    said = {field: value for field, value in metadata.items() if value and field not in ignored}
    if said:
        told = "must be empty except for namespace" if is_placed else "must be empty"
        raise _refused(kind, faults.invalid("metadata", said, told, "leave it out"))


def check_kind(sent: Mapping[str, Any], api_version: str, kind: str) -> None:
    """Refused where what was sent says that it is something else."""
    found = (sent.get("apiVersion") or api_version, sent.get("kind") or kind)
    if found != (api_version, kind):
        raise bad_request(f'{found[1]} in version "{found[0]}" cannot be handled as a {kind}')


def _user_in(kind: str, spec: Mapping[str, Any]) -> User:
    """The user whom a spec is about."""
    user, groups, extra = _text(spec, "user"), _texts(spec, "groups"), _object(spec, "extra")
    if not user and not groups:
        told = "at least one of user or group must be specified"
        raise _refused(kind, faults.invalid("spec.user", user, told, "name one"))
    return User(user, groups, _text(spec, "uid"), tuple((key, _texts(extra, key)) for key in extra))


def _refused(kind: str, fault: FieldError) -> Refused:
    details = {"group": AUTHORIZATION, "kind": kind, "causes": causes_of((fault,))}
    return Refused(422, "Invalid", f'{kind}.{AUTHORIZATION} "" is invalid: {fault}', details)


def _object(of: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A field that holds an object, empty where it is not there."""
    found = of.get(field)
    if found is not None and not isinstance(found, Mapping):
        raise bad_request(f"{field} must be an object")
    return found or {}


def _text(of: Mapping[str, Any], field: str) -> str:
    """A field that holds a text, empty where it is not there."""
    found = of.get(field)
    if found is not None and not isinstance(found, str):
        raise bad_request(f"{field} must be a string")
    return found or ""


def _texts(of: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """A field that holds texts, empty where it is not there."""
    found = of.get(field) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise bad_request(f"{field} must be a list of strings")
    return tuple(found)
