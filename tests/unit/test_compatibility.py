"""docs/reference/compatibility.md names the right kinds, tests and client versions."""

import re
from pathlib import Path

from batchyard.api.scheme import KINDS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/reference/compatibility.md").read_text("utf-8")


def test_compatibility_document_lists_idle_kinds() -> None:
    kept = re.search(r"<!-- kept -->\n(.*?)<!-- end -->", DOCUMENT, re.DOTALL)
    assert kept is not None
    assert re.findall(r"\w+", kept[1]) == sorted(info.kind for info in KINDS if info.is_idle)


def test_tests_named_in_compatibility_document_exist() -> None:
    named = dict.fromkeys(re.findall(r"`(tests/[\w/.]+|test_\w+\.py)`", DOCUMENT))
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in named if not (ROOT / name).exists() and name not in files] == []


def test_compatibility_document_has_pinned_client_versions() -> None:
    pinned = (ROOT / "requirements.lock").read_text("utf-8")
    for client in ("kubernetes", "kr8s", "lightkube"):
        version = re.search(rf"^{client}==(\S+)", pinned, re.MULTILINE)
        assert version is not None
        assert re.search(rf"^\| {client}( \(Python\))? \| {re.escape(version[1])} \|", DOCUMENT, re.MULTILINE)
