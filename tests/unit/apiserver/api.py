"""An API server over a store in memory, without a wire: whoever asks may do everything."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.authentication import MASTERS, User
from batchyard.apiserver.authorization import MastersOnly
from batchyard.apiserver.built_in import built_in_resources
from batchyard.apiserver.request import Request, Response
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.server import ApiServer
from batchyard.apiserver.watching import WatchStream
from batchyard.client.local import LocalClient
from batchyard.kernel import VirtualKernel
from batchyard.ports.client import WatchEvent, Write, WriteResult
from batchyard.store.memory import Store
from batchyard.wiring import Settings, guards, preparations

OWNER = User("owner", (MASTERS,))


class Stored:
    """The objects, and the changes as they come, which are durable at once."""

    def __init__(self, window: int) -> None:
        self.kernel = VirtualKernel()
        self.store = Store(window=window)
        self.client = LocalClient(self.store, self.kernel, prepare=preparations(Settings()), guards=guards())
        for name in ("default", "team", "other"):
            self.store.put(Key(scheme.NAMESPACE, "", name), make.namespace(name))
        self._watches: list[WatchStream] = []
        self.store.listen(self._tell)

    @property
    def revision(self) -> int:
        return self.store.revision

    def get(self, key: Key) -> Obj | None:
        return self.store.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return self.store.list(kind, namespace)

    def attempt(self, write: Write) -> WriteResult:
        result = self.client.attempt(write)
        self.kernel.run(until=self.kernel.now())
        return result

    def since(self, revision: int) -> Sequence[WatchEvent]:
        return self.store.changes_since(revision)

    def join(self, watch: WatchStream) -> None:
        self._watches.append(watch)

    def _tell(self, change: WatchEvent) -> None:
        for watch in self._watches:
            watch.feed([change])


class Api:
    """See the module."""

    def __init__(self, window: int = 1000) -> None:
        self.stored = Stored(window)
        resources = Resources(built_in_resources())
        self.server = ApiServer(self.stored, self.stored, self.stored.kernel.now, resources, MastersOnly())

    def ask(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, user: User = OWNER
    ) -> Response:
        """The answer to a request; its path may have a query."""
        answer = self._answer(method, path, body, headers or {}, user)
        assert isinstance(answer, Response)
        return answer

    def get(self, path: str, **headers: str) -> Any:
        """The body of what is found."""
        response = self.ask("GET", path, headers=headers)
        assert response.code == 200, response
        return response.body

    def post(self, path: str, obj: Mapping[str, Any]) -> Any:
        """The object that is made."""
        response = self.ask("POST", path, obj)
        assert response.code == 201, response
        return response.body

    def watch(self, path: str) -> WatchStream:
        """The watch of a path."""
        answer = self._answer("GET", path, None, {}, OWNER)
        assert isinstance(answer, WatchStream), answer
        return answer

    def _answer(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], user: User
    ) -> Response | WatchStream:
        place, _, text = path.partition("?")
        query = dict(part.partition("=")[::2] for part in text.split("&") if part)
        sent = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return self.server.handle(Request(method, place, query, headers, sent, user))


def config_map(name: str, **data: str) -> dict[str, Any]:
    """A ConfigMap, labelled with what it holds."""
    metadata = {"name": name, "labels": data}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
