"""Faults of a scenario: their kinds, their times, and a client that makes the platform's writes fail.

    faults:
    - {at: 10m, fail: {node: gke-...}}                                    the machine of a node crashes
    - {at: 10m, fail: {pool: spot-np, count: 3}}                          the machines of 3 nodes of a pool crash
    - {at: 10m, fail: {jobSet: team/train}}                               a machine with pods of a JobSet crashes
    - {at: 10m, fail: {slice: tpu-0}}                                     all machines of a pool crash
    - {at: 10m, reclaimSpot: {pool: spot-np, count: 2}}                   the cloud reclaims 2 machines, in 30 seconds
    - {at: 10m, stockout: {machine: a2-highgpu-1g, zone: z, for: 30m}}    the machine type is sold out
    - {at: 10m, slowBoot: {machine: g2-standard-24, times: 4, for: 1h}}   machines take 4 times as long to boot
    - {at: 10m, drain: {node: gke-..., for: 30m}}                         a node is drained, and uncordoned later
    - {at: 10m, conflicts: {percent: 20, for: 5m}}                        20 % of the platform's writes conflict
    - {at: 10m, restart: true}                                            the platform crashes and restarts
    - {every: {mean: 2h, seed: 7, until: 24h}, fail: {pool: spot-np}}     repeatedly, at random times

Random faults have exponentially distributed intervals with the given mean, determined by the seed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import count
from typing import Any, Final, TypeAlias

from batchyard.api.errors import Conflict, FieldError
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND, Duration, Instant, parse_duration
from batchyard.base.primitives import draw_integer
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import Listener, Write, WriteResult

_FRACTION_STEPS: Final = 1 << 52
#: The maximum number of occurrences of a repeated fault, which otherwise ends with the run.
REPETITIONS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Fail:
    """Machines crash: all of a slice, or at most `count` of a pool, a node, a pod or a JobSet.

    Pods and JobSets are given as `namespace/name`.
    """

    node: str = ""
    pool: str = ""
    pod: str = ""
    job_set: str = ""
    slice: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class ReclaimSpot:
    """The cloud reclaims at most `count` Spot machines of a pool."""

    pool: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Stockout:
    """A machine type is sold out for a while, in one or all zones, and for one or all provisioning models."""

    machine: str
    lasts: Duration
    zone: str = ""
    provisioning: str = ""


@dataclass(frozen=True, slots=True)
class SlowBoot:
    """Machines of a type take `times` times as long to boot, for the duration `lasts`."""

    machine: str
    times: int
    lasts: Duration


@dataclass(frozen=True, slots=True)
class Drain:
    """A fault: a node is cordoned and drained, and uncordoned after the time `lasts` (None: never)."""

    node: str
    lasts: Duration | None = None


@dataclass(frozen=True, slots=True)
class Conflicts:
    """A fault: for a while, a percentage of the platform's writes is rejected with a conflict."""

    percent: int
    lasts: Duration


@dataclass(frozen=True, slots=True)
class Restart:
    """The platform crashes and restarts."""


LastingAction: TypeAlias = Stockout | SlowBoot | Drain | Conflicts
Action: TypeAlias = Fail | ReclaimSpot | LastingAction | Restart
#: The text of each action, by its values in order. It seeds random draws: a change of a text changes simulations.
_SEED_TEXTS: Final[Mapping[type[Action], str]] = {
    Fail: "Fail(node={!r}, pool={!r}, pod={!r}, job_set={!r}, slice={!r}, count={!r})",
    ReclaimSpot: "ReclaimSpot(pool={!r}, count={!r})",
    Stockout: "Stockout(machine={!r}, lasts={!r}, zone={!r}, provisioning={!r})",
    SlowBoot: "SlowBoot(machine={!r}, times={!r}, lasts={!r})",
    Drain: "Drain(node={!r}, lasts={!r})",
    Conflicts: "Conflicts(percent={!r}, lasts={!r})",
    Restart: "Restart()",
}


