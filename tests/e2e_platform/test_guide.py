"""The first two steps of the guide of the reference architecture, played by kubectl on a running platform."""

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from batchyard.cli.commands.guide import guide_rows
from batchyard.cli.commands.live_guide import LiveGuide, run_platform_process
from batchyard.sim.guide import Guide, examples_folder, guide_steps_up_to
from e2e_platform.platform_process import Child

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
Rows = Mapping[str, str]


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[Guide, Rows, LiveGuide, Rows]]:
    """The guide and its rows, simulated and live."""
    folder, steps = examples_folder(), guide_steps_up_to("high-priority")
    assert folder is not None
    guide = Guide(folder, steps)
    simulated = guide_rows(list(guide.play()), guide)
    with run_platform_process(guide.cluster, 60.0) as started:
        live = LiveGuide(guide, started, stops_clock=True)
        seen = list(live.play(steps))
        yield guide, simulated, live, guide_rows(seen, live)


def test_live_guide_shows_same_rows_as_simulation(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    _, simulated, _, live = played
    assert live == simulated
    assert live["high-priority: cq-team-a-hp"] == "team-a-b StrictFIFO 2 2"


def test_live_guide_misses_no_timing(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    _, _, live, _ = played
    assert live.timings.missed_timings == []


def test_live_guide_explains_differing_rows_when_machine_is_too_slow() -> None:
    folder, steps = examples_folder(), guide_steps_up_to("low-priority")
    assert folder is not None
    guide = Guide(folder, steps)
    simulated = guide_rows(list(guide.play()), guide)
    with run_platform_process(guide.cluster, 3000.0) as started:
        live = LiveGuide(guide, started)
        result = guide_rows(list(live.play(steps)), live)
        assert any(timing.event_kind == "Job" for timing in live.timings.missed_timings)
        assert all(row.is_explained for row in live.timings.explain_differences(simulated, result))


def test_live_guide_starts_with_same_nodes_as_simulation(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    guide, _, live, _ = played
    assert live.initial_node_counts == guide.initial_node_counts


def test_live_guide_plays_steps_no_earlier_than_simulation(played: tuple[Guide, Rows, LiveGuide, Rows]) -> None:
    guide, _, live, _ = played
    assert live.now() - live.start_time >= guide.now() - guide.start_time


def test_live_guide_stops_its_platform_on_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Child("guide", "--live", "--step", "low-priority") as playing:
        states = iter(lambda: next(tmp_path.glob("*/data/kubeconfig"), None), 0)
        assert next(result for result in states if result is not None or playing.process.poll() is not None)
        playing.process.send_signal(signal.SIGTERM)
        assert playing.ended() == 130
    assert not list(tmp_path.glob("batchyard-guide-*"))
    result = subprocess.run(["pgrep", "--full", str(tmp_path)], capture_output=True, text=True, check=False)
    assert not result.stdout
