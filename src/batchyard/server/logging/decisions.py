"""Decision log: numbers, logs and stores the decisions of the controllers.

A decision that is repeated for an object is recorded once. Each is a line in the log `batchyard.decisions` at level
`info`, with its number.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.api.meta import Key
from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.base.lru import LruCache
from batchyard.controller_runtime.events import component_of
from batchyard.controller_runtime.runner import EventSink
from batchyard.interfaces.controller import EventRecord
from batchyard.interfaces.observers import DecisionRecord

_LOG: Final = logging.getLogger("batchyard.decisions")


class DecisionLog:
    """The number of the last decision, and the last decision of each object. An EventSink that delegates to another."""

    def __init__(self, sink: EventSink, keep: Callable[[DecisionRecord], None], last: int = 0) -> None:
        self._sink = sink
        self._keep = keep
        self._number = last
        self._recorded: LruCache[Key, tuple[str, str]] = LruCache()

    def __call__(self, now: Instant, controller: str, record: EventRecord) -> None:
        """Record a decision, and pass it on to the sink."""
        self._sink(now, controller, record)
        regarding, type_, reason, message, details = record
        if self._recorded.recall(regarding) == (reason, message):
            return
        self._recorded.remember(regarding, (reason, message))
        self._number += 1
        recorded_details = {} if details is None else details()
        entry = DecisionRecord(
            self._number, now, component_of(controller), regarding, type_, reason, message, recorded_details
        )
        if _LOG.isEnabledFor(logging.INFO):
            _LOG.info("%s %s: %s", reason, regarding, message, extra={"fields": _fields(entry)})
        self._keep(entry)


def keep_nothing(_entry: DecisionRecord) -> None:
    """Discard the decision: there is no ledger."""


def _fields(entry: DecisionRecord) -> Mapping[str, Any]:
    """Return the structured fields of a log line."""
    kind, namespace, name = entry.regarding
    regarding = {"kind": kind.partition(".")[0], "namespace": namespace, "name": name}
    about = {"decision": entry.number, "at": format_time(entry.at), "component": entry.component}
    return {**about, "regarding": regarding, "reason": entry.reason, "details": entry.details}
