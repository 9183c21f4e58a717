"""How `batchyard submit` says what happens."""

import json
from collections.abc import Mapping
from typing import Any

from batchyard.cli import output
from batchyard.cli.submit.story import Told


class Telling:
    """Says what happens: to people on standard error, with the logs on standard output; to programs as JSON lines."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json

    def tell(self, told: Told) -> None:
        """Something has happened."""
        if self._is_json:
            self._write({"event": told.event, **told.fields})
        else:
            output.tell(f"batchyard: {told.line}")

    def log(self, pod: str, line: str, *, of_several: bool) -> None:
        """A line of a log."""
        if self._is_json:
            self._write({"event": "Log", "pod": pod, "line": line})
        else:
            output.write(f"[{pod}] {line}\n" if of_several else f"{line}\n")

    def _write(self, event: Mapping[str, Any]) -> None:
        output.write(json.dumps(event, ensure_ascii=False) + "\n")
