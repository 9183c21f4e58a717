"""Users, rights and tokens, put together: what the server asks at its door, and what it serves of them."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.apiserver.auth.authentication import MASTERS
from batchyard.apiserver.auth.authorization import Attributes, Authorizer, Decision
from batchyard.apiserver.auth.escalation import Escalation
from batchyard.apiserver.auth.filters import Access
from batchyard.apiserver.auth.rbac import Rbac
from batchyard.apiserver.auth.reviews import Reviews, TokenRequests
from batchyard.apiserver.auth.tokens import Tokens
from batchyard.apiserver.objects import Found
from batchyard.apiserver.resources import Resource, with_answers

# --- owner pods ---
#
# Pods for the owner of a platform alone, on a machine that cannot isolate pods from itself.
#
# Every pod comes from an object that a request writes: the pod itself, or the Job, CronJob or JobSet that makes it. So
# those requests are denied to users who are not the owner, and so are commands in the owner's containers.


_WRITES: Final = frozenset({"create", "update", "patch"})
_KINDS: Final = frozenset({("", "pods"), ("batch", "jobs"), ("batch", "cronjobs"), ("jobset.x-k8s.io", "jobsets")})
_COMMANDS: Final = frozenset({"exec", "attach"})


class OwnerPods:
    """Denies what starts processes to users who are not the owner, for a reason; decides else as another authorizer."""

    def __init__(self, authorizer: Authorizer, denial: Callable[[], str]) -> None:
        """`denial` returns why the machine cannot isolate pods; '' if it can."""
        self._authorizer = authorizer
        self._denial = denial

    def decide(self, attributes: Attributes) -> Decision:
        """Whether it may be done, and why not."""
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
