"""What docs/compatibility.md says of kinds and tests is so."""

import re
from pathlib import Path

from batchyard.api.scheme import KINDS

ROOT = Path(__file__).parents[2]
TOLD = (ROOT / "docs/compatibility.md").read_text("utf-8")


def test_the_kinds_that_are_kept_are_those_that_nothing_is_done_for() -> None:
    kept = re.search(r"<!-- kept -->\n(.*?)<!-- end -->", TOLD, re.DOTALL)
    assert kept is not None
    assert re.findall(r"\w+", kept[1]) == sorted(info.kind for info in KINDS if info.is_idle)


def test_the_tests_that_are_named_are_there() -> None:
    named = dict.fromkeys(re.findall(r"`(tests/[\w/.]+|test_\w+\.py)`", TOLD))
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in named if not (ROOT / name).exists() and name not in files] == []


def test_the_versions_of_clients_are_those_that_the_tests_run_with() -> None:
    pinned = (ROOT / "requirements.lock").read_text("utf-8")
    for client in ("kubernetes", "kr8s", "lightkube"):
        version = re.search(rf"^{client}==(\S+)", pinned, re.MULTILINE)
        assert version is not None
        assert re.search(rf"^\| {client}( \(Python\))? \| {re.escape(version[1])} \|", TOLD, re.MULTILINE)
