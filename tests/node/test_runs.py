"""Runs of containers as plain processes: their states, ends, logs."""

import os
import signal

from node.machine import Machine, container, is_alive, is_kept, reached, shell, state, until


def test_a_command_that_ends_well_is_completed(node: Machine) -> None:
    told = node.ended(container("echo", "hello"))
    assert (told["exitCode"], told["reason"], node.log()) == (0, "Completed", [("stdout", "F", "hello")])
    assert told["startedAt"] <= told["finishedAt"]


def test_a_command_that_fails_is_an_error_with_its_code(node: Machine) -> None:
    told = node.ended(shell("echo no >&2; exit 3"))
    assert (told["exitCode"], told["reason"], node.log()) == (3, "Error", [("stderr", "F", "no")])


def test_a_signal_is_told_as_128_and_its_number(node: Machine) -> None:
    assert node.ended(shell("kill -SEGV $$"))["exitCode"] == 128 + signal.SIGSEGV


def test_each_change_of_a_state_is_announced(node: Machine) -> None:
    node.ended(container("true"))
    assert [node.events.recv(200).decode() for _ in range(3)] == ["pods/u/runs/main/0"] * 3


def test_a_run_is_never_started_twice(node: Machine) -> None:
    run = node.start(shell("echo started"))
    reached(run, "Exited")
    node.ask("pods/u/runs/main/0")
    node.ended(container("true"), pod="other")
    assert node.texts() == ["started"]


def test_the_lock_is_held_as_long_as_the_keeper_lives(node: Machine) -> None:
    run = node.start(container("sleep", "600"))
    keeper = reached(run, "Running")["keeper"]
    assert is_kept(run)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not is_kept(run), "the lock is free")


def test_who_is_told_to_stop_gets_term_at_once(node: Machine) -> None:
    run = node.start(shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done"))
    until(lambda: state(run).get("phase") == "Running" and node.texts(), "it is up")
    node.stop(run)
    assert reached(run, "Exited")["exitCode"] == 7
    assert "bye" in node.texts()


def test_who_ignores_term_is_killed_after_the_grace(node: Machine) -> None:
    run = node.start(shell("trap '' TERM; echo up; while :; do sleep 0.01; done"))
    until(lambda: state(run).get("phase") == "Running" and node.texts(), "it is up")
    node.stop(run, grace=0.2)
    assert reached(run, "Exited")["exitCode"] == 137


def test_a_keeper_that_is_killed_leaves_nothing_of_its_run(node: Machine) -> None:
    run = node.start(shell("setsid sleep 600 & sleep 600 & echo $!; wait"))
    told = until(lambda: state(run).get("phase") == "Running" and node.texts() and state(run), "it is up")
    child = int(node.texts()[0])
    os.kill(told["keeper"], signal.SIGKILL)
    until(lambda: not is_alive(told["pid"]) and not is_alive(child), "all are gone")
