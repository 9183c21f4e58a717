"""The command `promote`, and the folders that `up` refuses to serve because another platform may do so."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from batchyard.cli.app import app
from batchyard.server.platform.data_dir import JOURNAL_FILE
from batchyard.server.replication import terms
from batchyard.store.journal import RevisionJournal


def run(*arguments: str, code: int) -> str:
    """Run a command, and return its output."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(RevisionJournal(tmp_path / JOURNAL_FILE)):
        pass
    return tmp_path


@pytest.mark.parametrize("fields", [{"is_shared": True, "partner": "b"}, {"has_claim": True}])
def test_shared_folder_is_served_only_after_promotion(folder: Path, fields: dict[str, Any]) -> None:
    state = terms.ReplicationState("a").with_term(3, 0)
    terms.write_state(folder, state._replace(**fields))
    reported = run("up", "--data-dir", str(folder), code=1)
    assert "is shared with a standby or primary, which may serve; add --standby or --follow" in reported
    assert "serves alone from its next start" in run("promote", "--data-dir", str(folder), code=0)
    assert terms.read_state(folder) == state


def test_folder_without_a_journal_is_not_promoted(tmp_path: Path) -> None:
    assert "contains no journal" in run("promote", "--data-dir", str(tmp_path), code=1)


def test_open_journal_without_a_state_file_is_not_promoted(folder: Path) -> None:
    with closing(RevisionJournal(folder / JOURNAL_FILE)):
        assert "another process has the journal open" in run("promote", "--data-dir", str(folder), code=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--witness", "w"], "--witness requires --standby or --follow"),
        (["--standby", "sync", "--insecure-loopback"], "a standby needs TLS and credentials"),
        (["--follow", "http://host:1"], "use a URL that begins with https://"),
    ],
)
def test_options_that_do_not_fit_are_rejected(tmp_path: Path, options: list[str], message: str) -> None:
    assert message in run("up", "--data-dir", str(tmp_path / "new"), *options, code=2).replace("│ ", "")
