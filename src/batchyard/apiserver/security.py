"""Users, rights and tokens, put together: what the server asks at its door, and what it serves of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.apiserver.access import Access
from batchyard.apiserver.escalation import Escalation
from batchyard.apiserver.objects import Found
from batchyard.apiserver.owner_pods import OwnerPods
from batchyard.apiserver.rbac import Rbac
from batchyard.apiserver.resources import Resource, with_answers
from batchyard.apiserver.reviews import Reviews
from batchyard.apiserver.token_requests import TokenRequests
from batchyard.apiserver.tokens import Tokens


class Security(NamedTuple):
    """What there is of it: the door, and the index that is to hear of every change."""

    access: Access
    rbac: Rbac
    resources: Sequence[Resource]


def _no_denial() -> str:
    return ""


def security_of(
    objects: Found, resources: Sequence[Resource], tokens: Tokens, pods_denial: Callable[[], str] = _no_denial
) -> Security:
    """The door of a server, and its resources with what belongs to users, rights and tokens.

    `pods_denial` returns why only the owner may start pods; '' if other users may too.
    """
    rbac = Rbac(objects)
    guards = Escalation(rbac).guards()
    served = [resource._replace(guard=guards.get(resource.info.constant)) for resource in resources]
    served = with_answers(served, scheme.SERVICE_ACCOUNT, {"token": TokenRequests(objects, tokens).answer()})
    return Security(Access(OwnerPods(rbac, pods_denial), tokens), rbac, [*served, *Reviews(rbac, tokens).resources()])
