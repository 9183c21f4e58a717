"""The API: a request in, a response or a watch out. Nothing here knows of sockets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from batchyard.api.meta import Obj, key_of
from batchyard.apiserver.authentication import ANONYMOUS
from batchyard.apiserver.authorization import Authorizer, attributes_of, refusal
from batchyard.apiserver.discovery import AGGREGATED, Discovery
from batchyard.apiserver.openapi import OpenApi
from batchyard.apiserver.paths import ResourcePath, resource_at
from batchyard.apiserver.registry import Objects, Registry
from batchyard.apiserver.request import Refused, Request, Response, path_not_found
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.selection import selection_of
from batchyard.apiserver.tables import table_of, wants_table
from batchyard.apiserver.watching import WatchStream
from batchyard.base.instant import Instant
from batchyard.ports.client import WatchEvent
from batchyard.store.log import Expired

_HEALTH: Final = ("healthz", "livez", "readyz")
_OPEN: Final = (*_HEALTH, "version")
_TEXT: Final = "text/plain; charset=utf-8"


class Feed(Protocol):
    """The changes that are durable, for watches."""

    def since(self, revision: int) -> Sequence[WatchEvent]:
        """The changes after a revision; Expired where they are no longer known."""

    def join(self, watch: WatchStream) -> None:
        """Feed a watch with all that comes."""


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
        self._objects = objects
        self._registry = Registry(objects)
        self._feed = feed
        self._now = now
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
        if request.method == "GET" and request.flag("watch"):
            return self._watch(request, path)
        response = self._registry.handle(request, path)
        if request.method == "GET" and not path.subresource and wants_table(request):
            return self._as_table(response, request, path)
        return response

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

    def _as_table(self, response: Response, request: Request, path: ResourcePath) -> Response:
        """What was found, as a Table."""
        body, strategy = response.body, path.resource.strategy
        items = [body] if path.name else body["items"]
        metadata = {"resourceVersion": body["metadata"]["resourceVersion"]} if path.name else body["metadata"]
        stored = [self._objects.get(key_of(item)) or item for item in items]
        return response._replace(body=table_of(strategy, stored, request, self._now(), metadata))

    def _watch(self, request: Request, path: ResourcePath) -> WatchStream:
        """A watch from the revision asked for; from all that is there where none is."""
        selection = selection_of(request, path.info.constant)
        strategy = path.resource.strategy

        def show(obj: Obj) -> Mapping[str, Any]:
            if not wants_table(request):
                return strategy.show(obj, path.api_version)
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            return table_of(strategy, [obj], request, self._now(), metadata)

        watch = WatchStream(path, selection, show)
        version = request.query.get("resourceVersion", "")
        initial = request.flag("sendInitialEvents")
        if initial or version in {"", "0"}:
            found = self._objects.list(path.info.constant, path.namespace or None)
            watch.begin(obj for obj in found if path.name in ("", obj["metadata"]["name"]))
        if initial and request.flag("allowWatchBookmarks"):
            watch.bookmark(self._objects.revision, initial=True)
        if not initial and version not in {"", "0"}:
            watch.feed(self._changes_since(version))
        self._feed.join(watch)
        return watch

    def _changes_since(self, version: str) -> Sequence[WatchEvent]:
        if not version.isdecimal() or len(version) > 18:
            raise Refused(400, "BadRequest", f'invalid resource version "{version}"')
        if int(version) > self._objects.revision:
            told = f"Too large resource version: {version}, current: {self._objects.revision}"
            raise Refused(504, "Timeout", told, {"causes": [{"reason": "ResourceVersionTooLarge", "message": told}]})
        try:
            return self._feed.since(int(version))
        except Expired as expired:
            raise Refused(410, "Expired", str(expired)) from expired

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
