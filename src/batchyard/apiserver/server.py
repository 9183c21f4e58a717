"""The API: a request in, a response or a watch out. Nothing here knows of sockets."""

from collections.abc import Callable
from typing import Final

from batchyard.apiserver.authentication import ANONYMOUS
from batchyard.apiserver.authorization import Authorizer, attributes_of, refusal
from batchyard.apiserver.discovery import AGGREGATED, Discovery
from batchyard.apiserver.openapi import OpenApi
from batchyard.apiserver.paths import ResourcePath, resource_at
from batchyard.apiserver.reading import Feed, Reading
from batchyard.apiserver.registry import Objects, Registry
from batchyard.apiserver.request import Refused, Request, Response, path_not_found
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.watching import WatchStream
from batchyard.base.instant import Instant

_HEALTH: Final = ("healthz", "livez", "readyz")
_OPEN: Final = (*_HEALTH, "version")
_TEXT: Final = "text/plain; charset=utf-8"


class ApiServer:
    """See the module."""

    def __init__(
        self,
        objects: Objects,
        feed: Feed,
        now: Callable[[], Instant],
        resources: Resources,
        authorizer: Authorizer,
    ) -> None:
        self._registry = Registry(objects)
        self._reading = Reading(objects, feed, now)
        self._resources = resources
        self._authorizer = authorizer
        self._discovery = Discovery(resources)
        self._openapi = OpenApi(resources)

    def handle(self, request: Request) -> Response | WatchStream:
        """Answer a request."""
        try:
            return self._answer(request)
        except Refused as refused:
            return refused.response()

    def _answer(self, request: Request) -> Response | WatchStream:
        path = resource_at(self._resources, request.path)
        self._check_allowed(request, path)
        if path is None:
            return self._about_the_server(request)
        if path.subresource and path.subresource not in path.resource.subresources:
            raise path_not_found()
        if request.method != "GET":
            return self._registry.handle(request, path)
        if request.flag("watch"):
            return self._reading.watch(request, path)
        return self._reading.get(request, path) if path.name else self._reading.list(request, path)

    def _check_allowed(self, request: Request, path: ResourcePath | None) -> None:
        """Whoever may not do it is refused; who is not known at all may only ask how the server is."""
        if path is None and request.path.strip("/").split("/")[0] in _OPEN:
            return
        if request.user.name == ANONYMOUS.name:
            raise Refused(401, "Unauthorized", "Unauthorized")
        attributes = attributes_of(request, path)
        if self._authorizer.allows(attributes):
            return
        told = refusal(attributes)
        if path is None:
            raise Refused(403, "Forbidden", f"forbidden: {told}")
        details = {"name": path.name, "group": path.info.group, "kind": path.info.plural}
        named = f'{path.resource.title} "{path.name}"' if path.name else path.resource.title
        raise Refused(403, "Forbidden", f"{named} is forbidden: {told}", {k: v for k, v in details.items() if v})

    def _about_the_server(self, request: Request) -> Response:
        """What is served, and how it is."""
        if request.method not in {"GET", "HEAD"}:
            raise path_not_found()
        first, _, rest = request.path.strip("/").partition("/")
        if first in _HEALTH:
            return Response(200, "ok", content_type=_TEXT)
        is_aggregated = not rest and AGGREGATED in request.headers.get("accept", "") and first in {"api", "apis"}
        if first == "openapi":
            found = self._openapi.document(rest)
        else:
            found = self._discovery.document(request.path, is_aggregated=is_aggregated)
        if found is None:
            raise path_not_found()
        return Response(200, found, content_type=AGGREGATED) if is_aggregated else Response(200, found)
