"""The security of a server: filters, RBAC index, guards of roles, review and token resources."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.apiserver.auth.authentication import MASTERS
from batchyard.apiserver.auth.authorization import Attributes, Authorizer, Decision
from batchyard.apiserver.auth.escalation import Escalation
from batchyard.apiserver.auth.filters import AuthFilters
from batchyard.apiserver.auth.rbac import RbacAuthorizer
from batchyard.apiserver.auth.reviews import Reviews, TokenRequests
from batchyard.apiserver.auth.tokens import Tokens
from batchyard.apiserver.objects import ApiObjectReader
from batchyard.apiserver.resources import Resource, with_answers

# --- owner pods ---
#
# Only the owner of a platform may start pods on a machine that cannot isolate pods from itself.
#
# Every pod comes from an object that a request writes: the pod itself, or its Job, CronJob or JobSet. The authorizer
# therefore denies those writes to other users, and also commands in the owner's containers.


_WRITES: Final = frozenset({"create", "update", "patch"})
_KINDS: Final = frozenset({("", "pods"), ("batch", "jobs"), ("batch", "cronjobs"), ("jobset.x-k8s.io", "jobsets")})
_COMMANDS: Final = frozenset({"exec", "attach"})


class OwnerPods:
    """An authorizer that denies requests that start processes to users other than the owner.

    It delegates all other requests.
    """

    def __init__(self, authorizer: Authorizer, denial: Callable[[], str]) -> None:
        """`denial` returns why the machine cannot isolate pods; '' if it can."""
        self._authorizer = authorizer
        self._denial = denial

    def decide(self, attributes: Attributes) -> Decision:
        """Decide whether a request is allowed, with the reason of a denial."""
        if MASTERS not in attributes.user.groups and _starts_processes(attributes):
            reason = self._denial()
            if reason:
                return Decision(False, reason)
        return self._authorizer.decide(attributes)


def _starts_processes(attributes: Attributes) -> bool:
    kind = (attributes.group, attributes.resource)
    if kind == ("", "pods") and attributes.subresource in _COMMANDS:
        return True
    return kind in _KINDS and not attributes.subresource and attributes.verb in _WRITES


class Security(NamedTuple):
    """The filters of a server, the RBAC index that must observe every change, and all resources."""

    access: AuthFilters
    rbac: RbacAuthorizer
    resources: Sequence[Resource]


def _no_denial() -> str:
    return ""


def security_of(
    objects: ApiObjectReader, resources: Sequence[Resource], tokens: Tokens, pods_denial: Callable[[], str] = _no_denial
) -> Security:
    """Return the filters of a server, and its resources with guards, tokens and reviews added.

    `pods_denial` returns why only the owner may start pods; '' if other users may too.
    """
    rbac = RbacAuthorizer(objects)
    guards = Escalation(rbac).guards()
    served = [resource._replace(guard=guards.get(resource.info.constant)) for resource in resources]
    served = with_answers(served, scheme.SERVICE_ACCOUNT, {"token": TokenRequests(objects, tokens).answer()})
    return Security(
        AuthFilters(OwnerPods(rbac, pods_denial), tokens), rbac, [*served, *Reviews(rbac, tokens).resources()]
    )
