"""The guide of the reference architecture, played by kubectl against a platform that runs: its first two steps."""

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from batchyard.cli.commands.guide import rows_of
from batchyard.cli.commands.live_guide import LiveGuide, platform
from batchyard.sim.guide import Guide, examples_folder, played_steps
from e2e_platform.running import Child

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
Rows = Mapping[str, str]


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[Guide, Rows, LiveGuide, Rows]]:
    """The guide and its rows, simulated and live; the latter can still be asked."""
    folder, steps = examples_folder(), played_steps("high-priority")
    assert folder is not None
    guide = Guide(folder, steps)
    simulated = rows_of(list(guide.play()), guide)
    with platform(guide.cluster, 60.0) as started:
        live = LiveGuide(guide, started, time_waits=True)
        seen = list(live.play(steps))
        yield guide, simulated, live, rows_of(seen, live)


def test_what_is_to_be_seen_is_what_the_simulation_shows(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    _, simulated, _, live = played
    assert live == simulated
    assert live["high-priority: cq-team-a-hp"] == "team-a-b StrictFIFO 2 2"


def test_no_timing_is_missed(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    _, _, live, _ = played
    assert live.timings.missed == []


def test_a_time_that_runs_on_faster_than_the_machine_is_told_with_each_row_that_differs() -> None:
    folder, steps = examples_folder(), played_steps("low-priority")
    assert folder is not None
    guide = Guide(folder, steps)
    simulated = rows_of(list(guide.play()), guide)
    with platform(guide.cluster, 3000.0) as started:
        live = LiveGuide(guide, started)
        found = rows_of(list(live.play(steps)), live)
        assert any(timing.what == "Job" for timing in live.timings.missed)
        assert all(row.is_explained for row in live.timings.differences(simulated, found))


def test_it_begins_with_the_same_nodes(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    guide, _, live, _ = played
    assert live.initial == guide.initial


def test_steps_come_when_they_are_due(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    guide, _, live, _ = played
    assert live.now() - live.began >= guide.now() - guide.began


def test_one_that_is_told_to_end_takes_its_platform_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Child("guide", "--live", "--step", "low-priority") as playing:
        states = iter(lambda: next(tmp_path.glob("*/data/kubeconfig"), None), 0)
        assert next(found for found in states if found is not None or playing.process.poll() is not None)
        playing.process.send_signal(signal.SIGTERM)
        assert playing.ended() == 130
    assert not list(tmp_path.glob("batchyard-guide-*"))
    found = subprocess.run(["pgrep", "--full", str(tmp_path)], capture_output=True, text=True, check=False)
    assert not found.stdout
