"""JobSets, requested machines and lost machines: the outcome is the same in process and over HTTP."""

from pathlib import Path

import pytest

from contract import scenes
from contract.environments import play_both

SCENES = {
    "a failing JobSet": scenes.FAILING,
    "provisioning": scenes.PROVISIONING,
    "hotswap": scenes.HOTSWAP,
    "topology": scenes.TOPOLOGY,
}


@pytest.mark.parametrize("name", SCENES)
def test_machine_scene_has_same_outcome_in_process_and_over_http(name: str, tmp_path: Path) -> None:
    play_both(SCENES[name], tmp_path)
