"""`batchyard simulate` in this process: its remarks and its progress."""

import dataclasses
import io
import re
from pathlib import Path

import pytest

from batchyard import simulate
from batchyard.cli.output import fraction_done, run_with_progress
from batchyard.cli.simulation_output import REMARKS_SHOWN_MAX, format_go_duration, run_remarks
from batchyard.sim.simulate import Simulation, read_scenario

ROOT = Path(__file__).parents[4]
PREEMPTION = ROOT / "examples" / "preemption"
LIVELOCK = ROOT / "tests" / "unit" / "sim" / "livelock.yaml"
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b%s}\n"


class Terminal(io.StringIO):
    """A terminal that records its output."""

    def isatty(self) -> bool:
        """Return true."""
        return True


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0s"), (0.25, "250ms"), (59.5, "59.5s"), (60, "1m"), (3723, "1h2m3s"), (90000, "25h"), (1e-6, "1µs")],
)
def test_durations_are_formatted_like_go_durations(seconds: float, expected: str) -> None:
    assert format_go_duration(seconds) == expected


def test_repeated_loop_is_reported_once_with_count() -> None:
    result = simulate(LIVELOCK)
    twice = dataclasses.replace(result, loops=[*result.loops, *result.loops])
    (loop,) = [line for line in run_remarks(twice) if line.startswith("loop: ")]
    assert (len(result.loops), loop.endswith("(found 2 times)")) == (1, True)


def test_rejections_are_listed_up_to_limit() -> None:
    delete = ", annotations: {batchyard.dev/delete-at: %ds}"
    documents = [CONFIG_MAP % (delete % second) for second in range(1, REMARKS_SHOWN_MAX + 5)]
    lines = [line for line in run_remarks(simulate("---\n".join(documents))) if line.startswith("rejected: ")]
    assert lines[0] == 'rejected: delete ConfigMap b/a: NotFound: ConfigMap "b/a" not found'
    assert len(lines) == REMARKS_SHOWN_MAX + 1
    assert lines[-1] == "rejected: and 3 more"


def test_progress_stays_below_one_until_end() -> None:
    scenario, _ = read_scenario([PREEMPTION])
    simulation = Simulation(scenario)
    seen = [fraction_done(simulation)]
    while simulation.advance(10):
        seen.append(fraction_done(simulation))
    assert seen[0] == 0
    assert max(seen) > 0.5
    assert all(0 <= fraction < 1 for fraction in seen)


def test_short_run_shows_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    scenario, _ = read_scenario([PREEMPTION])
    simulation = Simulation(scenario)
    run_with_progress(simulation)
    assert terminal.getvalue() == ""
    assert simulation.result().duration == 210


def test_long_run_shows_progress_bar_and_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("batchyard.cli.output.PROGRESS_DELAY_SECONDS", 0.0)
    monkeypatch.setattr("batchyard.cli.output.STEPS_PER_UPDATE", 20)
    scenario, _ = read_scenario([PREEMPTION])
    simulation = Simulation(scenario)
    run_with_progress(simulation)
    assert re.search(r"of virtual time \(\w+/s\), \d of 6 placed \([\d,]+/s\), about \w+ left", terminal.getvalue())
    assert simulation.result().objects == simulate(PREEMPTION).objects
