"""Faults: what a scenario injects, and when.

    faults:
    - {at: 10m, fail: {node: gke-...}}                                    the machine of a node crashes
    - {at: 10m, fail: {pool: spot-np, count: 3}}                          those of 3 nodes of a pool
    - {at: 10m, fail: {jobSet: team/train}}                               one under a JobSet's pods; `pod:` likewise
    - {at: 10m, fail: {slice: tpu-0}}                                     all machines of a pool
    - {at: 10m, reclaimSpot: {pool: spot-np, count: 2}}                   the cloud reclaims them, in 30 seconds
    - {at: 10m, stockout: {machine: a2-highgpu-1g, zone: z, for: 30m}}    the cloud has none of them for a while
    - {at: 10m, slowBoot: {machine: g2-standard-24, times: 4, for: 1h}}   they take 4 times as long to boot
    - {at: 10m, drain: {node: gke-..., for: 30m}}                         cordoned, drained, and uncordoned later
    - {at: 10m, conflicts: {percent: 20, for: 5m}}                        20 % of the platform's writes conflict
    - {at: 10m, restart: true}                                            the platform crashes and restarts
    - {every: {mean: 2h, seed: 7, until: 24h}, fail: {pool: spot-np}}     repeatedly, at random

Random faults have exponentially distributed intervals of the given mean, determined by the seed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeAlias

from batchyard.api.errors import Conflict, FieldError
from batchyard.api.meta import Key, Obj
from batchyard.base import draw
from batchyard.base.instant import SECOND, Duration, parse_duration
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import Listener, Write, WriteResult

_DRAWS: Final = 1 << 52
#: The maximum of occurrences of a repeated fault, which otherwise ends with the run.
REPETITIONS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Fail:
    """Machines crash: of a node, of a pool, under a pod or a JobSet (`namespace/name`), or a whole slice."""

    node: str = ""
    pool: str = ""
    pod: str = ""
    job_set: str = ""
    slice: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class ReclaimSpot:
    """The cloud reclaims Spot machines of a pool."""

    pool: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Stockout:
    """A machine type is sold out for a while: in one zone or in all, for one provisioning model or for all."""

    machine: str
    lasts: Duration
    zone: str = ""
    provisioning: str = ""


@dataclass(frozen=True, slots=True)
class SlowBoot:
    """Machines of a type take `times` as long to boot, for a while."""

    machine: str
    times: int
    lasts: Duration


@dataclass(frozen=True, slots=True)
class Drain:
    """A node is cordoned and drained; it is uncordoned after a while, or never."""

    node: str
    lasts: Duration | None = None


@dataclass(frozen=True, slots=True)
class Conflicts:
    """A percentage of the platform's writes meets a conflict, for a while."""

    percent: int
    lasts: Duration


@dataclass(frozen=True, slots=True)
class Restart:
    """The platform crashes and restarts."""


Action: TypeAlias = Fail | ReclaimSpot | Stockout | SlowBoot | Drain | Conflicts | Restart


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """A fault that happens once or repeatedly."""

    action: Action
    #: Its path in the scenario.
    path: str = ""
    #: Its time, if it happens once.
    at: Duration | None = None
    #: The mean interval of a repeated fault, its end, and its seed.
    mean: Duration = 0
    until: Duration | None = None
    seed: int = 0

    @property
    def troubles_writes(self) -> bool:
        """Whether it disturbs the connection between the platform and the store."""
        return isinstance(self.action, Conflicts | Restart)

    def times(self) -> Iterator[Duration]:
        """Yield its times, from the start of the run."""
        if self.at is not None:
            yield self.at
            return
        now = 0
        for number in count():
            drawn = (draw(self.seed, "fault", repr(self.action), str(number)) + 1) / _DRAWS
            now += max(SECOND, round(-math.log(drawn) * self.mean))
            if number >= REPETITIONS_MAX or (self.until is not None and now > self.until):
                return
            yield now


def read_faults(listed: Sequence[Mapping[str, Any]], faults: list[FieldError]) -> list[ScheduledFault]:
    """Parse the faults of a scenario; errors are added to `faults`."""
    read = []
    for number, given in enumerate(listed):
        path = f"spec.faults[{number}]"
        wrong = [*_timing_faults(given, path), *_action_faults(given, path)]
        faults += wrong
        if not wrong:
            read.append(_fault(given, path))
    return read