@dataclass(frozen=True, slots=True)
class FaultEnd:
    """The end of a lasting fault that is under way."""

    at: Instant
    action: LastingAction
    #: The uid of a drained node; otherwise empty.
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class LastingFaults:
    """The lasting faults that are under way in a simulation, from which another simulation can continue them."""

    #: The ends of the faults, in the order in which the faults began.
    ends: Sequence[FaultEnd] = ()
    #: The Cluster without the active stockouts and slow boots, and with them, as last written; None before a write.
    written_clusters: tuple[Obj, Obj] | None = None


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """A fault of a scenario that happens once or repeatedly."""

    action: Action
    #: The field path of the fault in the scenario.
    path: str = ""
    #: The time of a fault that happens once.
    at: Duration | None = None
    #: The mean interval of a repeated fault, its end, and the seed of its times.
    mean_interval: Duration = 0
    until: Duration | None = None
    seed: int = 0
    #: How long before the start of the run the times begin to count; occurrences up to the start are omitted.
    elapsed: Duration | None = None

    @property
    def affects_writes(self) -> bool:
        """Whether the fault disturbs the platform's writes to the store: conflicts, or a crash between two writes."""
        return isinstance(self.action, Conflicts | Restart)

    def draw(self, purpose: str, *names: str) -> int:
        """Return a random integer from 0 to 2**52 - 1, which is the same in each run.

        It depends on `purpose`, the names, and this fault's seed and action (the fault with its parameters).
        """
        action_text = _SEED_TEXTS[type(self.action)].format(*astuple(self.action))
        return draw_integer(self.seed, purpose, action_text, *names)

    def occurrences(self) -> Iterator[tuple[int, Duration]]:
        """Yield the number of each occurrence (from 0) and its time since the start of the run, in ascending order.

        A repeated fault occurs at most once a second, at most 100,000 times, and not after `until`.
        """
        for number, at in enumerate(self._times()):
            if self.elapsed is None:
                yield number, at
            elif at > self.elapsed:
                yield number, at - self.elapsed

    def _times(self) -> Iterator[Duration]:
        if self.at is not None:
            yield self.at
            return
        now = 0
        for number in count():
            fraction = (self.draw("fault", str(number)) + 1) / _FRACTION_STEPS
            now += max(SECOND, round(-math.log(fraction) * self.mean_interval))
            if number >= REPETITIONS_MAX or (self.until is not None and now > self.until):
                return
            yield now


def read_faults(fault_entries: Sequence[Mapping[str, Any]], errors: list[FieldError]) -> list[ScheduledFault]:
    """Return the valid faults of a Scenario's `spec.faults`; add the errors of the invalid ones to `errors`."""
    parsed_faults = []
    for number, manifest_fields in enumerate(fault_entries):
        path = f"spec.faults[{number}]"
        field_errors = [*_timing_errors(manifest_fields, path), *_action_errors(manifest_fields, path)]
        errors += field_errors
        if not field_errors:
            parsed_faults.append(_parse_fault(manifest_fields, path))
    return parsed_faults


