"""Logs of a process: formats of log lines, and the logs of scheduling cycles, decisions and audited requests.

Levels of log lines:
error     a defect in batchyard, or lost data
warning   a missing feature, or a failed operation
info      each decision, with its number in the decision ledger
debug     each scheduling cycle
"""

import errno
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.meta import Key
from batchyard.api.times import format_micro_time, format_time
from batchyard.apiserver.request import DeferredResponse
from batchyard.apiserver.server import AuditedRequest, audit_event
from batchyard.base.instant import Instant
from batchyard.base.primitives import LruCache, uid_for
from batchyard.controller_runtime.events import component_of
from batchyard.controller_runtime.runner import EventSink
from batchyard.interfaces.controller import DecisionRecord, EventRecord, TraceSpan
from batchyard.scheduling.controller import CycleObserver
from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Decision
from batchyard.server.clocks.wall import wall_clock

LOG_LEVELS: Final = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_MICROSECONDS_PER_SECOND: Final = 1_000_000
_encode = msgspec.json.Encoder(enc_hook=str).encode


class LogSettings(NamedTuple):
    """The level and the format (text or JSON) of the process's logs."""

    level: str = "warning"
    is_json: bool = False


def configure_logging(settings: LogSettings) -> None:
    """Configure the process's logging to standard error with these settings."""
    stderr_handler = logging.StreamHandler(sys.stderr)
    stderr_handler.setFormatter(JsonFormatter() if settings.is_json else TextFormatter())
    root = logging.getLogger()
    root.handlers = [stderr_handler]
    logging.getLogger("batchyard").setLevel(LOG_LEVELS[settings.level])


class TextFormatter(logging.Formatter):
    """The text format of log lines: warnings and errors without time and level, all other messages with them."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as a text line, followed by its traceback if it has one."""
        text = super().format(record)
        if record.levelno >= logging.WARNING:
            return text
        return f"{_format_record_time(record)} {record.levelname.lower()} {text}"


