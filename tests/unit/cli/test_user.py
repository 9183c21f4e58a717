"""`batchyard user`, and options that `up` rejects together."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

Batchyard: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


def test_user_without_running_platform_is_rejected(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("user", "anna", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert "no platform runs in" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("system:admin",), "reserved"),
        (("anna", "--group", "system:masters"), "reserved"),
        (("../anna",), "contains / or starts with a dot"),
        ((".anna",), "contains / or starts with a dot"),
        (("",), "names of users and groups must not be empty"),
        (("an\nna",), "unprintable characters"),
        (("anna", "--group", "a\tb"), "unprintable characters"),
        (("a" * 65,), "certificates allow at most 64 characters"),
    ],
)
def test_reserved_or_invalid_user_names_are_rejected(
    batchyard: Batchyard, tmp_path: Path, arguments: tuple[str, ...], reported: str
) -> None:
    done = batchyard("user", *arguments, "--data-dir", tmp_path)
    assert done.returncode == 1
    assert reported in done.stderr


def test_insecure_loopback_rejects_other_addresses(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("up", "--insecure-loopback", "--listen", "0.0.0.0", "--data-dir", tmp_path / "none")
    assert done.returncode == 2
    assert not (tmp_path / "none").exists()
