"""JobSets, machines that come on request and machines that are lost: all ends alike in process and over HTTP."""

from pathlib import Path

import pytest

from contract import scenes
from contract.places import play_both

SCENES = {"a failing JobSet": scenes.FAILING, "provisioning": scenes.PROVISIONING, "hotswap": scenes.HOTSWAP}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_of_machines_ends_alike_wherever_controllers_run(name: str, tmp_path: Path) -> None:
    play_both(SCENES[name], tmp_path)
