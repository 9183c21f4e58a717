"""Killed processes and broken connections do not change the outcome."""

from pathlib import Path

from contract import scenes
from contract.environments import HttpEnvironment, SimulatedEnvironment
from contract.proxy import CuttableProxy


def test_killed_and_restarted_platform_has_same_outcome(tmp_path: Path) -> None:
    *earlier, preempts, last = scenes.PREEMPTION.steps
    near = SimulatedEnvironment(scenes.PREEMPTION)
    with HttpEnvironment(tmp_path, scenes.PREEMPTION) as far:
        for step in earlier:
            far.play(step, near.play(step))
        near.play(preempts)
        far.apply(preempts)
        far.kill_platform()  # time continues meanwhile
        far.play(last, near.play(last))
        far.operator.wait_until("recovered")


def test_killed_and_replaced_operator_has_same_outcome(tmp_path: Path) -> None:
    near = SimulatedEnvironment(scenes.FAILING)
    with HttpEnvironment(tmp_path, scenes.FAILING) as far:
        for number, step in enumerate(scenes.FAILING.steps):
            far.apply(step)
            if number >= 2:
                far.kill_operator()
            far.wait_for(near.play(step))


def test_interrupted_connection_loses_no_changes(tmp_path: Path) -> None:
    near = SimulatedEnvironment(scenes.BORROWING)
    with HttpEnvironment(tmp_path, scenes.BORROWING) as far, CuttableProxy(far.port) as cable:
        far.operate_at(cable.url)
        for step in scenes.BORROWING.steps:
            cable.cut()
            far.apply(step)
            cable.join()
            far.wait_for(near.play(step))
