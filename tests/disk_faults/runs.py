"""Runs of the store on a simulated disk: steps with faults from a seed, and the checks after each restart.

The rules that each run checks:

- A restarted store holds exactly the objects of one revision of the history, and this revision is not older than the
  last acknowledged one. Otherwise the start is refused with a JournalError that names file, place and remedy.
- On an honest disk a start is refused only for an error during this start. The next start succeeds.
- After a failed flush of changes, no change is acknowledged until the store starts again.
"""

import gc
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NamedTuple

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.store import journal_file
from batchyard.store.journal import REVISION_LEAP, RevisionJournal, SyncMode, back_up, restore_backup
from batchyard.store.journal_file import JournalError
from batchyard.store.memory import RecoveredStore, Store
from disk_faults.disk import ANY_CALL, CALLS, DISHONEST, EFFECTS, Fault, SimulatedDisk
from disk_faults.python_files import SimulatedPath, store_on
from fuzz.seeded_random import SeededRandom

#: Actions with their weights.
_ACTIONS: Final = {
    "write": 50,
    "large write": 6,
    "compact": 12,
    "checkpoint": 8,
    "stop": 8,
    "kill": 8,
    "power loss": 10,
    "evict": 4,
    "backup": 3,
    "setting": 2,
}
#: What names the place of the damage: an offset, a whole file, or the header of the file.
_PLACES: Final = ("offset", "is missing", "without its journal", "is not a batchyard journal", "has journal format")
_NAMES: Final = "abcdefgh"
_STARTS_MAX: Final = 4
#: Exceptions that a user would see as a traceback.
_DEFECTS: Final = (OSError, sqlite3.Error, AssertionError, ValueError, LookupError, TypeError, AttributeError)


class Step(NamedTuple):
    """An action of a run, its size, and the faults that meet its calls."""

    action: str
    size: int
    faults: tuple[Fault, ...] = ()


class RunResult(NamedTuple):
    """The outcome of a run, the violated rule ('' if none), and how often each fault had its effect."""

    outcome: str
    violation: str
    effects: Counter[str]
    calls: int
    acknowledged: int
    starts: int


class BrokenRuleError(Exception):
    """The store broke a rule; the message names it."""


class RefusedStartError(Exception):
    """The start was refused because of what a dishonest disk did."""


