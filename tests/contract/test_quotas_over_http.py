"""Admission and preemption decisions are the same in process and over HTTP, in two processes."""

from pathlib import Path

import pytest

from contract import scenes
from contract.environments import play_both

SCENES = {
    "preemption": scenes.PREEMPTION,
    "borrowing": scenes.BORROWING,
    "in part": scenes.IN_PART,
    "fair sharing": scenes.FAIR_SHARING,
}


@pytest.mark.parametrize("name", SCENES)
def test_quota_scene_has_same_outcome_in_process_and_over_http(name: str, tmp_path: Path) -> None:
    play_both(SCENES[name], tmp_path)
