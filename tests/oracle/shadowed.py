"""A shadow beside upstream: what it decided is served by our API server, in virtual time, and followed from there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from batchyard.admission_plugins.namespaces import new_namespace
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.client.rest import RestClient, Wiring
from batchyard.client.transport import RateLimit
from batchyard.controller_runtime.kernel import VirtualKernel
from batchyard.scheduling.cycle import Policy
from batchyard.scheduling.scheduler_cache import KINDS
from batchyard.shadow.controller import Looking
from batchyard.shadow.findings import Counts, Finding
from batchyard.shadow.state import Terms
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import EPOCH
from batchyard.store.memory import Store
from oracle.unsteady import Trouble, UnsteadyLine
from oracle.upstream import Record, Upstream, read_case
from unit.apiserver.api import Api
from unit.client.served import Line

_BEFORE = 10 * SECOND
_AFTER = 120 * SECOND


class Served:
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
class Shadowed:
    """What a shadow told."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    asked: list[str] = field(default_factory=list)
    reordered: int = 0
    #: How many trees were followed at the end.
    trees: int = 0


class Shadowing:
    """A follower at the end of a wire, woken when it wants to be."""

    def __init__(self, line: Line, kernel: VirtualKernel, policy: Policy, terms: Terms) -> None:
        self._line, self._kernel, self._how = line, kernel, (policy, terms)
        self.told = Shadowed()
        wiring = Wiring(kernel, kernel, line, RateLimit(1000.0, 100), lambda: False)
        client = RestClient(wiring, KINDS)
        self._looking = Looking(client, line, kernel, self._how, report=self.told.findings.append)
        self.followers = self._looking.followers
        client.on_news = self._looking.heard
        client.start()

    def again(self) -> "Shadowing":
        """It ends, and another one begins."""
        self._looking.is_over = True
        return Shadowing(self._line, self._kernel, *self._how)


def shadowed(
    scenario: Scenario,
    log: list[Record],
    trouble: Trouble | None = None,
    restarts_at: Sequence[Duration] = (),
    *,
    is_told_of_fair_sharing: bool = True,
) -> Shadowed:
    """What a shadow tells of a case, by a wire with which something is wrong, and begun anew at some times.

    With a hurry in the trouble what happens is so many times as close together.
    """
    kernel = VirtualKernel(EPOCH - _BEFORE)
    api = Api(100_000, EPOCH - _BEFORE)
    line = UnsteadyLine(kernel, api, trouble or Trouble())
    for name in {obj["metadata"].get("namespace", "team") for step in scenario.steps for obj in step.apply}:
        api.stored.store.put(Key(scheme.NAMESPACE, "", name), new_namespace(name))
    policy = Policy(fair_sharing=scenario.fair_sharing and is_told_of_fair_sharing)
    one = [Shadowing(line, kernel, policy, Terms())]
    for at in restarts_at:
        kernel.call_at(EPOCH + at, lambda: one.append(one[-1].again()))
    now: Instant = EPOCH
    for moment in Upstream(Served(api.stored.store), scenario, log).moments():
        now = max(now + MILLISECOND, EPOCH + (moment.at - EPOCH) // line.wrong.hurry)
        kernel.call_at(now, moment.work)
    kernel.run(until=now + _AFTER)
    told = Shadowed(asked=line.asked)
    for shadowing in one:
        told.findings += shadowing.told.findings
        told.counts = told.counts.plus(shadowing.followers.counts)
        told.reordered += shadowing.followers.reordered
    told.trees = one[-1].followers.trees
    return told


def shadowed_case(name: str, text: str, expected: str, **how: Any) -> Shadowed:
    """The same of texts."""
    return shadowed(*read_case(name, text, expected), **how)