class JsonFormatter(logging.Formatter):
    """The JSON format of log lines: time, level, logger, message, structured fields, and the traceback as `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as a JSON line."""
        document: dict[str, Any] = {
            "time": _format_record_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return _encode(document).decode()


def _format_record_time(record: logging.LogRecord) -> str:
    instant: Instant = int(record.created * _MICROSECONDS_PER_SECOND)
    return format_micro_time(instant)


# Scheduling cycles: logged at level `debug`, and exported as traces.
#
# Times are real time, independent of the platform's speed, because they measure the cost of a cycle.


_LOG: Final = logging.getLogger("batchyard.cycles")
_OUTCOMES: Final = {"Admit": "admitted", "Preempt": "preempting", "StayPending": "waiting"}
_SPAN_ID_LENGTH: Final = 16


class CycleLog:
    """A CycleObserver that logs each scheduling cycle, exports it as a trace, and notifies another observer."""

    def __init__(self, observer: CycleObserver, emit: Callable[[TraceSpan], None] | None) -> None:
        self._observer = observer
        self._emit = emit
        self._began_at: Instant = 0
        self._decided_at: Instant = 0

    def begin(self) -> None:
        """Record the start of a scheduling cycle."""
        self._began_at = wall_clock()
        self._observer.begin()

    def end_decisions(self) -> None:
        """Record that the scheduler has decided for all Workloads of the cycle, and starts to apply the decisions."""
        self._observer.end_decisions()
        self._decided_at = wall_clock()

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Log the completed scheduling cycle with the number of its decisions by outcome, and export it as a trace."""
        self._observer.end(cycle, decisions)
        is_debug_enabled = _LOG.isEnabledFor(logging.DEBUG)
        if not is_debug_enabled and self._emit is None:
            return
        ended_at, outcome_counts = wall_clock(), Counter(_OUTCOMES[type(decision).__name__] for decision in decisions)
        counts_by_outcome = {outcome: outcome_counts[outcome] for outcome in _OUTCOMES.values()}
        counters = {"cycle": cycle.number, "heads": len(decisions), **counts_by_outcome}
        if is_debug_enabled:
            durations = {"decided_us": self._decided_at - self._began_at, "applied_us": ended_at - self._decided_at}
            _LOG.debug("cycle %d: %s", cycle.number, _format_counters(counters), extra={"fields": counters | durations})
        if self._emit is not None:
            for span in self._cycle_spans(counters, ended_at):
                self._emit(span)

    def _cycle_spans(self, counters: Mapping[str, int], ended_at: Instant) -> Sequence[TraceSpan]:
        ids = [uid_for(self._began_at, str(counters["cycle"]), key).replace("-", "") for key in ("", "root", "1", "2")]
        trace_id, (root_id, decide_id, apply_id) = ids[0], (full_id[:_SPAN_ID_LENGTH] for full_id in ids[1:])
        return (
            TraceSpan(trace_id, decide_id, root_id, "decide", self._began_at, self._decided_at, {}),
            TraceSpan(trace_id, apply_id, root_id, "apply", self._decided_at, ended_at, {}),
            TraceSpan(trace_id, root_id, "", "scheduling cycle", self._began_at, ended_at, counters),
        )


def _format_counters(counters: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counters.items() if name != "cycle")


# Decision log: numbers, logs and stores the decisions of the controllers.
#
# A decision that is repeated for an object is recorded once. Each decision is a line of the logger
# `batchyard.decisions` at level `info`, with its number.


_DECISION_LOG: Final = logging.getLogger("batchyard.decisions")


class DecisionLog:
    """An EventSink that numbers, logs and stores the controllers' decisions, and passes them to another EventSink."""

    def __init__(self, sink: EventSink, store_entry: Callable[[DecisionRecord], None], last_number: int = 0) -> None:
        self._sink = sink
        self._store_entry = store_entry
        self._number = last_number
        self._last_messages: LruCache[Key, tuple[str, str]] = LruCache()

    def __call__(self, now: Instant, controller: str, record: EventRecord) -> None:
        """Pass a decision on as an Event; log and store it, unless it repeats the last decision about its object."""
        self._sink(now, controller, record)
        object_key, type_, reason, message, make_details = record
        if self._last_messages.get(object_key) == (reason, message):
            return
        self._last_messages.put(object_key, (reason, message))
        self._number += 1
        details = {} if make_details is None else make_details()
        entry = DecisionRecord(self._number, now, component_of(controller), object_key, type_, reason, message, details)
        if _DECISION_LOG.isEnabledFor(logging.INFO):
            _DECISION_LOG.info("%s %s: %s", reason, object_key, message, extra={"fields": _log_fields(entry)})
        self._store_entry(entry)


def discard_decision(_entry: DecisionRecord) -> None:
    """Do nothing with a decision: the sink of a process without a decision ledger."""


def _log_fields(entry: DecisionRecord) -> Mapping[str, Any]:
    kind, namespace, name = entry.regarding
    object_fields = {"kind": kind.partition(".")[0], "namespace": namespace, "name": name}
    decision_fields = {"decision": entry.number, "at": format_time(entry.at), "component": entry.component}
    return {**decision_fields, "regarding": object_fields, "reason": entry.reason, "details": entry.details}


# Audit log: a file of JSON lines that only its owner can read, rotated by size.


#: At this size in bytes the file is renamed to FILE.1, replacing the previous one.
AUDIT_LOG_SIZE_MAX: Final = 100 * 1024 * 1024
_AUDIT_LOG: Final = logging.getLogger("batchyard.audit")
_encode_audit = msgspec.json.Encoder().encode


class AuditLog:
    """The audit log of the API server: a file with a JSON line for each answered request, rotated by size."""

    def __init__(self, path: Path, size_max: int = AUDIT_LOG_SIZE_MAX) -> None:
        self._path = path
        self._size_max = size_max
        self._count = 0
        self._file = _open_audit_file(path)

    def record(self, audited_request: AuditedRequest) -> None:
        """Write the audit event of an answered request. If that fails, log the error and lose the event.

        A request with a deferred response is ignored: the API server audits it again with the final response.
        """
        if isinstance(audited_request.response, DeferredResponse):
            return
        self._count += 1
        line = _encode_audit(audit_event(audited_request, wall_clock(), self._count)) + b"\n"
        try:
            self._write(line)
        except OSError as error:
            reason = f"{error.strerror or error}; check its permissions and the free disk space"
            _AUDIT_LOG.error("an event could not be written to the audit log %s and is lost: %s", self._path, reason)

    def close(self) -> None:
        """Close the file of the audit log."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        """Write a line to the audit log, completely or not at all. Raises OSError."""
        end = self._file.tell()
        if end + len(line) > self._size_max:
            self._rotate()
            end = 0
        if self._file.write(line) != len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rotate(self) -> None:
        with suppress(FileNotFoundError):  # already renamed, but opening the new file failed
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        audit_file = _open_audit_file(self._path)
        self._file.close()
        self._file = audit_file


def _open_audit_file(path: Path) -> FileIO:
    return FileIO(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a")
