"""Runs of containers as plain processes: their states, exit codes and logs."""

import os
import signal

from integration_shim.machine import (
    ShimMachine,
    container,
    is_alive,
    is_supervised,
    shell,
    state,
    until,
    wait_for_phase,
)


def test_successful_command_is_completed(plain: ShimMachine) -> None:
    reported = plain.ended(container("echo", "hello"))
    assert (reported["exitCode"], reported["reason"], plain.log()) == (0, "Completed", [("stdout", "F", "hello")])
    assert reported["startedAt"] <= reported["finishedAt"]


def test_failed_command_reports_error_and_exit_code(plain: ShimMachine) -> None:
    reported = plain.ended(shell("echo no >&2; exit 3"))
    assert (reported["exitCode"], reported["reason"], plain.log()) == (3, "Error", [("stderr", "F", "no")])


def test_exit_code_of_signal_is_128_plus_its_number(plain: ShimMachine) -> None:
    assert plain.ended(shell("kill -SEGV $$"))["exitCode"] == 128 + signal.SIGSEGV


def test_spawner_announces_start_and_end_of_run(plain: ShimMachine) -> None:
    run = plain.start(container("sleep", "600"))
    wait_for_phase(run, "Running")
    until(lambda: plain.heard == ["pods/u/runs/main/0"], "the start is announced")
    plain.stop(run)
    until(lambda: plain.heard == ["pods/u/runs/main/0"] * 2, "the end is announced")


def test_run_is_never_started_twice(plain: ShimMachine) -> None:
    run = plain.start(shell("echo started"))
    wait_for_phase(run, "Exited")
    plain.ask("pods/u/runs/main/0")
    plain.ended(container("true"), pod="other")
    assert plain.texts() == ["started"]


def test_supervisor_holds_lock_until_it_ends(plain: ShimMachine) -> None:
    run = plain.start(container("sleep", "600"))
    supervisor = wait_for_phase(run, "Running")["keeper"]
    assert is_supervised(run)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not is_supervised(run), "the lock is free")


def test_stop_sends_sigterm_at_once(plain: ShimMachine) -> None:
    run = plain.start(shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done"))
    until(lambda: state(run).get("phase") == "Running" and plain.texts(), "it is up")
    plain.stop(run)
    assert wait_for_phase(run, "Exited")["exitCode"] == 7
    assert "bye" in plain.texts()


def test_command_ignoring_sigterm_is_killed_after_grace_period(plain: ShimMachine) -> None:
    run = plain.start(shell("trap '' TERM; echo up; while :; do sleep 0.01; done"))
    until(lambda: state(run).get("phase") == "Running" and plain.texts(), "it is up")
    plain.stop(run, grace=0.2)
    assert wait_for_phase(run, "Exited")["exitCode"] == 137


def test_killed_supervisor_leaves_no_processes(plain: ShimMachine) -> None:
    run = plain.start(shell("setsid sleep 600 & sleep 600 & echo $!; wait"))
    reported = until(lambda: state(run).get("phase") == "Running" and plain.texts() and state(run), "it is up")
    child = int(plain.texts()[0])
    os.kill(reported["keeper"], signal.SIGKILL)
    until(lambda: not is_alive(reported["pid"]) and not is_alive(child), "all are gone")
