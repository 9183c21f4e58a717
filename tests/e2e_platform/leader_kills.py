"""The guide with operators whose leader is killed repeatedly: no decision is lost or made twice."""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import parse_quantity
from batchyard.cli.commands.live_guide import LiveGuide
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.server.platform.data_dir import JOURNAL_FILE
from batchyard.sim.guide import Guide, GuideStep
from batchyard.store.journal_file import read_journal
from e2e_platform.operator_account import forbidden_requests
from e2e_platform.operator_guide import SETTINGS, GuidePlatform, guide_platform
from e2e_platform.operator_process import OperatorRun

#: Leases as short as whole seconds allow.
ELECTION = (
    *("--leader-elect-lease-duration", "3s"),
    *("--leader-elect-renew-deadline", "2s"),
    *("--leader-elect-retry-period", "500ms"),
)
#: Time for a lease and a start, even on a slow machine.
_LEADS_WITHIN = 60.0


@dataclass
class LeaderKillOutcome:
    """The outcome of a guide."""

    kills: int = 0
    workloads: int = 0
    evictions: int = 0
    faults: list[str] = field(default_factory=list)
    #: The objects that are unfinished at the end of the guide.
    left: list[str] = field(default_factory=list)


class LeaderKiller:
    """Kills the leader of two operators repeatedly; the standby takes over, and a new standby starts."""

    def __init__(self, place: GuidePlatform, started: ExitStack, kills: int) -> None:
        self._place = place
        self._started = started
        self._left = kills
        self._is_over = threading.Event()
        self.kills = 0
        self.faults: list[str] = []
        self._leader = self._one_more().wait_until("runs admission", _LEADS_WITHIN)
        self._waiting = self._one_more().wait_until("waiting to lead", _LEADS_WITHIN)
        self._thread = threading.Thread(target=self._kill)

    def start(self) -> None:
        """Start to kill leaders."""
        self._thread.start()

    def end(self) -> None:
        """Stop to kill leaders."""
        self._is_over.set()
        self._thread.join()

    def _kill(self) -> None:
        try:
            while self.kills < self._left and not self._is_over.wait(1.0):
                self._leader.kill()
                self.kills += 1
                self._leader = self._waiting.wait_until("runs admission", _LEADS_WITHIN)
                self._waiting = self._one_more().wait_until("waiting to lead", _LEADS_WITHIN)
        except AssertionError as error:
            self.faults.append(str(error))

    def _one_more(self) -> OperatorRun:
        return self._started.enter_context(self._place.operator(*ELECTION))


def play_killed_guide(
    guide: Guide, steps: Sequence[GuideStep], folder: Path, kills: int, speed: float
) -> LeaderKillOutcome:
    """Play steps of a guide while leaders are killed, up to a number of kills; the outcome contains the faults."""
    with guide_platform(guide, folder, speed) as place, ExitStack() as started:
        killer = LeaderKiller(place, started, kills)
        killer.start()
        try:
            for _ in LiveGuide(guide, place.started).play(steps):
                pass
        finally:
            killer.end()
        changes = read_journal(place.started.folder / JOURNAL_FILE).store.changes
    result = LeaderKillOutcome(killer.kills, faults=[*killer.faults, *forbidden_requests(place.audit_log, SETTINGS)])
    _check_workloads(changes, result)
    result.faults += _quota_faults(changes)
    return result


def _check_workloads(changes: Sequence[WatchEvent], found: LeaderKillOutcome) -> None:
    """Check that each Workload got quota once plus once for each eviction, and that each job has one Workload."""
    given, evicted, owners = Counter[str](), Counter[str](), Counter[str]()
    for change in changes:
        if change.key.kind != scheme.WORKLOAD or change.type is EventType.DELETED:
            continue
        name = str(change.key)
        given[name] += _rises(change, "QuotaReserved")
        evicted[name] += _rises(change, "Evicted")
        owners[name] = 1
    found.workloads, found.evictions = len(owners), evicted.total()
    for name, count in given.items():
        if count > 1 + evicted[name]:
            found.faults.append(f"{name} got quota {count} times, and was evicted {evicted[name]} times")
    found.faults += _duplicate_creations(changes)
    found.left += _unfinished_objects(changes)


def _unfinished_objects(changes: Sequence[WatchEvent]) -> Iterator[str]:
    """The unfinished objects."""
    last = {
        change.key: change for change in changes if change.key.kind in {scheme.JOB, scheme.JOB_SET, scheme.WORKLOAD}
    }
    for key, change in last.items():
        has_ended = {"Complete", "Completed", "Finished"} & {*_true(change.obj)}
        if not has_ended and change.type is not EventType.DELETED:
            yield f"{key} has not come to its end: {_true(change.obj)}"


def _duplicate_creations(changes: Sequence[WatchEvent]) -> Iterator[str]:
    """Jobs and Workloads that were created more than once, and jobs with more than one Workload."""
    kinds = {scheme.WORKLOAD, scheme.JOB}
    created = [change for change in changes if change.type is EventType.ADDED and change.key.kind in kinds]
    for key, count in Counter(change.key for change in created).items():
        if count > 1:
            yield f"{key} was made {count} times"
    workloads = [change.obj["metadata"] for change in created if change.key.kind == scheme.WORKLOAD]
    owners = Counter(owner["uid"] for metadata in workloads for owner in metadata.get("ownerReferences") or ())
    yield from (f"the job {uid} has {count} Workloads" for uid, count in owners.items() if count > 1)


def _quota_faults(changes: Sequence[WatchEvent]) -> Iterator[str]:
    """Revisions at which the usage of a flavor exceeds the quota of all queues."""
    quotas: dict[str, Mapping[tuple[str, str], int]] = {}
    held: dict[str, Mapping[tuple[str, str], int]] = {}
    for change in changes:
        if change.key.kind == scheme.CLUSTER_QUEUE:
            quotas[change.key.name] = _nominal(change.obj)
        elif change.key.kind == scheme.WORKLOAD:
            held[str(change.key)] = {} if change.type is EventType.DELETED else _usage(change.obj)
            total = Counter[tuple[str, str]]()
            for each in held.values():
                total.update(each)
            for what, amount in total.items():
                if amount > sum(quota.get(what, 0) for quota in quotas.values()):
                    yield f"revision {change.revision}: {amount} of {what} are given"


def _nominal(queue: Mapping[str, Any]) -> Mapping[tuple[str, str], int]:
    groups = queue["spec"].get("resourceGroups") or ()
    flavors = [flavor for group in groups for flavor in group["flavors"]]
    return {(f["name"], r["name"]): parse_quantity(r["nominalQuota"]) for f in flavors for r in f["resources"]}


def _usage(workload: Mapping[str, Any]) -> Mapping[tuple[str, str], int]:
    if "QuotaReserved" not in _true(workload) or "Finished" in _true(workload):
        return {}
    used = Counter[tuple[str, str]]()
    for each in workload["status"]["admission"]["podSetAssignments"]:
        for resource, flavor in (each.get("flavors") or {}).items():
            used[flavor, resource] += parse_quantity(each["resourceUsage"][resource])
    return used


def _rises(change: WatchEvent, condition: str) -> bool:
    return condition in _true(change.obj) and (change.old is None or condition not in _true(change.old))


def _true(obj: Mapping[str, Any]) -> list[str]:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return [each["type"] for each in conditions if each["status"] == "True"]
