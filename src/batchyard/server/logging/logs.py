"""Log output of a process: text lines, or JSON lines with structured fields.

error     a defect in batchyard, or lost data
warning   something is missing or fails
info      each decision, with its number in the decision ledger
debug     each scheduling cycle
"""

import logging
import sys
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.times import format_micro_time
from batchyard.base.instant import Instant

LEVELS: Final = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
_MICROSECONDS: Final = 1_000_000
_encode = msgspec.json.Encoder(enc_hook=str).encode


class LogSettings(NamedTuple):
    """The log level and format."""

    level: str = "warning"
    is_json: bool = False


def begin(settings: LogSettings) -> None:
    """Configure logging to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.is_json else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    logging.getLogger("batchyard").setLevel(LEVELS[settings.level])


class TextFormatter(logging.Formatter):
    """Text format: the bare message of warnings and errors; below that, also time and level."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line, followed by the traceback if it has one."""
        text = super().format(record)
        if record.levelno >= logging.WARNING:
            return text
        return f"{_time(record)} {record.levelname.lower()} {text}"


class JsonFormatter(logging.Formatter):
    """JSON format: time, level, logger, message, and the fields of a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line."""
        text: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            text["error"] = self.formatException(record.exc_info)
        return _encode(text).decode()


def _time(record: logging.LogRecord) -> str:
    instant: Instant = int(record.created * _MICROSECONDS)
    return format_micro_time(instant)
