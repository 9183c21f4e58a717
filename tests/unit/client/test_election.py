"""Of several candidates at most one may write at a time, and when it is gone another does."""

from typing import Any

from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.client.leader_election import LeaderElector, Leadership, LeaseSettings
from batchyard.client.transport import HttpAnswer
from batchyard.controller_runtime.kernel import VirtualEventLoop
from unit.apiserver.api import Api
from unit.client.served import START, Line

PATH = "/apis/coordination.k8s.io/v1/namespaces/team/leases"


class Candidate:
    """One of those who want to lead, with a wire of its own."""

    def __init__(self, name: str, kernel: VirtualEventLoop, api: Api, **terms: int) -> None:
        self.line = Line(kernel, api)
        self.leadership = Leadership(
            LeaderElector(LeaseSettings(name, "team", "batchyard", **terms)), kernel, self.line
        )
        self.reported: list[str] = []
        self.leadership.on_leading = lambda: self.reported.append("leads")
        self.leadership.on_lost = lambda: self.reported.append("lost")
        self.troubles: list[str] = []
        self.leadership.on_trouble = self.troubles.append
        self.leadership.start()

    def cut_off(self) -> None:
        """No answer comes any more."""
        self.line.trouble = lambda _request: HttpAnswer(0, trouble="cut off")


class Rivals:
    """Two candidates, of whom the first was there first."""

    def __init__(self, **terms: int) -> None:
        self.kernel, self.api = VirtualEventLoop(START), Api(start=START)
        self.first = Candidate("first", self.kernel, self.api, **terms)
        self.run(1)
        self.second = Candidate("second", self.kernel, self.api, **terms)

    def run(self, seconds: float) -> None:
        until = self.kernel.now() + int(seconds * SECOND)
        while self.kernel.now() < until:
            self.kernel.call_at(min(until, self.kernel.now() + SECOND // 10), lambda: None)
            self.kernel.run(until=min(until, self.kernel.now() + SECOND // 10))
            assert not (self.first.leadership.may_write() and self.may_second_write()), "two may write"

    def may_second_write(self) -> bool:
        return hasattr(self, "second") and self.second.leadership.may_write()

    def lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.api.get(f"{PATH}/batchyard")["spec"]
        return spec


def test_the_first_leads_and_goes_on_leading() -> None:
    rivals = Rivals()
    rivals.run(120)
    assert (rivals.first.reported, rivals.second.reported) == (["leads"], [])
    lease = rivals.lease()
    assert (lease["holderIdentity"], lease["leaseTransitions"], lease["leaseDurationSeconds"]) == ("first", 0, 15)
    assert rivals.kernel.now() - parse_time(lease["renewTime"]) < 3 * SECOND
    assert parse_time(lease["acquireTime"]) < START + SECOND


def test_another_leads_within_the_lease_time_when_the_leader_is_gone() -> None:
    rivals = Rivals()
    rivals.run(30)
    rivals.first.cut_off()
    rivals.run(10)
    assert rivals.first.reported == ["leads", "lost"]
    assert rivals.second.reported == []
    rivals.run(12)
    assert rivals.second.reported == ["leads"]
    assert (rivals.lease()["holderIdentity"], rivals.lease()["leaseTransitions"]) == ("second", 1)


def test_a_leader_that_is_cut_off_for_a_moment_goes_on() -> None:
    rivals = Rivals()
    rivals.run(5)
    rivals.first.cut_off()
    rivals.run(6)
    rivals.first.line.trouble = lambda _request: None
    rivals.run(60)
    assert (rivals.first.reported, rivals.second.reported) == (["leads"], [])


def test_a_leader_whose_renewal_was_done_unseen_goes_on() -> None:
    rivals = Rivals()
    rivals.run(5)
    rivals.first.line.is_done_anyway = True
    rivals.first.cut_off()
    rivals.run(3)
    rivals.first.line.trouble = lambda _request: None
    rivals.run(60)
    assert (rivals.first.reported, rivals.second.reported) == (["leads"], [])


def test_who_gives_the_lease_up_lets_the_next_lead_soon() -> None:
    rivals = Rivals()
    rivals.run(5)
    ended: list[bool] = []
    rivals.first.leadership.end(lambda: ended.append(True))
    assert not rivals.first.leadership.may_write()
    rivals.run(5)
    assert ended == [True]
    assert rivals.second.reported == ["leads"]


def test_who_gives_it_up_while_a_renewal_is_under_way_gives_it_up_all_the_same() -> None:
    rivals = Rivals()
    rivals.run(5)
    leadership, ended = rivals.first.leadership, []
    rivals.first.line.send(leadership._election.begin(rivals.kernel.now()), lambda _: None)
    leadership.end(lambda: ended.append(True))
    rivals.run(5)
    assert ended == [True]
    assert rivals.second.reported == ["leads"]


def test_who_has_slept_past_his_deadline_may_never_write_again() -> None:
    kernel, api = VirtualEventLoop(START), Api(start=START)
    leader = Candidate("first", kernel, api)
    kernel.run(until=START + SECOND)
    assert leader.leadership.may_write()
    asleep = VirtualEventLoop(START + 11 * SECOND)
    leader.leadership._timers = asleep
    assert not leader.leadership.may_write()
    leader.leadership._timers = kernel
    assert not leader.leadership.may_write()


def test_what_keeps_it_from_knowing_is_told_once() -> None:
    rivals = Rivals()
    rivals.run(5)
    rivals.second.line.trouble = lambda _request: HttpAnswer(403, b'{"message": "no rights"}')
    rivals.run(30)
    assert rivals.second.troubles == ["the Lease: 403: no rights"]


def test_a_lease_that_others_renew_is_left_to_them_though_clocks_differ() -> None:
    rivals = Rivals()
    rivals.run(5)
    lease = rivals.api.get(f"{PATH}/batchyard")
    for _ in range(20):
        lease = rivals.api.get(f"{PATH}/batchyard")
        spec = {**lease["spec"], "holderIdentity": "other", "renewTime": f"2001-01-01T00:00:{_:02}.000000Z"}
        rivals.api.ask("PUT", f"{PATH}/batchyard", {**lease, "spec": spec})
        rivals.run(3)
    assert rivals.first.reported == ["leads", "lost"]
    assert rivals.second.reported == []


def test_a_lease_of_no_whole_seconds_is_taken_by_nobody_before_its_time() -> None:
    rivals = Rivals(lease=29 * SECOND // 10, renew_deadline=28 * SECOND // 10, retry_period=SECOND // 5)
    rivals.run(5)
    rivals.first.cut_off()
    rivals.run(10)
    assert rivals.second.reported == ["leads"]