def _timing_errors(manifest_fields: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if ("at" in manifest_fields) == ("every" in manifest_fields):
        yield FieldError(path, "exactly one of at and every must be set", "write `at: 10m` or `every: {mean: 2h}`")
    if "every" in manifest_fields and not parse_duration(manifest_fields["every"]["mean"]):
        yield FieldError(f"{path}.every.mean", "must be a duration greater than 0", "write a duration such as 2h")
    if "every" in manifest_fields and not parse_duration(manifest_fields["every"].get("until", "1s")):
        yield FieldError(f"{path}.every.until", "must be a duration greater than 0", "write a duration such as 24h")


def _action_errors(manifest_fields: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    names = [name for name in _ACTION_PARSERS if name in manifest_fields]
    if len(names) != 1:
        problem = f"{', '.join(names)} cannot be combined in one fault" if names else "no kind of fault is set"
        yield FieldError(path, problem, f"set one of {', '.join(_ACTION_PARSERS)}")
        return
    name = names[0]
    if name == "fail":
        yield from _failure_errors(manifest_fields["fail"], f"{path}.fail")
    elif name == "restart" and not manifest_fields["restart"]:
        yield FieldError(f"{path}.restart", "must be true, not false", "write true, or remove the fault")
    elif name in _LASTING_FAULTS and not parse_duration(manifest_fields[name]["for"]):
        yield FieldError(f"{path}.{name}.for", "must be a duration greater than 0", "write a duration such as 30m")


def _failure_errors(manifest_fields: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    target_fields = [name for name in _TARGET_FIELDS if name in manifest_fields]
    if len(target_fields) != 1:
        problem = f"{', '.join(target_fields)} cannot be combined in one fault" if target_fields else "no target is set"
        yield FieldError(path, problem, f"set one of {', '.join(_TARGET_FIELDS)}")
        return
    target_field = target_fields[0]
    if target_field in _SINGLE_TARGETS and manifest_fields.get("count", 1) > 1:
        remedy = f"remove count, or set pool or jobSet instead of {target_field}"
        yield FieldError(f"{path}.count", f"count must be 1 with {target_field}", remedy)
    name_parts = manifest_fields[target_field].split("/") if target_field in _NAMESPACED_TARGETS else ["name"]
    if len(name_parts) > 2 or not all(name_parts):
        remedy = "write namespace/name, or only the name for namespace default"
        yield FieldError(f"{path}.{target_field}", f"{manifest_fields[target_field]!r} is not a valid name", remedy)


def _parse_fault(manifest_fields: Mapping[str, Any], path: str) -> ScheduledFault:
    name = next(name for name in _ACTION_PARSERS if name in manifest_fields)
    action = _ACTION_PARSERS[name](manifest_fields[name])
    if "at" in manifest_fields:
        return ScheduledFault(action, path, parse_duration(manifest_fields["at"]))
    every = manifest_fields["every"]
    end_time = parse_duration(every["until"]) if "until" in every else None
    return ScheduledFault(action, path, None, parse_duration(every["mean"]), end_time, every.get("seed", 0))


def _parse_fail(manifest_fields: Mapping[str, Any]) -> Fail:
    names = {"jobSet": "job_set"}
    return Fail(**{names.get(field, field): value for field, value in manifest_fields.items()})


_TARGET_FIELDS: Final = ("node", "pool", "pod", "jobSet", "slice")
_NAMESPACED_TARGETS: Final = ("pod", "jobSet")
_SINGLE_TARGETS: Final = ("node", "pod", "slice")
_LASTING_FAULTS: Final = ("stockout", "slowBoot", "conflicts")
_ACTION_PARSERS: Final[Mapping[str, Callable[[Any], Action]]] = {
    "fail": _parse_fail,
    "reclaimSpot": lambda manifest_fields: ReclaimSpot(**manifest_fields),
    "stockout": lambda manifest_fields: Stockout(
        manifest_fields["machine"],
        parse_duration(manifest_fields["for"]),
        manifest_fields.get("zone", ""),
        manifest_fields.get("provisioning", ""),
    ),
    "slowBoot": lambda manifest_fields: SlowBoot(
        manifest_fields["machine"], manifest_fields["times"], parse_duration(manifest_fields["for"])
    ),
    "drain": lambda manifest_fields: Drain(
        manifest_fields["node"], parse_duration(manifest_fields["for"]) if "for" in manifest_fields else None
    ),
    "conflicts": lambda manifest_fields: Conflicts(manifest_fields["percent"], parse_duration(manifest_fields["for"])),
    "restart": lambda _: Restart(),
}


# A client that injects crashes and conflicts between the platform and the store.
#
# The platform uses the client if the scenario has such faults. A crash happens between two writes: earlier writes are
# stored, later ones are dropped, and no further events are delivered.


class WriteFaults:
    """Rejects a fraction of the platform's writes with conflicts, and calls a hook after each accepted write."""

    def __init__(self, conflict_rate: float = 0.0) -> None:
        #: The minimum of `conflict_rate`, from 0 to 1, which faults of the scenario can exceed.
        self.base_conflict_rate = conflict_rate
        #: The current fraction of writes that conflict, spread evenly over the writes.
        self.conflict_rate = conflict_rate
        #: Called after each accepted write of the platform, with the number of these writes.
        self.on_write: Callable[[int], None] | None = None
        self._attempts = 0
        self._accepted_writes = 0

    def is_conflict_due(self) -> bool:
        """Count an attempted write; return whether it must be rejected with a conflict."""
        self._attempts += 1
        return int(self._attempts * self.conflict_rate) > int((self._attempts - 1) * self.conflict_rate)

    def count_write(self) -> None:
        """Count an accepted write, and call `on_write`."""
        self._accepted_writes += 1
        if self.on_write is not None:
            self.on_write(self._accepted_writes)


class FaultyClient:
    """A client for the platform that rejects some writes as conflicts, and drops writes and events after a crash."""

    def __init__(self, client: LocalClient, write_faults: WriteFaults) -> None:
        self._client = client
        self._write_faults = write_faults
        self._listeners: list[Listener] = []
        self._is_crashed = False

    def get(self, key: Key) -> Obj | None:
        """Return a stored object by its key; None if it does not exist."""
        return self._client.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all stored objects of a kind, or those in a namespace, sorted by namespace and name."""
        return self._client.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of the owner with a uid in a namespace, sorted by kind, namespace and name."""
        return self._client.owned_by(uid, namespace)

    def subscribe(self, listener: Listener) -> None:
        """Subscribe a listener to watch events until the platform crashes."""
        self._listeners.append(listener)
        self._client.subscribe(listener)

    def is_settled(self) -> bool:
        """Return whether all watch events and all results of writes have been delivered."""
        return self._client.is_settled()

    def submit(self, writes: Sequence[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Submit writes in order until a crash or an error; some writes are rejected with a conflict.

        If the platform crashes before the last write, `on_result` is never called: a process that has crashed learns
        no results, and the restarted platform reads the stored objects.
        """
        for write in writes:
            if self._is_crashed:
                return
            result = self._attempt_write(write)
            if result.error is not None:
                break
        self._client.queue_result(on_result, result)

    def _attempt_write(self, write: Write) -> WriteResult:
        if self._write_faults.is_conflict_due():
            return WriteResult(None, Conflict("the object has been modified; please apply your changes again"))
        result = self._client.attempt(write)
        if result.error is None:
            self._write_faults.count_write()
        return result

    def crash(self) -> None:
        """Simulate a crash of the platform: deliver no more events, and drop all later writes."""
        self._is_crashed = True
        for listener in self._listeners:
            self._client.unsubscribe(listener)
        self._listeners.clear()
