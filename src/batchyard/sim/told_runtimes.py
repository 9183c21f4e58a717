"""A state in which every run time is told: for worlds that go on from clusters whose work is not simulated.

Simulated pods of which nobody says how long they run take a minute; real ones do not. So jobs and Workloads that do not
say it get what is likely by their history, half of them running for longer; what nobody knows goes on for ever, as do
pods of their own that are no jobs'.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, key_of, with_metadata
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, Duration, duration_text
from batchyard.core.lifecycle.pod import is_terminal
from batchyard.sim.runtimes import Runtimes, age_of, owner_of, rounds_of, told_runtime
from batchyard.sim.state import State

#: Longer than anybody looks ahead.
FOR_EVER: Final = 10 * 365 * 24 * HOUR
_OF_JOBS: Final = frozenset({"Job", "JobSet"})


def with_runtimes(state: State) -> tuple[State, list[str]]:
    """The state, and the Workloads that run of which nobody knows for how long."""
    runtimes, unknown = Runtimes(state), list[str]()
    told: dict[Key, Obj] = {}
    cluster = state.cluster
    for workload in state.of_kind(scheme.WORKLOAD):
        view = workload_view(workload)
        if view.finished or told_runtime(workload, state.objects, cluster) is not None:
            continue
        drawn = runtimes.estimate(workload).draw(0.5, age_of(workload, state.at) or 0)
        if drawn is None and view.quota_reserved:
            unknown.append(view.key)
        owner = owner_of(workload, state.objects)
        what = workload if owner is None else owner
        told[key_of(what)] = _saying(what, FOR_EVER if drawn is None else max(1, drawn // rounds_of(what)))
    told |= {key_of(pod): _saying(pod, FOR_EVER) for pod in _of_no_job(state)}
    return State(state.at, state.revision, {**state.objects, **told}, state.applied), sorted(unknown)


def _of_no_job(state: State) -> Iterable[Obj]:
    """The pods that serve: of no job, and not told to end."""
    for pod in state.of_kind(scheme.POD):
        owner = controller_of(pod)
        if is_terminal(pod) or (owner is not None and owner["kind"] in _OF_JOBS):
            continue
        if annotation(pod, well_known.RUNTIME) is None:
            yield pod


def _saying(obj: Obj, runtime: Duration) -> Obj:
    annotations = {**(obj["metadata"].get("annotations") or {}), well_known.RUNTIME: duration_text(runtime)}
    return with_metadata(obj, annotations=annotations)
