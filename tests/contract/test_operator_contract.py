"""The same controllers decide the same in process and over HTTP, in two processes, with sudden ends between too."""

from pathlib import Path

import pytest

from contract import scenes
from contract.places import InProcess, OverHttp

SCENES = {
    "preemption": scenes.PREEMPTION,
    "borrowing": scenes.BORROWING,
    "fair sharing": scenes.FAIR_SHARING,
    "a failing JobSet": scenes.FAILING,
    "provisioning": scenes.PROVISIONING,
    "hotswap": scenes.HOTSWAP,
}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_ends_alike_wherever_the_controllers_run(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    near = InProcess(scene)
    with OverHttp(tmp_path, scene) as far:
        for step in scene.steps:
            far.play(step, near.play(step))
