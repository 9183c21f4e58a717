"""Leader election: at most one candidate may write at a time, and another takes over when the leader is gone."""

from typing import Any

from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.client.leader_election import LeaderElector, Leadership, LeaseSettings
from batchyard.client.transport import HttpResponse
from batchyard.controller_runtime.kernel import VirtualEventLoop
from unit.apiserver.api import Api
from unit.client.client_and_server import START, InProcessTransport

PATH = "/apis/coordination.k8s.io/v1/namespaces/team/leases"


class ElectionCandidate:
    """A candidate of the election with its own connection."""

    def __init__(self, name: str, kernel: VirtualEventLoop, api: Api, **terms: int) -> None:
        self.line = InProcessTransport(kernel, api)
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
        """Make all requests fail."""
        self.line.trouble = lambda _request: HttpResponse(0, trouble="cut off")


class ElectionPair:
    """Two candidates; the first starts first."""

    def __init__(self, **terms: int) -> None:
        self.kernel, self.api = VirtualEventLoop(START), Api(start=START)
        self.first = ElectionCandidate("first", self.kernel, self.api, **terms)
        self.run(1)
        self.second = ElectionCandidate("second", self.kernel, self.api, **terms)

    def run(self, seconds: float) -> None:
        until = self.kernel.now() + int(seconds * SECOND)
        while self.kernel.now() < until:
            self.kernel.call_at(min(until, self.kernel.now() + SECOND // 10), lambda: None)
            self.kernel.run(end_time=min(until, self.kernel.now() + SECOND // 10))
            assert not (self.first.leadership.may_write() and self.may_second_write()), "two may write"

    def may_second_write(self) -> bool:
        return hasattr(self, "second") and self.second.leadership.may_write()

    def lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.api.get(f"{PATH}/batchyard")["spec"]
        return spec


def test_first_candidate_leads_and_renews_lease() -> None:
    rivals = ElectionPair()
    rivals.run(120)
    assert (rivals.first.reported, rivals.second.reported) == (["leads"], [])
    lease = rivals.lease()
    assert (lease["holderIdentity"], lease["leaseTransitions"], lease["leaseDurationSeconds"]) == ("first", 0, 15)
    assert rivals.kernel.now() - parse_time(lease["renewTime"]) < 3 * SECOND
    assert parse_time(lease["acquireTime"]) < START + SECOND


def test_second_candidate_leads_after_lease_of_leader_expires() -> None:
    rivals = ElectionPair()
    rivals.run(30)
    rivals.first.cut_off()
    rivals.run(10)
    assert rivals.first.reported == ["leads", "lost"]
    assert rivals.second.reported == []
    rivals.run(12)
    assert rivals.second.reported == ["leads"]
    assert (rivals.lease()["holderIdentity"], rivals.lease()["leaseTransitions"]) == ("second", 1)


def test_leader_keeps_lease_after_short_disconnect() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    rivals.first.cut_off()
    rivals.run(6)
    rivals.first.line.trouble = lambda _request: None
    rivals.run(60)
    assert (rivals.first.reported, rivals.second.reported) == (["leads"], [])


def test_leader_keeps_lease_after_lost_renewal_answer() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    rivals.first.line.is_done_anyway = True
    rivals.first.cut_off()
    rivals.run(3)
    rivals.first.line.trouble = lambda _request: None
    rivals.run(60)
    assert (rivals.first.reported, rivals.second.reported) == (["leads"], [])


def test_released_lease_is_acquired_by_next_candidate() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    ended: list[bool] = []
    rivals.first.leadership.end(lambda: ended.append(True))
    assert not rivals.first.leadership.may_write()
    rivals.run(5)
    assert ended == [True]
    assert rivals.second.reported == ["leads"]


def test_lease_is_released_during_pending_renewal() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    leadership, ended = rivals.first.leadership, []
    rivals.first.line.send(leadership._elector.begin(rivals.kernel.now()), lambda _: None)
    leadership.end(lambda: ended.append(True))
    rivals.run(5)
    assert ended == [True]
    assert rivals.second.reported == ["leads"]


def test_leader_that_slept_past_deadline_never_writes_again() -> None:
    kernel, api = VirtualEventLoop(START), Api(start=START)
    leader = ElectionCandidate("first", kernel, api)
    kernel.run(end_time=START + SECOND)
    assert leader.leadership.may_write()
    asleep = VirtualEventLoop(START + 11 * SECOND)
    leader.leadership._timers = asleep
    assert not leader.leadership.may_write()
    leader.leadership._timers = kernel
    assert not leader.leadership.may_write()


def test_repeated_lease_error_is_reported_once() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    rivals.second.line.trouble = lambda _request: HttpResponse(403, b'{"message": "no rights"}')
    rivals.run(30)
    assert rivals.second.troubles == ["cannot read or write the Lease team/batchyard: 403: no rights"]


def test_renewed_lease_is_not_acquired_despite_clock_skew() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    lease = rivals.api.get(f"{PATH}/batchyard")
    for _ in range(20):
        lease = rivals.api.get(f"{PATH}/batchyard")
        spec = {**lease["spec"], "holderIdentity": "other", "renewTime": f"2001-01-01T00:00:{_:02}.000000Z"}
        rivals.api.ask("PUT", f"{PATH}/batchyard", {**lease, "spec": spec})
        rivals.run(3)
    assert rivals.first.reported == ["leads", "lost"]
    assert rivals.second.reported == []


def test_lease_with_fractional_duration_is_not_acquired_early() -> None:
    rivals = ElectionPair(lease=29 * SECOND // 10, renew_deadline=28 * SECOND // 10, retry_period=SECOND // 5)
    rivals.run(5)
    rivals.first.cut_off()
    rivals.run(10)
    assert rivals.second.reported == ["leads"]
