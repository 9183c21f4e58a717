"""Authorization: the attributes of a request, and the decision. Source: k8s.io/apiserver, pkg/authorization."""

from typing import Final, NamedTuple, Protocol

from batchyard.apiserver.auth.authentication import UserInfo
from batchyard.apiserver.request import ApiRequest, StatusError
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.selection import name_selected

_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Attributes(NamedTuple):
    """The attributes of a request to authorize: user, verb, and a resource or a non-resource path."""

    user: UserInfo
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class Decision(NamedTuple):
    """Whether a request is allowed, with a reason or ''."""

    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """Decides whether a user may perform a request."""

    def decide(self, attributes: Attributes) -> Decision:
        """Decide whether a request is allowed."""


def attributes_of(request: ApiRequest, path: ResourcePath | None) -> Attributes:
    """Return the attributes of a request."""
    if path is None:
        return Attributes(request.user, verb_of(request, path), path=request.path)
    info, verb = path.info, verb_of(request, path)
    is_namespace = info.plural == "namespaces" and not info.group
    namespace = path.name if is_namespace else path.namespace  # as readers of a namespace may read its object
    name = path.name
    if not name and verb in {"list", "watch"}:
        name = name_selected(request)
    return Attributes(request.user, verb, info.group, info.plural, path.subresource, namespace, name)


def forbidden(attributes: Attributes, reason: str = "") -> StatusError:
    """Return the 403 error of a denied request, in Kubernetes' wording."""
    message = f'User "{attributes.user.name}" cannot {attributes.verb}'
    if not attributes.resource:
        return StatusError(403, "Forbidden", f'forbidden: {message} path "{attributes.path}"')
    part = f"/{attributes.subresource}" if attributes.subresource else ""
    where = f'in the namespace "{attributes.namespace}"' if attributes.namespace else "at the cluster scope"
    message += f' resource "{attributes.resource}{part}" in API group "{attributes.group}" {where}'
    return refused_resource(
        attributes.group, attributes.resource, attributes.name, f"{message}{reason and f': {reason}'}"
    )


def refused_resource(group: str, resource: str, name: str, why: str) -> StatusError:
    """Return a 403 error about a resource or one of its objects."""
    title = f"{resource}.{group}" if group else resource
    details = {field: value for field, value in (("name", name), ("group", group), ("kind", resource)) if value}
    named = f'{title} "{name}"' if name else title
    return StatusError(403, "Forbidden", f"{named} is forbidden: {why}", details)


def verb_of(request: ApiRequest, path: ResourcePath | None) -> str:
    """Return the verb of a request."""
    if path is None:
        return request.method.lower()
    verb = _VERBS.get(request.method, "")
    if verb == "get" and not path.name:
        return "watch" if request.flag("watch") else "list"
    return "deletecollection" if verb == "delete" and not path.name else verb
