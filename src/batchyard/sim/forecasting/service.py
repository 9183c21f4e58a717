"""Forecasts and warnings for a server, from its current objects, restricted to what a user may see."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.apiserver.request import StatusError
from batchyard.base.instant import Instant
from batchyard.scheduling.kueue_configuration import SIMULATED, KueueSettings
from batchyard.sim.forecast import OF_SERVER, ForecastOptions, forecasts, samples
from batchyard.sim.forecasting.calibration import Calibration, ForecastRecord
from batchyard.sim.forecasting.dry_run_warnings import warnings_of
from batchyard.sim.state import State
from batchyard.sim.whatif import subject_document, workload_of

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
