"""The variable `authorizer` of CEL expressions: whether a user may perform a request.

Source: k8s.io/apiserver, pkg/cel/library/authz.go.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from cel_expr_python import cel

from batchyard.api.validation.rules import dns_label_errors, dns_subdomain_errors
from batchyard.apiserver.auth.authorization import Authorizer, RequestAttributes
from batchyard.apiserver.request import AUTHENTICATED_GROUP, UserInfo, account_groups, service_account_username

# The values of the authorizer are JSON texts, because functions of the library can return only values of CEL.


_T: Final = cel.Type
AUTHORIZER_TYPES: Final = {
    each: _T.AbstractType(f"kubernetes.authorization.{each}")
    for each in ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
}
_decode_json: Final = msgspec.json.decode


def _encode_check(**fields: Any) -> str:
    return msgspec.json.encode(fields).decode()


def _with_field(name: str) -> Callable[[str, str], str]:
    return lambda check, value: _encode_check(**{**_decode_json(check), name: value})


def _path_check(authorizer: str, path: str) -> str:
    if not path.strip():
        raise ValueError("path must not be empty")
    return _encode_check(**_decode_json(authorizer), path=path)


def _resource_check(group_check: str, resource: str) -> str:
    if not resource.strip():
        raise ValueError("resource must not be empty")
    return _encode_check(**_decode_json(group_check), resource=resource)


def _service_account(_authorizer: str, namespace: str, name: str) -> str:
    if dns_subdomain_errors(name):
        raise ValueError("Invalid service account name")
    if dns_label_errors(namespace):
        raise ValueError("Invalid service account namespace")
    user = UserInfo(service_account_username(namespace, name), (*account_groups(namespace), AUTHENTICATED_GROUP))
    return authorizer_value(user)


def authorizer_value(user: UserInfo) -> str:
    """Return the value of `authorizer` for a user."""
    return _encode_check(user=user.name, groups=user.groups)


def request_resource_value(user: UserInfo, attributes: RequestAttributes) -> str:
    """Return the value of `authorizer.requestResource` for a request."""
    fields = {field: getattr(attributes, field) for field in ("group", "resource", "subresource", "namespace", "name")}
    return _encode_check(user=user.name, groups=user.groups, **fields)


def _decide_check(authorizer: Authorizer | None, check: str, verb: str) -> str:
    assert authorizer is not None, "only validation compiles expressions without an authorizer"
    fields = _decode_json(check)
    user = UserInfo(fields.pop("user"), tuple(fields.pop("groups")))
    fields.pop("fieldSelector", None)
    fields.pop("labelSelector", None)
    decision = authorizer.decide(RequestAttributes(user, verb, **fields))
    return _encode_check(allowed=decision.allowed, reason=decision.reason)


def _authorizer_functions(authorizer: Authorizer | None) -> Iterator[tuple[str, list[str], str, Callable[..., Any]]]:
    """Yield each function: name, types of the receiver and the parameters, type of the result, implementation."""
    text = "string"
    yield "path", ["Authorizer", text], "PathCheck", _path_check
    yield "group", ["Authorizer", text], "GroupCheck", _with_field("group")
    yield "serviceAccount", ["Authorizer", text, text], "Authorizer", _service_account
    yield "resource", ["GroupCheck", text], "ResourceCheck", _resource_check
    for name in ("subresource", "namespace", "name", "fieldSelector", "labelSelector"):
        yield name, ["ResourceCheck", text], "ResourceCheck", _with_field(name)
    # The receiver is a PathCheck or a ResourceCheck: the library does not distinguish overloads for such types.
    yield "check", ["any", text], "Decision", lambda check, verb: _decide_check(authorizer, check, verb)
    yield "errored", ["Decision"], "bool", lambda _decision: False
    yield "error", ["Decision"], text, lambda _decision: ""
    yield "allowed", ["Decision"], "bool", lambda decision: _decode_json(decision)["allowed"]
    yield "reason", ["Decision"], text, lambda decision: _decode_json(decision)["reason"]


def authorizer_extension(authorizer: Authorizer | None, *, is_typed: bool) -> Any:
    """Return the functions of the authorizer, with their types, or to run with texts as values."""
    basic_types = {"string": _T.STRING, "bool": _T.BOOL, "any": _T.DYN}
    types = {**(AUTHORIZER_TYPES if is_typed else dict.fromkeys(AUTHORIZER_TYPES, _T.STRING)), **basic_types}
    functions = [
        cel.FunctionDecl(
            name, [cel.Overload(f"authorizer_{name}", types[result], [types[each] for each in parameters], True, run)]
        )
        for name, parameters, result, run in _authorizer_functions(authorizer)
    ]
    return cel.CelExtension("authorizer", functions)
