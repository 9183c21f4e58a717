"""The guide with operators whose leader is killed: a small version of tools/operator_kills.py."""

import shutil
from pathlib import Path

import pytest

from batchyard.sim.guide import Guide, examples_folder, guide_steps_up_to
from e2e_platform.leader_kills import play_killed_guide


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
def test_guide_has_no_double_decisions_or_denied_requests_with_killed_leaders(tmp_path: Path) -> None:
    folder, steps = examples_folder(), guide_steps_up_to("low-priority")
    assert folder is not None
    result = play_killed_guide(Guide(folder, steps), steps, tmp_path, 2, 60.0)
    assert result.faults == []
    assert result.kills >= 1
    assert result.workloads > 10
