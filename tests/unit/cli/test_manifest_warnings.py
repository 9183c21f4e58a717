"""The warnings about manifests: deprecated versions are one line, unless all are requested."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from batchyard.cli.manifest_warnings import WARNINGS_SHOWN_MAX, warning_lines

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]
FLAVOR = "apiVersion: kueue.x-k8s.io/v1beta1\nkind: ResourceFlavor\nmetadata: {{name: {}}}\n"
DEPRECATED = "This version is deprecated. Use v1beta2 instead."


@pytest.mark.parametrize(
    ("count", "summary"),
    [
        (1, "1 object uses a deprecated version; --verbose names it"),
        (3, "3 objects use deprecated versions; --verbose lists them"),
    ],
)
def test_deprecated_versions_are_one_line(batchyard: Batchyard, tmp_path: Path, count: int, summary: str) -> None:
    (tmp_path / "f.yaml").write_text("---\n".join(map(FLAVOR.format, "abc"[:count])), "utf-8")
    lines = batchyard("simulate", tmp_path).stderr.splitlines()
    assert [line for line in lines if line.startswith("warning")] == [f"warning: {summary}"]
    verbose_lines = batchyard("simulate", tmp_path, "--verbose").stderr.splitlines()
    assert [line for line in verbose_lines if line.startswith("warning")] == [
        f"warning: {tmp_path}/f.yaml:{1 + 4 * number} ResourceFlavor/{name}: {DEPRECATED}"
        for number, name in enumerate("abc"[:count])
    ]


def test_other_warnings_are_listed_up_to_a_maximum() -> None:
    others = [f"f.yaml:{number} x" for number in range(WARNINGS_SHOWN_MAX + 2)]
    lines = warning_lines([*others, f"f.yaml:1 y: {DEPRECATED}"], is_verbose=False)
    assert lines[:WARNINGS_SHOWN_MAX] == [f"warning: {other}" for other in others[:WARNINGS_SHOWN_MAX]]
    assert lines[WARNINGS_SHOWN_MAX:] == [
        "warning: and 2 more; --verbose lists them",
        "warning: 1 object uses a deprecated version; --verbose names it",
    ]
    assert warning_lines(others, is_verbose=True) == [f"warning: {other}" for other in others]
