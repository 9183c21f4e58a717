"""The guide of the reference architecture, played by kubectl against a platform that runs: its first step."""

import shutil
from collections.abc import Iterator

import pytest

from batchyard.api.scheme import JOB
from batchyard.cli.live_guide import LiveGuide, platform
from batchyard.sim.guide import Guide, Seen, cluster_file, examples_folder, played_steps

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[Seen, LiveGuide]]:
    """What is to be seen after the first step, and the guide, which can still be asked."""
    folder, steps = examples_folder(), played_steps("low-priority")
    assert folder is not None
    with platform(cluster_file(folder), 60.0) as started:
        live = LiveGuide(Guide(folder, steps), started)
        (seen,) = live.play(steps)
        yield seen, live


def test_all_low_priority_jobs_are_admitted(played: tuple[Seen, LiveGuide]) -> None:
    seen, live = played
    done = sum(bool(job["status"].get("completionTime")) for job in live.objects(JOB))
    assert len(live.objects(JOB)) == 16
    assert sum(row.pending for row in seen.rows.values()) == 0
    assert sum(row.admitted for row in seen.rows.values()) + done >= 16


def test_the_reserved_nodes_are_used_and_spot_nodes_are_made(played: tuple[Seen, LiveGuide]) -> None:
    seen, live = played
    assert live.initial["reserved-np"] == seen.pools["reserved-np"] == 4
    assert seen.pools["spot-np"] > 16
