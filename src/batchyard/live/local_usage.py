"""What this machine's containers use at present: rates between readings that are taken now and then.

As metrics-server has it: a reading every 15 seconds, and of what has only just begun what it used since. Source:
metrics-server's pkg/storage.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND, Instant
from batchyard.live.usage_readings import Reading, of_container, of_machine
from batchyard.ports.containers import Measured
from batchyard.ports.machine import RUN, SANDBOX, Machine
from batchyard.runtime.local.runs import RUNNING, Run, run_of

_EVERY: Final = 15.0  # seconds
#: What is shorter tells nothing.
_LEAST: Final = SECOND

#: The last two readings, the older one first.
_Readings: TypeAlias = tuple[Reading, Reading]


class LocalUsage:
    """See the module."""

    def __init__(self, machine: Machine, loop: asyncio.AbstractEventLoop, clock: Callable[[], Instant]) -> None:
        self._machine = machine
        self._clock = clock
        self._loop = loop
        self._containers: dict[Key, _Readings] = {}
        first = of_machine(clock())
        self._node: _Readings = (first, first)
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(_EVERY, self._look)

    def of_pod(self, uid: str) -> Measured | None:
        """What each container of a pod uses; None before that is known."""
        runs = [run for run in map(run_of, self._machine.runs(uid)) if run.phase == RUNNING and run.container]
        rates = {run.container: _rate(self._readings(run)) for run in runs}
        if not rates or any(rate is None for rate in rates.values()):
            return None
        found = {name: rate for name, rate in rates.items() if rate is not None}
        return Measured({name: rate.usage for name, rate in found.items()}, min(rate.window for rate in found.values()))

    def of_node(self) -> Measured | None:
        """What the whole machine uses, by the name ''; None before that is known."""
        old, new = self._node
        if new.at - old.at < _LEAST:
            self._node = (old, of_machine(self._clock()))
        rate = _rate(self._node)
        return None if rate is None else Measured({"": rate.usage}, rate.window)

    def close(self) -> None:
        """Read no more."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _readings(self, run: Run) -> _Readings:
        """Its last readings; of one that was never read what it used since it began."""
        key = key_of(run.obj)
        found = self._containers.get(key)
        if found is None or found[1].at - found[0].at < _LEAST:
            found = (Reading(run.started_at, 0, 0), of_container(self._clock(), *self._asked(run)))
            self._containers[key] = found
        return found

    def _asked(self, run: Run) -> tuple[int, Mapping[str, str]]:
        """Of whom a reading is taken: a keeper, and a control group."""
        key = key_of(run.obj)
        sandbox: Obj | None = self._machine.run(Key(RUN, key.namespace, SANDBOX))
        groups: Mapping[str, Any] = ((sandbox or {}).get("status") or {}).get("cgroup") or {}
        own = {name: f"{path}/{run.container}-{run.attempt}" for name, path in groups.items()}
        return run.status["keeper"], own

    def _look(self) -> None:
        self._timer = self._loop.call_later(_EVERY, self._look)
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._read())

    async def _read(self) -> None:
        """Take a reading of everything, in a thread: there may be many to read."""
        runs = [run for run in map(run_of, self._machine.runs()) if run.phase == RUNNING and run.container]
        asked = {key_of(run.obj): self._asked(run) for run in runs}
        begun = {key_of(run.obj): Reading(run.started_at, 0, 0) for run in runs}
        read = await self._loop.run_in_executor(
            None, lambda: {key: of_container(self._clock(), *of) for key, of in asked.items()}
        )
        known = {key: readings[1] for key, readings in self._containers.items()}
        self._containers = {key: (known.get(key, begun[key]), reading) for key, reading in read.items()}
        self._node = (self._node[1], of_machine(self._clock()))


class _Rate:
    """What is used of each resource, and over how many microseconds that was measured."""

    def __init__(self, old: Reading, new: Reading) -> None:
        self.window = new.at - old.at
        thousandths = max(0, new.cpu - old.cpu) * 1000 // self.window
        self.usage = {"cpu": thousandths, "memory": new.memory}


def _rate(readings: _Readings) -> _Rate | None:
    old, new = readings
    return None if new.at - old.at < _LEAST else _Rate(old, new)
