"""Log records as text lines and as JSON lines."""

import json
import logging
import sys

from batchyard.server.logging.logs import JsonFormatter, TextFormatter


def record(level: int, **fields: object) -> logging.LogRecord:
    created = logging.LogRecord("batchyard.decisions", level, "f.py", 1, "%s is", ("it",), None)
    created.created = 1.25
    created.fields = fields
    return created


def test_json_line_contains_fields_of_record() -> None:
    reported = json.loads(JsonFormatter().format(record(logging.INFO, decision=7, regarding={"name": "x"})))
    assert reported == {
        "time": "1970-01-01T00:00:01.250000Z",
        "level": "info",
        "logger": "batchyard.decisions",
        "message": "it is",
        "decision": 7,
        "regarding": {"name": "x"},
    }


def test_json_line_contains_traceback_in_one_line() -> None:
    created = record(logging.ERROR)
    try:
        int("wrong")
    except ValueError:
        created.exc_info = sys.exc_info()
    reported = JsonFormatter().format(created)
    assert "\n" not in reported
    assert "ValueError: invalid literal" in json.loads(reported)["error"]


def test_text_line_has_time_and_level_only_below_warning() -> None:
    assert TextFormatter().format(record(logging.INFO)) == "1970-01-01T00:00:01.250000Z info it is"
    assert TextFormatter().format(record(logging.WARNING)) == "it is"