def _timing_faults(given: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if ("at" in given) == ("every" in given):
        yield FieldError(path, "exactly one of at and every says when", "write `at: 10m` or `every: {mean: 2h}`")
    if "every" in given and not parse_duration(given["every"]["mean"]):
        yield FieldError(f"{path}.every.mean", "the mean must be greater than 0", "write a duration, such as 2h")
    if "every" in given and not parse_duration(given["every"].get("until", "1s")):
        yield FieldError(f"{path}.every.until", "it would end before it begins", "write a duration, such as 24h")


def _action_faults(given: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    named = [name for name in _ACTIONS if name in given]
    if len(named) != 1:
        problem = f"{', '.join(named)} are too many" if named else "no fault is named"
        yield FieldError(path, problem, f"name one of {', '.join(_ACTIONS)}")
        return
    name = named[0]
    if name == "fail":
        yield from _failure_faults(given["fail"], f"{path}.fail")
    elif name == "restart" and not given["restart"]:
        yield FieldError(f"{path}.restart", "false would do nothing", "write true, or leave the fault out")
    elif name in _LASTING and not parse_duration(given[name]["for"]):
        yield FieldError(f"{path}.{name}.for", "it would be over at once", "write a duration, such as 30m")


def _failure_faults(given: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    targets = [name for name in _TARGETS if name in given]
    if len(targets) != 1:
        problem = f"{', '.join(targets)} are too many" if targets else "no target is named"
        yield FieldError(path, problem, f"name one of {', '.join(_TARGETS)}")
        return
    target = targets[0]
    if target in _COUNTED_BY_THEMSELVES and given.get("count", 1) > 1:
        remedy = "leave it out, or name a pool or a JobSet"
        yield FieldError(f"{path}.count", f"a {target} determines by itself how many machines are lost", remedy)
    parts = given[target].split("/") if target in _NAMESPACED else ["name"]
    if len(parts) > 2 or not all(parts):
        remedy = "write it as namespace/name, or as the name alone for namespace default"
        yield FieldError(f"{path}.{target}", f"{given[target]!r} is not a name", remedy)


def _fault(given: Mapping[str, Any], path: str) -> ScheduledFault:
    name = next(name for name in _ACTIONS if name in given)
    action = _ACTIONS[name](given[name])
    if "at" in given:
        return ScheduledFault(action, path, parse_duration(given["at"]))
    every = given["every"]
    until = parse_duration(every["until"]) if "until" in every else None
    return ScheduledFault(action, path, None, parse_duration(every["mean"]), until, every.get("seed", 0))


def _fail(given: Mapping[str, Any]) -> Fail:
    names = {"jobSet": "job_set"}
    return Fail(**{names.get(field, field): value for field, value in given.items()})


_TARGETS: Final = ("node", "pool", "pod", "jobSet", "slice")
_NAMESPACED: Final = ("pod", "jobSet")
_COUNTED_BY_THEMSELVES: Final = ("node", "pod", "slice")
_LASTING: Final = ("stockout", "slowBoot", "conflicts")
_ACTIONS: Final[Mapping[str, Callable[[Any], Action]]] = {
    "fail": _fail,
    "reclaimSpot": lambda given: ReclaimSpot(**given),
    "stockout": lambda given: Stockout(
        given["machine"], parse_duration(given["for"]), given.get("zone", ""), given.get("provisioning", "")
    ),
    "slowBoot": lambda given: SlowBoot(given["machine"], given["times"], parse_duration(given["for"])),
    "drain": lambda given: Drain(given["node"], parse_duration(given["for"]) if "for" in given else None),
    "conflicts": lambda given: Conflicts(given["percent"], parse_duration(given["for"])),
    "restart": lambda _: Restart(),
}


# --- faulty client ---
#
# A client with faults: it drops what a crash loses, and rejects writes with conflicts.
#
# The platform uses it if the scenario has such faults. A crash comes between two writes: earlier writes are stored, the
# rest of the outcome is lost, and no further events are delivered.


class WriteFaults:
    """Faults between the platform and the store: the rate of conflicts, and a callback that can crash the platform."""

    def __init__(self, conflicts: float = 0.0) -> None:
        #: The baseline share of writes that conflict, from 0 to 1.
        self.conflicts_always = conflicts
        #: The current share of writes that conflict; they are spread evenly.
        self.conflicts = conflicts
        #: Called after each accepted write of the platform, with the number of these writes.
        self.on_write: Callable[[int], None] | None = None
        self._asked = 0
        self._written = 0

    def refuses(self) -> bool:
        """Whether the next write meets a conflict."""
        self._asked += 1
        return int(self._asked * self.conflicts) > int((self._asked - 1) * self.conflicts)

    def wrote(self) -> None:
        """Count an accepted write."""
        self._written += 1
        if self.on_write is not None:
            self.on_write(self._written)


class FaultyClient:
    """A client in front of the real one, until a crash."""

    def __init__(self, client: LocalClient, trouble: WriteFaults) -> None:
        self._client = client
        self._trouble = trouble
        self._listeners: list[Listener] = []
        self._is_cut = False

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        return self._client.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""
        return self._client.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the objects controlled by an owner, by its uid and namespace (or none), sorted by kind and name."""
        return self._client.owned_by(uid, namespace)

    def subscribe(self, listener: Listener) -> None:
        """Subscribe a listener to later changes, until the crash."""
        self._listeners.append(listener)
        self._client.subscribe(listener)

    def settled(self) -> bool:
        """Whether all changes and all results of writes have been delivered."""
        return self._client.settled()

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Apply writes in order until a crash or an error; some are rejected with a conflict."""
        for write in writes:
            if self._is_cut:
                return
            result = self._attempt(write)
            if result.error is not None:
                break
        self._client.answer(done, result)

    def _attempt(self, write: Write) -> WriteResult:
        if self._trouble.refuses():
            return WriteResult(None, Conflict("the object has been modified; please apply your changes again"))
        result = self._client.attempt(write)
        if result.error is None:
            self._trouble.wrote()
        return result

    def cut(self) -> None:
        """Crash: deliver no more events, and accept no more writes."""
        self._is_cut = True
        for listener in self._listeners:
            self._client.unsubscribe(listener)
        self._listeners.clear()
