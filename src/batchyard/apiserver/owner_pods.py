"""Pods for the owner of a platform alone, on a machine that cannot isolate pods from itself.

Every pod comes from an object that a request writes: the pod itself, or the Job, CronJob or JobSet that makes it. So
those requests are denied to users who are not the owner, and so are commands in the owner's containers.
"""

from collections.abc import Callable
from typing import Final

from batchyard.apiserver.authentication import MASTERS
from batchyard.apiserver.authorization import Attributes, Authorizer, Decision

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
