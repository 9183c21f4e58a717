"""Sudden ends and broken wires change nothing in how things end."""

from pathlib import Path

from contract import scenes
from contract.cable import Cable
from contract.places import InProcess, OverHttp


def test_a_platform_that_is_killed_and_comes_back_ends_alike(tmp_path: Path) -> None:
    *earlier, preempts, last = scenes.PREEMPTION.steps
    near = InProcess(scenes.PREEMPTION)
    with OverHttp(tmp_path, scenes.PREEMPTION) as far:
        for step in earlier:
            far.play(step, near.play(step))
        near.play(preempts)
        far.apply(preempts)
        far.kill_platform()  # while time goes on, for those who come back
        far.play(last, near.play(last))
        far.operator.wait_until("recovered")


def test_an_operator_that_is_killed_and_another_that_comes_end_alike(tmp_path: Path) -> None:
    near = InProcess(scenes.FAILING)
    with OverHttp(tmp_path, scenes.FAILING) as far:
        for number, step in enumerate(scenes.FAILING.steps):
            far.apply(step)
            if number >= 2:
                far.kill_operator()
            far.wait_for(near.play(step))


def test_a_wire_that_is_cut_and_joined_again_loses_nothing(tmp_path: Path) -> None:
    near = InProcess(scenes.BORROWING)
    with OverHttp(tmp_path, scenes.BORROWING) as far, Cable(far.port) as cable:
        far.operate_at(cable.url)
        for step in scenes.BORROWING.steps:
            cable.cut()
            far.apply(step)
            cable.join()
            far.wait_for(near.play(step))
