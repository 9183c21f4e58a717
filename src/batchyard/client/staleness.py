"""Staleness check: lists the server's objects and compares them with the cache, to find out when watches have caught
up.

Each watch may be late by a different time, and bookmarks arrive only about once a minute. A list is not late. A watch
has caught up with it once it has reached its revision. It has also caught up once the cache holds all listed objects,
in the same or a later revision, and no others. Source: Kubernetes API concepts, "Resource versions" (a list without a
resourceVersion returns the most recent state).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from batchyard.api.meta import Key
from batchyard.base.instant import SECOND, Instant
from batchyard.client.informer import Informer
from batchyard.client.resource_paths import key_in, revision_of
from batchyard.client.rest import RestClient
from batchyard.client.transport import HttpAnswer, Transport
from batchyard.client.writes import list_in
from batchyard.interfaces.client import Reader
from batchyard.interfaces.controller import Kernel

#: The minimum time between two checks.
_PAUSE: Final = SECOND


class StalenessCheck:
    """The state of the check. A callback runs when `known_to` advances."""

    def __init__(self, client: RestClient, transport: Transport, timers: Kernel, caught_up: Callable[[], None]) -> None:
        self._client = client
        self._transport = transport
        self._timers = timers
        self._on_caught_up = caught_up
        #: All changes before this time have been received.
        self.known_to: Instant = 0
        self._is_asking = False
        self._asked_at: Instant = 0
        #: The listed objects of each kind whose watch has not caught up yet.
        self._open: dict[str, _ListedObjects] = {}

    def ask(self) -> None:
        """Start a check, unless one is running."""
        if not self._is_asking:
            self._is_asking = True
            self._timers.call_at(max(self._timers.now(), self._asked_at + _PAUSE), self._ask_all)

    def heard(self, informer: Informer) -> None:
        """Process a report of an informer: a list or a watch event has arrived."""
        listed = self._open.get(informer.info.constant)
        if listed is not None and listed.is_known(informer, self._client):
            del self._open[informer.info.constant]
            if not self._open:
                self._is_asking, self.known_to = False, self._asked_at
                self._on_caught_up()

    def _ask_all(self) -> None:
        self._asked_at = self._timers.now()
        self._open = {kind: _ListedObjects() for kind in self._client.informers}
        for informer in self._client.informers.values():
            self._ask(informer, "")

    def _ask(self, informer: Informer, token: str) -> None:
        self._transport.send(informer.look(token), partial(self._answered, informer))

    def _answered(self, informer: Informer, answer: HttpAnswer) -> None:
        """Process a page of a list; if the request failed, restart the list, unless the kind is not served."""
        listed = self._open[informer.info.constant]
        page = list_in(answer)
        if page is not None and (token := listed.take_in(informer, page)):
            self._ask(informer, token)
        elif page is not None or not informer.is_served:
            listed.is_whole = True
            self.heard(informer)
        else:
            listed.revisions.clear()
            self._timers.call_at(self._timers.now() + _PAUSE, partial(self._ask, informer, ""))


class _ListedObjects:
    """The objects of one kind that the server listed."""

    def __init__(self) -> None:
        self.revisions: dict[Key, int] = {}
        self.revision = 0
        self.is_whole = False
        #: The listed keys that the cache did not have at the last comparison, once compared.
        self._missing: list[Key] | None = None

    def take_in(self, informer: Informer, page: Mapping[str, Any]) -> str:
        """Add a page; return the continue token of the next, '' after the last."""
        for item in page.get("items") or ():
            self.revisions[key_in(informer.info, item)] = revision_of(item)
        self.revision = revision_of(page)
        return (page.get("metadata") or {}).get("continue") or ""

    def is_known(self, informer: Informer, known: Reader) -> bool:
        """Report whether the watch has received all listed objects."""
        if not self.is_whole:
            return False
        if not informer.is_served or (informer.revision or 0) >= self.revision:
            return True
        if self._missing is None:
            found = (key_in(informer.info, obj) for obj in known.list(informer.info.constant))
            self._missing = list(dict.fromkeys([*self.revisions, *found]))
        self._missing = [key for key in self._missing if not self._is_as_known(key, known)]
        return not self._missing

    def _is_as_known(self, key: Key, known: Reader) -> bool:
        obj = known.get(key)
        if key in self.revisions:
            return obj is not None and revision_of(obj) >= self.revisions[key]
        return obj is None or revision_of(obj) > self.revision
