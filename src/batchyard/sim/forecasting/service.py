"""Forecasts and warnings for a server, from its current objects, restricted to what a user may see."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, format_amount, key_of, with_metadata
from batchyard.api.views.node import node_view
from batchyard.api.views.workload import flavor_view
from batchyard.apiserver.request import StatusError
from batchyard.base.instant import Instant
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.kueue_configuration import SIMULATED, KueueSettings
from batchyard.scheduling.quota import available
from batchyard.scheduling.snapshot import Snapshot
from batchyard.sim.event_log import Record
from batchyard.sim.forecast import OF_SERVER, ForecastOptions, forecasts, samples
from batchyard.sim.forecasting.calibration import Calibration, ForecastRecord
from batchyard.sim.forecasting.quota_only_state import (
    lines_of,
    queues_of,
    reduce_to_quota,
    standalone_workload,
    state_with,
    trees_of,
)
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import State
from batchyard.sim.whatif import subject_document, workload_of
from batchyard.sim.world import World

# --- dry run warnings ---
#
# Dry-run warnings: the immediate effects of a change of queues, for `--dry-run=server`.
#
# Both states, without and with the change, are settled for one instant of a simulated world. The warnings name the
# Workloads that are admitted, preempted or evicted in only one of them. They also name Workloads that use more quota
# than remains, and quota that exceeds the nodes' capacity.


#: The kernel steps for each of the two states; Workloads further back in the queue are not considered.
STEPS_MAX: Final = 20_000
_NAMED_MAX: Final = 3


@dataclass(slots=True)
class _Moment:
    """The events of one instant, and the overuse after it."""

    admitted: dict[str, None] = field(default_factory=dict)
    preempted: dict[str, None] = field(default_factory=dict)
    evicted: dict[str, None] = field(default_factory=dict)
    #: By ClusterQueue, flavor and resource: the excess of usage, and the Workloads to remove.
    over: dict[tuple[str, str, str], tuple[int, Sequence[str]]] = field(default_factory=dict)


def warnings_of(there: State, changed: Obj, may_see: Callable[[str], bool]) -> list[str]:
    """Return the warnings about an object that is about to be stored, naming Workloads of visible namespaces only."""
    numbered = with_metadata(changed, resourceVersion=str(there.revision + 1))
    before = _settled(there)
    state = replace(there, revision=there.revision + 1, objects={**there.objects, key_of(changed): numbered})
    after = _settled(state)
    warnings = [
        *_change_text("would be admitted at once", before.admitted, after.admitted, may_see),
        *_change_text("would be preempted at once", before.preempted, after.preempted, may_see),
        *_change_text("would be evicted at once", before.evicted, after.evicted, may_see),
        *_change_text(
            "would be admitted at once without the change, and not with it", after.admitted, before.admitted, may_see
        ),
    ]
    for place, (amount, names) in after.over.items():
        if amount > before.over.get(place, (0, ()))[0]:
            queue, flavor, resource = place
            who = _named(names, may_see)
            more = f"{format_amount(resource, amount)} {resource} of flavor {flavor} more than it then may"
            warnings.append(
                f"ClusterQueue {queue} would use {more}: {who} would no longer fit; no other Workload is admitted there"
            )
    return [*warnings, *_beyond_nodes(state, changed)]


def _settled(state: State) -> _Moment:
    """Settle a state for an instant."""
    queues = queues_of(state)
    kept = reduce_to_quota(state, queues, lines_of(state, queues), None)
    moment = _Moment()
    tables = {"Admitted": moment.admitted, "Preempted": moment.preempted, "Evicted": moment.evicted}

    def note(record: Record) -> None:
        table = tables.get(record["event"])
        if table is not None:
            table[record["workload"]] = None

    workloads = [standalone_workload(obj, None) for obj in kept.workloads.values()]
    world = World(Scenario((), kueue=state.kueue), sink=note, state=state_with(state, kept.objects, workloads))
    world.kernel.run(state.at, steps_max=STEPS_MAX)
    snapshot = world.platform.index.snapshot
    snapshot.settle()
    for queue in snapshot.queues.values():
        moment.over |= _overuse(queue, snapshot)
    return moment


def _overuse(queue: ClusterQueue, snapshot: Snapshot) -> dict[tuple[str, str, str], tuple[int, Sequence[str]]]:
    """Return the excess usage of a ClusterQueue, and the Workloads to remove: the first in the order of preemption."""
    found: dict[tuple[str, str, str], tuple[int, Sequence[str]]] = {}
    for fr, used in enumerate(queue.node.usage):
        over = min(used, -available(queue.node, fr)) if used > 0 else 0
        if over <= 0:
            continue
        names, left = [], over
        for held in queue.ranked():
            amount = dict(held.usage).get(fr, 0)
            if amount and left > 0:
                names.append(held.key)
                left -= amount
        found[queue.name, *snapshot.names[fr]] = over, names
    return found


def _change_text(
    what: str, before: Mapping[str, None], after: Mapping[str, None], may_see: Callable[[str], bool]
) -> Iterator[str]:
    names = [name for name in after if name not in before]
    if names:
        yield f"{_named(names, may_see)} {what}"


def _named(names: Sequence[str], may_see: Callable[[str], bool]) -> str:
    """Return the first visible names, and the number of others."""
    seen = [name for name in names if may_see(name.partition("/")[0])][:_NAMED_MAX]
    more = len(names) - len(seen)
    if not seen:
        return f"{more} Workload{'s' * (more > 1)}"
    return ", ".join(seen) + (f" and {more} more" if more else "")


def _beyond_nodes(state: State, changed: Obj) -> Iterator[str]:
    """Yield a warning if the total quota of a flavor exceeds the capacity of the nodes; nothing without nodes."""
    if key_of(changed).kind not in {scheme.CLUSTER_QUEUE, scheme.COHORT}:
        return
    nodes = [node_view(node) for node in state.of_kind(scheme.NODE)]
    flavors = {flavor["metadata"]["name"]: flavor_view(flavor) for flavor in state.of_kind(scheme.RESOURCE_FLAVOR)}
    snapshot = trees_of(state)
    own = snapshot.queues[changed["metadata"]["name"]].node if key_of(changed).kind == scheme.CLUSTER_QUEUE else None
    own = own or snapshot.cohorts[changed["metadata"]["name"]]
    for fr in own.nominal if nodes else ():
        flavor, resource = snapshot.names[fr]
        labels = flavors[flavor].labels if flavor in flavors else {}
        of_flavor = [node for node in nodes if labels.items() <= node.labels.items()]
        there = sum(node.allocatable.get(resource, 0) for node in of_flavor)
        every = [*(queue.node for queue in snapshot.queues.values()), *snapshot.cohorts.values()]
        quota = sum(node.nominal.get(fr, 0) for node in every)
        if own.nominal[fr] and quota > there:
            whole = f"quota for {resource} in flavor {flavor} would be {format_amount(resource, quota)} in all"
            yield f"{whole}; the existing nodes have {format_amount(resource, there)}"


#: The kinds that a forecast needs.
KINDS: Final = (
    *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.COHORT, scheme.CLUSTER_QUEUE),
    *(scheme.LOCAL_QUEUE, scheme.LIMIT_RANGE, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS),
    *(scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET),
)
Listed = Callable[[str], Iterable[Obj]]
MaySee = Callable[[str], bool]


class ForecastAnswers:
    """Answers forecasts and warnings with these scheduler settings."""

    def __init__(self, kueue: KueueSettings = SIMULATED) -> None:
        self._kueue = kueue

    def forecast_of(
        self, listed: Listed, at: Instant, subject: Key, seed: int, may_see: MaySee, calibration: Calibration
    ) -> Mapping[str, Any]:
        """Return the forecast of a subject as a document; raises Refused if it has no Workload or has ended.

        `may_see` returns whether names of a namespace's Workloads may be shown.
        """
        state = self._state(listed, at, KINDS)
        name = workload_of(state.objects, subject)
        asked = ForecastOptions(seed, work_max=OF_SERVER, may_see=may_see, calibration=calibration)
        found = None if name is None else forecasts(state, [name], asked).get(name)
        if found is None:
            problem = "has no Workload" if name is None else "has ended"
            raise StatusError(
                404, "NotFound", f'{subject.kind} "{subject.name}" {problem}: it will not start', {"name": subject.name}
            )
        return found.document(subject_document(subject))

    def samples_of(self, listed: Listed, at: Instant, calibration: Calibration) -> Sequence[ForecastRecord]:
        """Return forecasts for a random sample of pending Workloads, to be compared with their outcomes."""
        return samples(self._state(listed, at, KINDS), ForecastOptions(work_max=OF_SERVER, calibration=calibration))

    def warnings_for(self, listed: Listed, at: Instant, changed: Obj, may_see: MaySee) -> Sequence[str]:
        """Return the warnings about a changed object."""
        return warnings_of(self._state(listed, at, (*KINDS, scheme.NODE)), changed, may_see)

    def _state(self, listed: Listed, at: Instant, kinds: Sequence[str]) -> State:
        objects = {key_of(obj): obj for kind in kinds for obj in listed(kind)}
        return State(at, _revision(objects), objects, kueue=self._kueue)


def _revision(objects: Mapping[Key, Obj]) -> int:
    return max((int(obj["metadata"]["resourceVersion"]) for obj in objects.values()), default=0)
