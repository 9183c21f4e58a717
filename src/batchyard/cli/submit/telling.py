"""The output of `batchyard submit`: messages and logs, as text or JSON lines."""

import json
from collections.abc import Mapping
from typing import Any

from batchyard.cli import output
from batchyard.cli.submit.story import ProgressMessage


class SubmitOutput:
    """Prints messages to standard error and logs to standard output; with `is_json` all as JSON lines to the latter."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json

    def report(self, reported: ProgressMessage) -> None:
        """Print a message."""
        if self._is_json:
            self._write({"event": reported.event, **reported.fields})
        else:
            output.report_line(f"batchyard: {reported.line}")

    def log(self, pod: str, line: str, *, of_several: bool) -> None:
        """Print a log line, prefixed by the pod if the Job has several."""
        if self._is_json:
            self._write({"event": "Log", "pod": pod, "line": line})
        else:
            output.write(f"[{pod}] {line}\n" if of_several else f"{line}\n")

    def _write(self, event: Mapping[str, Any]) -> None:
        output.write(json.dumps(event, ensure_ascii=False) + "\n")
