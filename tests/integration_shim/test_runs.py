"""Runs of containers as plain processes: their states, ends, logs."""

import os
import signal

from integration_shim.machine import Machine, container, is_alive, is_kept, reached, shell, state, until


def test_a_command_that_ends_well_is_completed(plain: Machine) -> None:
    reported = plain.ended(container("echo", "hello"))
    assert (reported["exitCode"], reported["reason"], plain.log()) == (0, "Completed", [("stdout", "F", "hello")])
    assert reported["startedAt"] <= reported["finishedAt"]


def test_a_command_that_fails_is_an_error_with_its_code(plain: Machine) -> None:
    reported = plain.ended(shell("echo no >&2; exit 3"))
    assert (reported["exitCode"], reported["reason"], plain.log()) == (3, "Error", [("stderr", "F", "no")])


def test_a_signal_is_told_as_128_and_its_number(plain: Machine) -> None:
    assert plain.ended(shell("kill -SEGV $$"))["exitCode"] == 128 + signal.SIGSEGV


def test_a_start_and_an_end_are_announced(plain: Machine) -> None:
    run = plain.start(container("sleep", "600"))
    reached(run, "Running")
    until(lambda: plain.heard == ["pods/u/runs/main/0"], "the start is announced")
    plain.stop(run)
    until(lambda: plain.heard == ["pods/u/runs/main/0"] * 2, "the end is announced")


def test_a_run_is_never_started_twice(plain: Machine) -> None:
    run = plain.start(shell("echo started"))
    reached(run, "Exited")
    plain.ask("pods/u/runs/main/0")
    plain.ended(container("true"), pod="other")
    assert plain.texts() == ["started"]


def test_the_lock_is_held_as_long_as_the_keeper_lives(plain: Machine) -> None:
    run = plain.start(container("sleep", "600"))
    keeper = reached(run, "Running")["keeper"]
    assert is_kept(run)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not is_kept(run), "the lock is free")


def test_who_is_told_to_stop_gets_term_at_once(plain: Machine) -> None:
    run = plain.start(shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done"))
    until(lambda: state(run).get("phase") == "Running" and plain.texts(), "it is up")
    plain.stop(run)
    assert reached(run, "Exited")["exitCode"] == 7
    assert "bye" in plain.texts()


def test_who_ignores_term_is_killed_after_the_grace(plain: Machine) -> None:
    run = plain.start(shell("trap '' TERM; echo up; while :; do sleep 0.01; done"))
    until(lambda: state(run).get("phase") == "Running" and plain.texts(), "it is up")
    plain.stop(run, grace=0.2)
    assert reached(run, "Exited")["exitCode"] == 137


def test_a_keeper_that_is_killed_leaves_nothing_of_its_run(plain: Machine) -> None:
    run = plain.start(shell("setsid sleep 600 & sleep 600 & echo $!; wait"))
    reported = until(lambda: state(run).get("phase") == "Running" and plain.texts() and state(run), "it is up")
    child = int(plain.texts()[0])
    os.kill(reported["keeper"], signal.SIGKILL)
    until(lambda: not is_alive(reported["pid"]) and not is_alive(child), "all are gone")
