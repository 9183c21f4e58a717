"""The `why` subresource of Workloads, jobs, pods and ClusterQueues: why they are pending or in their state.

Readers of the subresource get the explanation. Names of Workloads that the user may not get are left out.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.auth.authentication import UserInfo
from batchyard.apiserver.auth.authorization import Attributes, Authorizer
from batchyard.apiserver.request import ApiRequest, Response, StatusError
from batchyard.apiserver.resources import EndpointHandlers, Resource
from batchyard.base.instant import Instant

PART: Final = "why"
_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
_GROUP: Final = "batchyard.dev"
_VERSION: Final = "v1alpha1"
_KIND: Final = "Explanation"
_WORKLOADS: Final = ("kueue.x-k8s.io", "workloads")


class Explanations(Protocol):
    """Provides explanations."""

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool]) -> Mapping[str, Any] | None:
        """Return the explanation of an object; None if the object does not exist.

        `may_read` reports whether the user may get the Workloads of a namespace.
        """


class WhyHandler:
    """The handlers of `why`."""

    def __init__(self, explanations: Explanations, now: Callable[[], Instant]) -> None:
        self._explanations = explanations
        self._now = now
        #: Decides which Workloads a user may get; without one, none.
        self.authorizer: Authorizer | None = None

    def with_parts(self, resources: Iterable[Resource]) -> list[Resource]:
        """Return the resources, with `why` on the supported kinds."""
        return [
            each._replace(answers={**each.answers, PART: self._answer(each)}) if each.info.constant in _KINDS else each
            for each in resources
        ]

    def _answer(self, resource: Resource) -> EndpointHandlers:
        return EndpointHandlers(_GROUP, _VERSION, _KIND, {"GET": partial(self._get, resource)})

    def _get(self, resource: Resource, request: ApiRequest, namespace: str, name: str) -> Response:
        key = Key(resource.info.constant, namespace, name)
        found = self._explanations.why(key, self._now(), partial(self._may_read, request.user))
        if found is None:
            details = {"name": name, "group": resource.info.group, "kind": resource.info.plural}
            raise StatusError(404, "NotFound", f'{resource.title} "{name}" not found', details)
        return Response(200, found)

    def _may_read(self, user: UserInfo, namespace: str) -> bool:
        if self.authorizer is None:
            return False
        group, plural = _WORKLOADS
        return self.authorizer.decide(Attributes(user, "get", group, plural, "", namespace)).allowed
