"""Decisions that upstream did not make, put among those it made."""

from collections.abc import Sequence

from batchyard.api import scheme
from batchyard.api.meta import key_of
from batchyard.sim.scenario import Scenario
from oracle.upstream import Record


def another_flavor(scenario: Scenario, log: Sequence[Record]) -> tuple[list[Record], Record]:
    """The first admission in a queue of several flavors has another one."""
    flavors = _flavors(scenario)
    for place, record in enumerate(log):
        if record["event"] != "QuotaReserved" or len(record["podSets"]) > 1:
            continue
        (pod_set,) = record["podSets"]
        first = next(iter(pod_set["flavors"].values()))
        others = [each for each in flavors[record["clusterQueue"]] if each != first]
        if others:
            changed = {**pod_set, "flavors": dict.fromkeys(pod_set["flavors"], others[0])}
            return _with(log, place, {**record, "podSets": [changed]})
    raise AssertionError("there is no such admission")


def another_victim(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """The first preemption of one of several who hold quota in a queue is of another of these."""
    held: dict[str, str] = {}
    for place, record in enumerate(log):
        match record["event"]:
            case "QuotaReserved":
                held[record["workload"]] = record["clusterQueue"]
            case "Preempted":
                queue = held.pop(record["workload"])
                others = [each for each, of in held.items() if of == queue]
                if others:
                    return _with(log, place, {**record, "workload": others[0]})
            case "Finished" | "Evicted":
                held.pop(record["workload"], None)
    raise AssertionError("there is no such preemption")


def too_early(log: Sequence[Record], by: float) -> tuple[list[Record], Record]:
    """An admission that came when another ended comes so much earlier."""
    for place, record in enumerate(log):
        before = log[place - 1]
        is_after = place and before["event"] == "Finished" and before["time"] == record["time"]
        if record["event"] == "QuotaReserved" and is_after:
            early = {**record, "time": record["time"] - by}
            rest = [*log[:place], *log[place + 1 :]]
            return sorted([*rest, early], key=lambda each: float(each["time"])), early
    raise AssertionError("there is no such admission")


def left_waiting(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """The first that is admitted is not, and nothing becomes of it."""
    first = next(record for record in log if record["event"] == "QuotaReserved")
    return [record for record in log if record.get("workload") != first["workload"]], first


def _with(log: Sequence[Record], place: int, record: Record) -> tuple[list[Record], Record]:
    return [*log[:place], record, *log[place + 1 :]], record


def _flavors(scenario: Scenario) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for step in scenario.steps:
        for obj in step.apply:
            if key_of(obj).kind == scheme.CLUSTER_QUEUE:
                groups = obj["spec"].get("resourceGroups") or ()
                found[obj["metadata"]["name"]] = [each["name"] for group in groups for each in group["flavors"]]
    return found
