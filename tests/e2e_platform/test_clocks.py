"""Platforms and operators on machines with wrong or adjusted clocks.

Operators use the time of the server. A platform follows the clock of its machine, but never goes back.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, SECOND, Instant
from batchyard.server.clocks.wall import wall_clock
from e2e_platform.clock_skew import PROGRAM
from e2e_platform.kill_rounds import ask
from e2e_platform.operator_process import OperatorRun, plain_kubeconfig
from e2e_platform.platform_process import UpProcess
from e2e_platform.test_crashes import WORKLOADS
from e2e_platform.test_operator import ELECTION, OPTIONS, admissions, finish, submit
from integration_shim.machine import until

HOURS = 5 * HOUR // SECOND


class ClockAheadOperator(OperatorRun):
    """An operator on a machine with a clock that is hours ahead."""

    program = (PROGRAM, str(HOURS))


class ClockBehindOperator(OperatorRun):
    """An operator on a machine with a clock that is hours behind."""

    program = (PROGRAM, str(-HOURS))


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path, *OPTIONS) as running:
        yield running


def start_operator(platform: UpProcess, by: type[OperatorRun], *options: str) -> OperatorRun:
    file = plain_kubeconfig(platform.kubeconfig.parent, platform.url)
    return by(file, "--controllers", "admission", *options)


@pytest.mark.parametrize("skewed", [ClockAheadOperator, ClockBehindOperator])
def test_operator_with_skewed_clock_writes_times_of_server(platform: UpProcess, skewed: type[OperatorRun]) -> None:
    with start_operator(platform, skewed, "--no-leader-elect") as running:
        running.wait_until("runs admission")
        submit(platform, [0])
        finish(platform, 1)
    (workload,) = ask(platform.url, "GET", WORKLOADS)[1]["items"]
    created = parse_time(workload["metadata"]["creationTimestamp"])
    waits = [parse_time(each["lastTransitionTime"]) - created for each in workload["status"]["conditions"]]
    assert all(0 <= wait < HOUR for wait in waits), waits


def test_replicas_with_skewed_clocks_lead_one_after_the_other(platform: UpProcess) -> None:
    with start_operator(platform, ClockAheadOperator, *ELECTION) as leader:
        leader.wait_until("runs admission")
        with start_operator(platform, ClockBehindOperator, *ELECTION) as standby:
            standby.wait_until("waiting to lead")
            submit(platform, range(2))
            finish(platform, 2)
            assert "leads" not in standby.log()  # the age of a Lease is observed, not read from its times
            leader.kill()
            standby.wait_until("runs admission")
            submit(platform, range(2, 6))
            finish(platform, 6)
    assert admissions(platform) == [1] * 6


class AdjustableClockPlatform(UpProcess):
    """A platform with a clock that is set by the seconds in a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ahead"
        self.set(0)
        self.program = (PROGRAM, str(self.file))
        super().__init__(folder / "data", "--insecure-loopback", "--port", "0")

    def set(self, seconds: int) -> None:
        """Set the clock ahead of its initial time."""
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds), "ascii")
        new.rename(self.file)

    def made_at(self) -> Instant:
        """The time of the platform: the creation time of a new object."""
        body = {"metadata": {"generateName": "a-"}}
        return parse_time(ask(self.url, "POST", "/api/v1/namespaces", body)[1]["metadata"]["creationTimestamp"])

    def is_at(self, wanted: Instant, seen: list[Instant]) -> bool:
        """Whether the platform has reached a time; appends the current time to `seen`."""
        seen.append(self.made_at())
        return seen[-1] >= wanted


def test_platform_follows_clock_of_machine_but_never_goes_back(tmp_path: Path) -> None:
    with AdjustableClockPlatform(tmp_path) as platform:
        seen = [platform.made_at()]
        for seconds in (HOURS, 0, HOURS + 600):
            platform.set(seconds)
            until(partial(platform.is_at, seen[0] + seconds * SECOND, seen))
        assert seen == sorted(seen)
        assert seen[-1] < seen[0] + 6 * HOUR


def test_lease_with_future_renew_time_does_not_move_clock(tmp_path: Path) -> None:
    lease = {"metadata": {"name": "far"}, "spec": {"renewTime": "9999-12-31T23:59:59.000000Z"}}
    with UpProcess(tmp_path, "--insecure-loopback") as platform:
        code, answer = ask(platform.url, "POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease)
        assert code == 201, answer
        platform.end()
    with UpProcess(tmp_path, "--insecure-loopback") as platform:
        created = ask(platform.url, "POST", "/api/v1/namespaces", {"metadata": {"name": "a"}})[1]
    assert parse_time(created["metadata"]["creationTimestamp"]) < wall_clock() + HOUR
