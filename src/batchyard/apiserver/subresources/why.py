"""The part `why` of Workloads, jobs, pods and ClusterQueues: why they wait, or are as they are, when somebody asks.

Who may get that part of an object is told of it. Workloads that he may not get himself are told without their names.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.auth.authentication import User
from batchyard.apiserver.auth.authorization import Attributes, Authorizer
from batchyard.apiserver.request import Refused, Request, Response
from batchyard.apiserver.resources import Answer, Resource
from batchyard.base.instant import Instant

PART: Final = "why"
_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
_GROUP: Final = "batchyard.dev"
_VERSION: Final = "v1alpha1"
_KIND: Final = "Explanation"
_WORKLOADS: Final = ("kueue.x-k8s.io", "workloads")


class Explanations(Protocol):
    """Knows why."""

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool]) -> Mapping[str, Any] | None:
        """The document about an object; None if there is no such object.

        `may_read` says whether the asker may get the Workloads of a namespace.
        """


class Why:
    """See the module."""

    def __init__(self, explanations: Explanations, now: Callable[[], Instant]) -> None:
        self._explanations = explanations
        self._now = now
        #: Who says what the asker may get; until there is somebody, nothing.
        self.authorizer: Authorizer | None = None

    def with_parts(self, resources: Iterable[Resource]) -> list[Resource]:
        """The resources, of which those that can be asked about have this part."""
        return [
            each._replace(answers={**each.answers, PART: self._answer(each)}) if each.info.constant in _KINDS else each
            for each in resources
        ]

    def _answer(self, resource: Resource) -> Answer:
        return Answer(_GROUP, _VERSION, _KIND, {"GET": partial(self._get, resource)})

    def _get(self, resource: Resource, request: Request, namespace: str, name: str) -> Response:
        key = Key(resource.info.constant, namespace, name)
        found = self._explanations.why(key, self._now(), partial(self._may_read, request.user))
        if found is None:
            details = {"name": name, "group": resource.info.group, "kind": resource.info.plural}
            raise Refused(404, "NotFound", f'{resource.title} "{name}" not found', details)
        return Response(200, found)

    def _may_read(self, user: User, namespace: str) -> bool:
        if self.authorizer is None:
            return False
        group, plural = _WORKLOADS
        return self.authorizer.decide(Attributes(user, "get", group, plural, "", namespace)).allowed
