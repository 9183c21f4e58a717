"""Parsed settings that change which Workloads are preempted, beyond `spec.preemption` of ClusterQueues.

The annotations of ClusterQueues and Cohorts under `batchyard.dev` are batchyard's own. KAI-Scheduler names the minimal
run times `preemptMinRuntime` and `reclaimMinRuntime`; KEP-9876 of Kueue describes the same protection.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from batchyard.api.well_known import CHEAPEST, PREEMPT_MIN_RUNTIME, RECLAIM_MIN_RUNTIME, VICTIMS
from batchyard.base.instant import Duration, parse_duration


class MinRuntimes(NamedTuple):
    """How long admitted Workloads run before they may be preempted, in microseconds; None inherits the value."""

    #: For preemptors of the same ClusterQueue.
    within_queue: Duration | None = None
    #: For preemptors of other ClusterQueues.
    from_other_queues: Duration | None = None


class PreemptionSettings(NamedTuple):
    """The preemption settings in the annotations of a ClusterQueue or a Cohort."""

    min_runtimes: MinRuntimes = MinRuntimes()
    #: Whether the victims whose restart costs least come first among those of equal priority.
    prefers_cheap_victims: bool = False


def parse_preemption_settings(annotations: Mapping[str, str]) -> PreemptionSettings | None:
    """Return the preemption settings in annotations; None if there are none. Malformed values count as unset."""
    within_queue = _parse_min_runtime(annotations.get(PREEMPT_MIN_RUNTIME))
    from_other_queues = _parse_min_runtime(annotations.get(RECLAIM_MIN_RUNTIME))
    prefers_cheap_victims = annotations.get(VICTIMS) == CHEAPEST
    settings = PreemptionSettings(MinRuntimes(within_queue, from_other_queues), prefers_cheap_victims)
    return None if settings == _NO_SETTINGS else settings


_NO_SETTINGS: Final = PreemptionSettings()


def _parse_min_runtime(text: str | None) -> Duration | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        return None