def draw_steps(seed: object, *, honest: bool = False) -> list[Step]:
    """Return the steps of a seed."""
    random = SeededRandom("steps", seed)
    actions = [action for action, weight in _ACTIONS.items() for _ in range(weight)]
    may_lie = not honest and random.happens(50)
    fault_percent = random.one_of((10, 25, 50))
    steps = [Step("start", 0, _draw_faults(random, fault_percent // 2, may_lie=may_lie))]
    for _ in range(4 + random.below(28)):
        action = random.one_of(actions)
        if may_lie and random.happens(3):
            action = "bit rot"
        steps.append(Step(action, random.below(1 << 16), _draw_faults(random, fault_percent, may_lie=may_lie)))
    return steps


def _draw_faults(random: SeededRandom, percent: int, *, may_lie: bool) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    while len(faults) < 3 and random.happens(percent):
        if random.happens(30):
            faults.append(Fault(ANY_CALL, random.below(1 << random.below(8)), random.one_of(EFFECTS[ANY_CALL])))
            continue
        call = random.one_of(CALLS)
        effects = [effect for effect in EFFECTS[call] if may_lie or effect not in DISHONEST]
        faults.append(Fault(call, random.below(1 << random.below(6)), random.one_of(effects)))
    return tuple(faults)


class StepLoop:
    """An event loop without time: callbacks run in order when the run says so."""

    def __init__(self) -> None:
        self.callbacks: deque[Callable[[], None]] = deque()
        self._timers: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Queue a callback."""
        self.callbacks.append(lambda: callback(*arguments))

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> "StepLoop":
        """Queue a callback for the end of the step."""
        self._timers.append(callback)
        return self

    def run(self) -> None:
        """Run all callbacks, and those that they queue."""
        while self.callbacks:
            self.callbacks.popleft()()

    def run_timers(self) -> None:
        """Run the callbacks of the end of the step."""
        while self._timers:
            self._timers.pop()()
        self.run()


class StepWriter:
    """Runs the journal's writes in order on the event loop, instead of on a thread."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        """Queue a write."""
        self._loop.call_soon(self._run, work, on_done)

    def _run(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except (JournalError, *_DEFECTS) as error:
            result = error
        self._loop.call_soon(on_done, result)


class AcknowledgedRevisions:
    """Watches the durable changes, as clients do."""

    def __init__(self, run: "StoreRun") -> None:
        self._run = run

    def process_changes(self, changes: Iterable[WatchEvent]) -> None:
        """Record the last change."""
        for change in changes:
            self._run.acknowledge(change.revision)

    def forget_changes(self, _revision: int) -> None:
        """Hold no changes."""

    def end(self) -> None:
        """Do nothing."""


class StoreRun:
    """A store on a simulated disk, its history, and the last acknowledged revision."""

    sync: ClassVar[SyncMode] = SyncMode.FULL

    def __init__(self, seed: object) -> None:
        self.disk = SimulatedDisk(seed, "/data/journal.db-wal")
        self.acknowledged = 0
        self.acknowledged_count = 0
        self.starts = 0
        self.refused = ""
        #: How often changes were lost that neither the journal nor its mark had on a disk that confirmed them.
        self.undetectable = 0
        self._lost_confirmed_writes = False
        self._flushed_mark = 0
        self._number = 0
        self._path = SimulatedPath("/data/journal.db")
        self._history: dict[int, tuple[Key, Obj | None]] = {}
        self._base: tuple[int, dict[Key, Obj]] = (0, {})
        self._loop = StepLoop()
        self._journal: RevisionJournal | None = None
        self._store: Store
        self._commit: GroupCommit
        self._forget_processes: Callable[[], None]

    def play(self, steps: list[Step]) -> RunResult:
        """Take all steps; return what happened."""
        violation = outcome = ""
        with store_on(self.disk) as (python_files, sqlite_files):

            def forget_processes() -> None:
                python_files.forget_processes()
                sqlite_files.forget_processes()

            self._forget_processes = forget_processes
            try:
                for step in [*steps, Step("power loss", 0)]:
                    self.disk.begin_step(step.faults)
                    self._take(step)
                outcome = "undetectable" if self.undetectable else "kept"
            except BrokenRuleError as error:
                outcome, violation = "violated", str(error)
            except RefusedStartError as error:
                outcome, self.refused = "refused", str(error)
            except _DEFECTS as error:
                outcome, violation = "violated", f"{type(error).__name__}: {error}"
            self._end_process()
        calls = sum(self.disk.calls.values())
        return RunResult(outcome, violation, self.disk.effects, calls, self.acknowledged_count, self.starts)

    def acknowledge(self, revision: int) -> None:
        """Record that clients know this revision."""
        if self.disk.halted:
            return
        if self.disk.is_flush_failed:
            raise BrokenRuleError(f"revision {revision} was acknowledged after a failed flush")
        self.acknowledged_count += 1
        self.acknowledged = max(self.acknowledged, revision)

    # --- steps ---

    def _take(self, step: Step) -> None:
        if step.action in ("kill", "power loss"):
            self.disk.halted = self.disk.halted or step.action
            self._restart()
            return
        if self._journal is None and step.action != "start":
            self._restart()
        if step.action == "start":
            self._restart()
        elif step.action == "evict":
            self.disk.evict_clean_pages()
        elif step.action == "bit rot":
            self.disk.flip_bit()
        else:
            actions = {
                "write": self._write,
                "large write": self._write,
                "compact": self._compact,
                "checkpoint": self._checkpoint,
                "stop": self._stop_and_start,
                "backup": self._back_up,
                "setting": self._record_setting,
            }
            actions[step.action](step)
        self._loop.run_timers()
        if self.disk.halted or self._journal is None or self._commit.failure is not None:
            if self._journal is not None and not self.disk.halted and step.size % 2:
                self._stop()
            self._restart()

    def _write(self, step: Step) -> None:
        random = SeededRandom("write", step.size, self._store.revision)
        length = 20_000 if step.action == "large write" else 40 << random.below(5)
        for _ in range(1 + random.below(6) * random.below(3)):
            key = Key("ConfigMap", "team", random.one_of(_NAMES))
            self._number += 1
            if self._store.get(key) is not None and random.happens(25):
                self._store.delete(key)
            else:
                metadata = {"name": key.name, "namespace": key.namespace}
                content = {"n": str(self._number), "x": chr(97 + self._number % 26) * length}
                self._store.put(key, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": content})
            if random.happens(30):
                self._loop.run()
        self._loop.run()

    def _compact(self, step: Step) -> None:
        floor = self._commit.durable_revision - step.size % 4
        if floor > self._base[0]:
            self._commit._compact_journal(floor)
            self._loop.run()

    def _checkpoint(self, _step: Step) -> None:
        """Move the log into the file, as SQLite does after 1000 pages."""
        assert self._journal is not None
        try:
            self._journal._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error:
            return

    def _record_setting(self, step: Step) -> None:
        assert self._journal is not None
        try:
            self._journal.record_setting("kueue-version", f"0.{17 + step.size % 4}", "0.19")
        except JournalError:
            self._stop()

    def _back_up(self, step: Step) -> None:
        """Back up, and restore the backup elsewhere: it holds what is acknowledged, exactly."""
        backup = SimulatedPath(f"/backup/{step.size}-{self._number}.backup")
        acknowledged = self.acknowledged
        try:
            revision = back_up(self._path, backup).store.revision
        except JournalError as error:
            check_message(str(error), is_damage=False)
            return
        restored = SimulatedPath(f"/restored-{step.size}-{self._number}/journal.db")
        try:
            restore_backup(backup, restored)
            journal = RevisionJournal(restored)
            contents = journal.recover()
            if self.disk.halted:
                return
            journal.close()
        except JournalError as error:
            check_message(str(error), is_damage=False)
            return
        if revision < acknowledged or contents.revision != revision + REVISION_LEAP:
            raise BrokenRuleError(f"the backup ends at revision {revision}, but {acknowledged} was acknowledged")
        if contents.objects != self._objects_at(revision):
            raise BrokenRuleError(f"the restored objects differ from those of revision {revision}")

    def _stop_and_start(self, _step: Step) -> None:
        self._stop()
        self._restart()

    def _stop(self) -> None:
        """End the program as on a signal: the remaining changes are written first."""
        self._loop.run()
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                check_message(str(error), is_damage=False)
        self._journal = None

    def _end_process(self) -> None:
        """End the program without another effect on the disk."""
        self._loop.callbacks.clear()
        if self._journal is not None:
            self.disk.halted = self.disk.halted or "kill"
            self._journal._connection.close()
            self._journal = None
        self._forget_processes()

    # --- starts ---

    def _restart(self) -> None:
        """Start until a start succeeds; on an honest disk, only a fault of this start may refuse it."""
        for _ in range(_STARTS_MAX):
            self._end_process()
            self._lost_confirmed_writes |= self.disk.is_dishonest and self.disk.halted == "power loss"
            self.disk.restart()
            before = sum(self.disk.effects.values())
            self._flushed_mark = self._read_mark() if self._lost_confirmed_writes else 0
            try:
                journal = RevisionJournal(self._path, self.sync)
            except JournalError as error:
                if self.disk.halted:
                    continue
                is_refused_by_fault = sum(self.disk.effects.values()) > before
                check_message(str(error), is_damage=not is_refused_by_fault)
                if is_refused_by_fault:
                    self.disk.begin_step(())
                    continue
                self._meet_refusal(str(error))
            except OSError:
                if not self.disk.halted:
                    raise
                continue
            if self.disk.halted:
                continue
            self._journal = journal
            self._continue_from(journal.recover())
            return
        raise BrokenRuleError("the store does not start")

    def _read_mark(self) -> int:
        """Return the revision that the commit mark has on the platter."""
        try:
            record = journal_file.read_commit_record(self._path)
        except (OSError, journal_file.DamagedCommitMarkError):
            return 0
        return record.revision if record else 0

    def _meet_refusal(self, message: str) -> None:
        if not self.disk.is_dishonest:
            raise BrokenRuleError(f"needless refusal: {message}")
        self._end_process()
        self.disk.begin_step(())
        self.disk.restart()
        try:
            contents = RevisionJournal(self._path, accept_loss=True).recover()
        except JournalError as error:
            check_message(str(error), is_damage=True)
            raise RefusedStartError(message) from error
        if not any(contents.objects == self._objects_at(revision) for revision in (self._base[0], *self._history)):
            raise BrokenRuleError(f"--accept-loss starts with objects of no revision, after: {message}")
        raise RefusedStartError(message)

    def _continue_from(self, contents: RecoveredStore) -> None:
        self.starts += 1
        revision = contents.revision
        if self._lost_confirmed_writes and self._flushed_mark <= revision < self.acknowledged:
            self.undetectable += 1
            self.acknowledged = revision
        if revision < self.acknowledged:
            raise BrokenRuleError(f"silent loss: revision {self.acknowledged} was acknowledged, {revision} is left")
        if revision > max((self._base[0], *self._history)):
            raise BrokenRuleError(f"revision {revision} was never written")
        if contents.objects != self._objects_at(revision):
            raise BrokenRuleError(f"silent change: the objects differ from those of revision {revision}")
        for change in contents.changes:
            key, obj = self._history[change.revision]
            if (change.key, None if change.type is EventType.DELETED else change.obj) != (key, obj):
                raise BrokenRuleError(f"silent change: revision {change.revision} differs")
        # Clients see what the started store serves.
        self.acknowledged = revision
        self._history = {number: change for number, change in self._history.items() if number <= revision}
        self._store = Store(contents=contents)
        self._store.listen(self._record)
        assert self._journal is not None
        self._loop = StepLoop()
        self._commit = GroupCommit(self._store, self._journal, self._loop, lambda: None)  # type: ignore[arg-type]
        self._commit._writer = StepWriter(self._loop)  # type: ignore[assignment]
        self._commit.subscribe(AcknowledgedRevisions(self))

    def _record(self, change: WatchEvent) -> None:
        self._history[change.revision] = (change.key, None if change.type is EventType.DELETED else change.obj)

    def _objects_at(self, revision: int) -> dict[Key, Obj]:
        objects: dict[Key, Obj] = {}
        for number, (key, obj) in self._history.items():
            if number > revision:
                break
            if obj is None:
                del objects[key]
            else:
                objects[key] = obj
        return objects


def check_message(message: str, *, is_damage: bool) -> None:
    """Raise BrokenRuleError if a message names no file, no remedy, or, for damage, no place in the file."""
    if "journal" not in message and "backup" not in message:
        raise BrokenRuleError(f"the message names no file: {message}")
    if "; " not in message:
        raise BrokenRuleError(f"the message names no remedy: {message}")
    if is_damage and not any(words in message for words in _PLACES):
        raise BrokenRuleError(f"the message names no offset: {message}")


def play(seed: object, steps: list[Step] | None = None) -> RunResult:
    """Play the run of a seed, or other steps on its disk."""
    # A collection during the run would close connections of an earlier process, or of an earlier run, at any call.
    gc.disable()
    try:
        return StoreRun(seed).play(draw_steps(seed) if steps is None else steps)
    finally:
        gc.collect()
        gc.enable()


def shrink(seed: object, steps: list[Step]) -> list[Step]:
    """Return a short list of steps and faults that still breaks a rule."""
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for index in reversed(range(len(steps))):
            step = steps[index]
            candidates = [[*steps[:index], *steps[index + 1 :]]]
            for fault in step.faults:
                kept = tuple(other for other in step.faults if other is not fault)
                candidates.append([*steps[:index], step._replace(faults=kept), *steps[index + 1 :]])
            for candidate in candidates:
                if play(seed, candidate).violation:
                    steps, is_shorter = candidate, True
                    break
    return steps
