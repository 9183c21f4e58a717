"""Users, rights and tokens, put together: what the server asks at its door, and what it serves of them."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.access import Access
from batchyard.apiserver.escalation import Escalation
from batchyard.apiserver.rbac import Rbac
from batchyard.apiserver.resources import Resource
from batchyard.apiserver.reviews import Reviews
from batchyard.apiserver.token_requests import TokenRequests
from batchyard.apiserver.tokens import Tokens


class Found(Protocol):
    """Where the objects are."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name."""


class Security(NamedTuple):
    """What there is of it: the door, and the index that is to hear of every change."""

    access: Access
    rbac: Rbac
    resources: Sequence[Resource]


def security_of(objects: Found, resources: Sequence[Resource], tokens: Tokens) -> Security:
    """The door of a server, and its resources with what belongs to users, rights and tokens."""
    rbac = Rbac(objects)
    guards = Escalation(rbac).guards()
    token_requests = TokenRequests(objects, tokens).answer()
    served = [resource._replace(guard=guards.get(resource.info.constant)) for resource in resources]
    served = [
        resource._replace(answers={**resource.answers, "token": token_requests})
        if resource.info.constant == scheme.SERVICE_ACCOUNT
        else resource
        for resource in served
    ]
    return Security(Access(rbac, tokens), rbac, [*served, *Reviews(rbac, tokens).resources()])
