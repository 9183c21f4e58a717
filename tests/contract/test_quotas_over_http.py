"""Who is admitted where, and who leaves for whom: decided alike in process and over HTTP, in two processes."""

from pathlib import Path

import pytest

from contract import scenes
from contract.places import play_both

SCENES = {
    "preemption": scenes.PREEMPTION,
    "borrowing": scenes.BORROWING,
    "in part": scenes.IN_PART,
    "fair sharing": scenes.FAIR_SHARING,
}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_of_quotas_ends_alike_wherever_admission_runs(name: str, tmp_path: Path) -> None:
    play_both(SCENES[name], tmp_path)
