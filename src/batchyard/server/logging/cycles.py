"""Scheduling cycles: logged at level `debug`, and exported as traces.

Times are real time, independent of the platform's speed, because they measure the cost of a cycle.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from batchyard.base.ids import uid_for
from batchyard.base.instant import Instant
from batchyard.interfaces.observers import TraceSpan
from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Decision
from batchyard.scheduling.observer import CycleObserver
from batchyard.server.clocks.wall import wall_clock

_LOG: Final = logging.getLogger("batchyard.cycles")
_WORDS: Final = {"Admit": "admitted", "Preempt": "preempting", "StayPending": "waiting"}
_SPAN_DIGITS: Final = 16


class CycleLog:
    """The times of the current cycle. A CycleWatch that delegates to another."""

    def __init__(self, watch: CycleObserver, emit: Callable[[TraceSpan], None] | None) -> None:
        self._watch = watch
        self._emit = emit
        self._began: Instant = 0
        self._decided: Instant = 0

    def begin(self) -> None:
        """Record that a cycle with heads begins."""
        self._began = wall_clock()
        self._watch.begin()

    def decide(self) -> None:
        """Record that all decisions are made and will be applied."""
        self._watch.decide()
        self._decided = wall_clock()

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Log and export the cycle."""
        self._watch.end(cycle, decisions)
        is_logged = _LOG.isEnabledFor(logging.DEBUG)
        if not is_logged and self._emit is None:
            return
        ended, counts = wall_clock(), Counter(_WORDS[type(decision).__name__] for decision in decisions)
        counters = {"cycle": cycle.number, "heads": len(decisions), **{word: counts[word] for word in _WORDS.values()}}
        if is_logged:
            fields = {**counters, "decided_us": self._decided - self._began, "applied_us": ended - self._decided}
            _LOG.debug("cycle %d: %s", cycle.number, _in_words(counters), extra={"fields": fields})
        if self._emit is not None:
            for span in self._spans(counters, ended):
                self._emit(span)

    def _spans(self, counters: Mapping[str, int], ended: Instant) -> Sequence[TraceSpan]:
        made = [uid_for(self._began, str(counters["cycle"]), part).replace("-", "") for part in ("", "root", "1", "2")]
        trace, (root, decide, apply) = made[0], (each[:_SPAN_DIGITS] for each in made[1:])
        return (
            TraceSpan(trace, decide, root, "decide", self._began, self._decided, {}),
            TraceSpan(trace, apply, root, "apply", self._decided, ended, {}),
            TraceSpan(trace, root, "", "scheduling cycle", self._began, ended, counters),
        )


def _in_words(counters: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counters.items() if word != "cycle")
