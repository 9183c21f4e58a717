"""A shadow of upstream: our API server serves upstream's decisions in virtual time, and a shadow follows them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from batchyard.admission_plugins.built_in import new_namespace
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import RateLimit
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import WATCHED_KINDS
from batchyard.shadow.controller import ShadowController
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.state import ShadowSettings
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import EPOCH
from batchyard.store.memory import Store
from differential.unreliable_transport import ConnectionFaults, UnreliableTransport
from differential.upstream_writes import Record, Upstream, read_case
from unit.apiserver.api import Api
from unit.client.client_and_server import InProcessTransport

_BEFORE = 10 * SECOND
_AFTER = 120 * SECOND


class ServerObjects:
    """Objects in the store of an API server."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: Key) -> Obj | None:
        return self._store.get(key)

    def put(self, obj: Obj) -> None:
        before = self._store.get(key_of(obj))
        metadata = obj["metadata"]
        if before is not None and before.get("spec") != obj.get("spec"):
            metadata = {**metadata, "generation": before["metadata"].get("generation", 1) + 1}
        self._store.put(key_of(obj), {**obj, "metadata": metadata})

    def delete(self, key: Key) -> None:
        self._store.delete(key)


@dataclass(slots=True)
class ShadowResults:
    """The results of a shadow."""

    findings: list[Divergence] = field(default_factory=list)
    counts: ComparisonCounts = field(default_factory=ComparisonCounts)
    asked: list[str] = field(default_factory=list)
    reordered: int = 0
    #: The number of followed trees at the end.
    trees: int = 0


class ShadowFollower:
    """A follower on a connection; the kernel wakes it at the requested times."""

    def __init__(
        self, line: InProcessTransport, kernel: VirtualEventLoop, policy: SchedulingPolicy, terms: ShadowSettings
    ) -> None:
        self._line, self._kernel, self._how = line, kernel, (policy, terms)
        self.reported = ShadowResults()
        wiring = ClientDependencies(kernel, kernel, line, RateLimit(1000.0, 100), lambda: False)
        client = RestClient(wiring, WATCHED_KINDS)
        self._looking = ShadowController(client, line, kernel, self._how, report=self.reported.findings.append)
        self.followers = self._looking.followers
        client.on_new_data = self._looking.on_informer_update
        client.start()

    def again(self) -> "ShadowFollower":
        """End this follower, and start another one."""
        self._looking.is_over = True
        return ShadowFollower(self._line, self._kernel, *self._how)


def run_shadow(
    scenario: Scenario,
    log: list[Record],
    trouble: ConnectionFaults | None = None,
    restarts_at: Sequence[Duration] = (),
    *,
    knows_fair_sharing: bool = True,
) -> ShadowResults:
    """Run a shadow on a case, over an unreliable connection, with restarts at some times; return its results.

    `trouble.hurry` accelerates the events.
    """
    kernel = VirtualEventLoop(EPOCH - _BEFORE)
    api = Api(100_000, EPOCH - _BEFORE)
    line = UnreliableTransport(kernel, api, trouble or ConnectionFaults())
    for name in {obj["metadata"].get("namespace", "team") for step in scenario.steps for obj in step.apply}:
        api.stored.store.put(Key(scheme.NAMESPACE, "", name), new_namespace(name))
    policy = replace(scenario.kueue.policy, fair_sharing=scenario.fair_sharing and knows_fair_sharing)
    terms = ShadowSettings(admission_fair_sharing=scenario.kueue.admission_fair_sharing)
    one = [ShadowFollower(line, kernel, policy, terms)]
    for at in restarts_at:
        kernel.call_at(EPOCH + at, lambda: one.append(one[-1].again()))
    now: Instant = EPOCH
    for moment in Upstream(ServerObjects(api.stored.store), scenario, log).moments():
        now = max(now + MILLISECOND, EPOCH + (moment.at - EPOCH) // line.wrong.hurry)
        kernel.call_at(now, moment.work)
    kernel.run(end_time=now + _AFTER)
    reported = ShadowResults(asked=line.asked)
    for shadowing in one:
        reported.findings += shadowing.reported.findings
        reported.counts = reported.counts.plus(shadowing.followers.counts)
        reported.reordered += shadowing.followers.vanished_divergence_count
    reported.trees = one[-1].followers.tree_count
    return reported


def run_shadow_case(name: str, text: str, expected: str, **how: Any) -> ShadowResults:
    """Run a shadow on the texts of a case."""
    return run_shadow(*read_case(name, text, expected), **how)
