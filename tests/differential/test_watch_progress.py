"""Lists determine whether watches have delivered all changes."""

from collections.abc import Callable

from batchyard.admission_plugins.built_in import new_namespace
from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.client.rest import ClientDependencies, RestClient, StalenessCheck
from batchyard.client.transport import HttpRequest, HttpResponse, RateLimit
from batchyard.controller_runtime.kernel import VirtualEventLoop
from differential.unreliable_transport import ConnectionFaults, UnreliableTransport
from unit.apiserver.api import Api


class DelayedWatchClient:
    """A client whose watch of namespaces has a delay of 5 s."""

    def __init__(self) -> None:
        self.kernel, self.api = VirtualEventLoop(0), Api()
        self.line = UnreliableTransport(self.kernel, self.api, ConnectionFaults(late={"namespaces": 5 * SECOND}))
        wiring = ClientDependencies(self.kernel, self.kernel, self.line, RateLimit(1000.0, 100), lambda: False)
        self.client = RestClient(wiring, (scheme.NAMESPACE, scheme.WORKLOAD))
        self.reported: list[int] = []
        self.caught_up = StalenessCheck(
            self.client, self.line, self.kernel, lambda: self.reported.append(self.kernel.now())
        )
        self.client.on_new_data = self.caught_up.on_informer_update
        self.client.start()
        self.pass_seconds(1)

    def pass_seconds(self, seconds: int) -> None:
        self.kernel.run(end_time=self.kernel.now() + seconds * SECOND)

    def known_after(self, change: Callable[[], object]) -> list[int]:
        """Make a change and ask for it at once; return the seconds after which the client is caught up."""
        change()
        begin = self.kernel.now()
        self.caught_up.request_check()
        self.pass_seconds(9)
        return [(when - begin) // SECOND for when in self.reported]


def test_delayed_watch_event_is_known_after_delay() -> None:
    watching = DelayedWatchClient()
    key = Key(scheme.NAMESPACE, "", "new")
    assert watching.known_after(lambda: watching.api.stored.store.put(key, new_namespace("new"))) == [5]
    assert watching.caught_up.caught_up_to >= SECOND


def test_deletion_is_known_after_delayed_watch_event() -> None:
    watching = DelayedWatchClient()
    key = Key(scheme.NAMESPACE, "", "other")
    assert watching.known_after(lambda: watching.api.stored.store.delete(key)) == [5]


def test_unchanged_server_is_caught_up_at_once() -> None:
    assert DelayedWatchClient().known_after(lambda: None) == [0]


def test_rejected_list_is_retried() -> None:
    watching, refused = DelayedWatchClient(), [HttpResponse(500), HttpResponse(429)]

    def trouble(_request: HttpRequest) -> HttpResponse | None:
        return refused.pop() if refused else None

    watching.line.trouble = trouble
    (after,) = watching.known_after(lambda: None)
    assert (after > 0, refused) == (True, [])
