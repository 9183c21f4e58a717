"""Fixes that make the scheduler consider a Workload again, if it would then be admitted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.selectors import selector
from batchyard.api.views.queues import ClusterQueueView
from batchyard.api.views.workload import WorkloadView
from batchyard.explain.flavor_breakdown import PodSetVerdicts
from batchyard.explain.fork import DecisionLimitReached, Fork, HypotheticalChange
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle

# --- proposal ---
#
# A change that would admit a Workload: its description, its patches, and the proof by simulation.


QUOTA: Final = "quota"
PRIORITY: Final = "priority"
SIZE: Final = "size"
FLAVOR: Final = "flavor"
END: Final = "end"
STRATEGY: Final = "strategy"
NODES: Final = "nodes"
FIX: Final = "fix"

Patch = Mapping[str, Any]


class Proposal(NamedTuple):
    """A change that admits the Workload in a simulation. The creator has simulated it, and one unit less."""

    kind: str
    text: str
    apply: Sequence[Patch]

    def document(self) -> dict[str, Any]:
        """Return the proposal as a part of the document."""
        return {"kind": self.kind, "text": self.text, "apply": list(self.apply), "proven": True}


class ProposalCase(NamedTuple):
    """A pending Workload, and a fork for simulations."""

    workload: Obj
    view: WorkloadView
    looks: Sequence[PodSetVerdicts]
    fork: Fork
    #: The job that the Workload was created for; None if there is none.
    owner: Obj | None
    #: The binding limit.
    limit: str = ""


def json_patch(kind: str, name: str, operations: Sequence[Mapping[str, Any]], namespace: str = "") -> Patch:
    """Return a patch for `kubectl patch --type json`."""
    return _patch(kind, name, namespace, "json", list(operations))


def merge_patch(kind: str, name: str, fields: Mapping[str, Any], namespace: str = "") -> Patch:
    """Return a patch for `kubectl patch --type merge`."""
    return _patch(kind, name, namespace, "merge", dict(fields))


def _patch(kind: str, name: str, namespace: str, how: str, patch: Any) -> Patch:
    where = {"namespace": namespace} if namespace else {}
    return {"kind": kind, **where, "name": name, "type": how, "patch": patch}


# --- smallest ---
#
# Searches for the least value that satisfies a predicate.


def smallest(will_do: Callable[[Sequence[int]], bool], steps: Sequence[Sequence[int]]) -> list[int] | None:
    """Return amounts that satisfy `will_do`, none of which can be one less; None if the last step fails.

    `steps` are increasing guesses; the first is the likely one.
    """
    place = _first(lambda index: will_do(steps[index]), len(steps))
    if place is None:
        return None
    found = list(steps[place])
    is_new = True
    while is_new:
        is_new = False
        for dim, amount in enumerate(found):
            before, after = found[:dim], found[dim + 1 :]
            least = least_amount(partial(_with_one, will_do, before, after), amount)
            is_new |= least < amount and len(found) > 1
            found[dim] = least
    return found


def _with_one(will_do: Callable[[Sequence[int]], bool], before: list[int], after: list[int], amount: int) -> bool:
    return will_do([*before, amount, *after])


def least_amount(will_do: Callable[[int], bool], amount: int) -> int:
    """Return the least amount with `will_do`, searched downwards to 0 while one less also holds."""
    if amount == 0 or not will_do(amount - 1):
        return amount
    return least_between(will_do, 0, amount - 1)


def _first(will_do: Callable[[int], bool], count: int) -> int | None:
    """Return the first index with `will_do`: the first is tested, then the last, then those between."""
    if will_do(0):
        return 0
    if count < 2 or not will_do(count - 1):
        return None
    return least_between(will_do, 1, count - 1)


def least_between(will_do: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number in the range with `will_do`, which is monotonic and holds for `high`."""
    while low < high:
        middle = (low + high) // 2
        if will_do(middle):
            high = middle
        else:
            low = middle + 1
    return high


_NOT_STOPPED: Final = {"spec": {"stopPolicy": "None"}}


class _Fix(NamedTuple):
    """A fix, with its patch and the fixed ClusterQueue."""

    text: str
    patch: Patch
    view: ClusterQueueView


def propose_fixes(
    workload: Obj, view: WorkloadView, queue: ClusterQueue, index: SchedulerCache, policy: SchedulingPolicy
) -> Iterator[Proposal]:
    """Propose the fix of the only fault, if the Workload would be admitted then."""
    found = list(_faults(workload, view, queue, index))
    if len(found) != 1:
        return
    remedy, fork = found[0], Fork(index, policy, view, queue)
    try:
        if fork.admits(HypotheticalChange(queues={queue.name: remedy.view}, opens=True)):
            yield Proposal(FIX, remedy.text, (remedy.patch,))
    except DecisionLimitReached:
        return
    finally:
        fork.close()


def _faults(workload: Obj, view: WorkloadView, queue: ClusterQueue, index: SchedulerCache) -> Iterator[_Fix]:
    """Yield all faults that a field can fix; nothing if other faults exist."""
    started, labels = replace(queue.view, stop_policy="None"), index.namespaces.get(view.namespace)
    if not index.readiness_with(started).active or queue.in_cycle or labels is None:
        return
    if not lifecycle.is_active(workload):
        patch = merge_patch("Workload", view.name, {"spec": {"active": True}}, view.namespace)
        yield _Fix("set its spec.active to true", patch, started)
    local = index.book.local_queues.get(view.queue)
    if local is not None and local.stop_policy != "None":
        name = view.queue.partition("/")[2]
        patch = merge_patch("LocalQueue", name, _NOT_STOPPED, view.namespace)
        yield _Fix(f"LocalQueue {name}: set stopPolicy to None", patch, started)
    if queue.view.stop_policy != "None":
        patch = merge_patch("ClusterQueue", queue.name, _NOT_STOPPED)
        yield _Fix(f"ClusterQueue {queue.name}: set stopPolicy to None", patch, started)
    if queue.view.namespaces is None or not queue.view.namespaces.matches(labels):
        operation: dict[str, Any] = {"op": "add", "path": "/spec/namespaceSelector", "value": {}}
        text = f"ClusterQueue {queue.name}: let namespaceSelector select namespace {view.namespace}, such as by {{}}"
        wide = replace(started, namespaces=selector({}))
        yield _Fix(text, json_patch("ClusterQueue", queue.name, [operation]), wide)
