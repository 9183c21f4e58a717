"""Who may do what: the question that is asked of every request. Source: k8s.io/apiserver, pkg/authorization."""

from typing import Final, NamedTuple, Protocol

from batchyard.apiserver.authentication import MASTERS, User
from batchyard.apiserver.paths import ResourcePath
from batchyard.apiserver.request import Request

_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Attributes(NamedTuple):
    """What somebody is about to do: to a resource, or to a path that is none."""

    user: User
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class Authorizer(Protocol):
    """Decides who may do what."""

    def allows(self, attributes: Attributes) -> bool:
        """Whether it may be done."""


class MastersOnly:
    """Those who may do everything may do it; nobody else anything."""

    def allows(self, attributes: Attributes) -> bool:
        """Whether it may be done."""
        return MASTERS in attributes.user.groups


def attributes_of(request: Request, path: ResourcePath | None) -> Attributes:
    """What a request is about to do."""
    if path is None:
        return Attributes(request.user, request.method.lower(), path=request.path)
    info = path.info
    where = (path.subresource, path.namespace, path.name)
    return Attributes(request.user, _verb(request, path), info.group, info.plural, *where)


def refusal(attributes: Attributes) -> str:
    """What is told of what may not be done, as the API server words it."""
    told = f'User "{attributes.user.name}" cannot {attributes.verb}'
    if not attributes.resource:
        return f'{told} path "{attributes.path}"'
    part = f"/{attributes.subresource}" if attributes.subresource else ""
    where = f'in the namespace "{attributes.namespace}"' if attributes.namespace else "at the cluster scope"
    return f'{told} resource "{attributes.resource}{part}" in API group "{attributes.group}" {where}'


def _verb(request: Request, path: ResourcePath) -> str:
    verb = _VERBS.get(request.method, request.method.lower())
    if verb == "get" and not path.name:
        return "watch" if request.flag("watch") else "list"
    if verb == "get" and request.flag("watch"):
        return "watch"
    return "deletecollection" if verb == "delete" and not path.name else verb
