"""Whether watches have told of all that there is: the server is asked what it has, and that is held against the cache.

A watch may be late, each by a time of its own, and bookmarks tell so about once a minute only. A list is not late: a
watch has caught up with it once it has come to its revision, or all that was listed is known, in that revision or a
later one, and nothing besides. Source: Kubernetes API concepts, "Resource versions" (a list that names none is of what
is there now).
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

#: How long after one question the next may follow.
_PAUSE: Final = SECOND


class CaughtUp:
    """See the module. `told` is called when it is found out anew up to when all is known."""

    def __init__(self, client: RestClient, transport: Transport, timers: Kernel, told: Callable[[], None]) -> None:
        self._client = client
        self._transport = transport
        self._timers = timers
        self._told = told
        #: All that happened before has been told.
        self.known_to: Instant = 0
        self._is_asking = False
        self._asked_at: Instant = 0
        #: What the server has, by kind, of kinds whose watches have not caught up with it.
        self._open: dict[str, _Listed] = {}

    def ask(self) -> None:
        """Find out, unless that is under way."""
        if not self._is_asking:
            self._is_asking = True
            self._timers.call_at(max(self._timers.now(), self._asked_at + _PAUSE), self._ask_all)

    def heard(self, informer: Informer) -> None:
        """A list or a watch has told something."""
        listed = self._open.get(informer.info.constant)
        if listed is not None and listed.is_known(informer, self._client):
            del self._open[informer.info.constant]
            if not self._open:
                self._is_asking, self.known_to = False, self._asked_at
                self._told()

    def _ask_all(self) -> None:
        self._asked_at = self._timers.now()
        self._open = {kind: _Listed() for kind in self._client.informers}
        for informer in self._client.informers.values():
            self._ask(informer, "")

    def _ask(self, informer: Informer, token: str) -> None:
        self._transport.send(informer.look(token), partial(self._answered, informer))

    def _answered(self, informer: Informer, answer: HttpAnswer) -> None:
        """A page of a list; where there is none it is begun again, unless the kind is not served at all."""
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


class _Listed:
    """What the server has of a kind."""

    def __init__(self) -> None:
        self.revisions: dict[Key, int] = {}
        self.revision = 0
        self.is_whole = False
        #: What was found not to be known, if that was looked for.
        self._missing: list[Key] | None = None

    def take_in(self, informer: Informer, page: Mapping[str, Any]) -> str:
        """A page; by which token the next is asked for, '' where it is the last."""
        for item in page.get("items") or ():
            self.revisions[key_in(informer.info, item)] = revision_of(item)
        self.revision = revision_of(page)
        return (page.get("metadata") or {}).get("continue") or ""

    def is_known(self, informer: Informer, known: Reader) -> bool:
        """Whether the watch has told of all of it."""
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
