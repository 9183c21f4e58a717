"""Wrong decisions injected into the decisions of upstream."""

from collections.abc import Callable, Sequence

from batchyard.api import scheme
from batchyard.api.meta import key_of
from batchyard.base.instant import SECOND
from batchyard.sim.scenario import Scenario
from differential.upstream_writes import Record


def change_flavor(scenario: Scenario, log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Change the flavor of the first admission in a queue with several flavors."""
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
    raise AssertionError("the log contains no admission that this change supports")


def change_victim(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Change the victim of the first preemption in a queue with several admitted Workloads."""
    return _with_other_victim(log, lambda _record, queue, of: of == queue)


def move_admission_earlier(log: Sequence[Record], by: float) -> tuple[list[Record], Record]:
    """Move an admission that followed the end of another Workload earlier, by `by` seconds."""
    for place, record in enumerate(log):
        before = log[place - 1]
        is_after = place and before["event"] == "Finished" and before["time"] == record["time"]
        if record["event"] == "QuotaReserved" and is_after:
            early = {**record, "time": record["time"] - by}
            rest = [*log[:place], *log[place + 1 :]]
            return sorted([*rest, early], key=lambda each: float(each["time"])), early
    raise AssertionError("the log contains no admission that this change supports")


def remove_admission(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Remove all records of the first admitted Workload."""
    first = next(record for record in log if record["event"] == "QuotaReserved")
    return [record for record in log if record.get("workload") != first["workload"]], first


def swap_workloads(scenario: Scenario, log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Exchange two equal Workloads of one queue, so that the later one is admitted first."""
    there = {obj["metadata"]["name"]: step.at / SECOND for step in scenario.steps for obj in step.apply}
    admitted = [record for record in log if record["event"] == "QuotaReserved"]
    for place, record in enumerate(admitted):
        for later in admitted[place + 1 :]:
            is_equivalent = (record["clusterQueue"], record["podSets"]) == (later["clusterQueue"], later["podSets"])
            if is_equivalent and there[later["workload"].partition("/")[2]] < record["time"] < later["time"] - 1:
                return _swap_records(log, record["workload"], later["workload"]), {
                    **record,
                    "workload": later["workload"],
                }
    raise AssertionError("the log contains no two equal Workloads of one queue")


def change_preemption_reason(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Change the reason of the first preemption."""
    place = _first(log, "Preempted")
    others = ("InClusterQueue", "InCohortReclamation")
    reason = next(each for each in others if each != log[place]["reason"])
    return _with(log, place, {**log[place], "reason": reason})


def reduce_pod_count(log: Sequence[Record], workload: str, count: int) -> tuple[list[Record], Record]:
    """Reduce the pod count of an admission with `count` pods by one."""
    for place, record in enumerate(log):
        if record["event"] == "QuotaReserved" and record["workload"] == workload:
            first, *rest = record["podSets"]
            if first["count"] == count:
                return _with(log, place, {**record, "podSets": [{**first, "count": count - 1}, *rest]})
    raise AssertionError("the log contains no admission that this change supports")


def change_fair_sharing_victim(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Change the victim of fair sharing to a Workload of a queue below its share."""
    return _with_other_victim(log, lambda record, queue, of: record["reason"] == "InCohortFairSharing" and of != queue)


def add_preemption(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Add a preemption of an admitted Workload for another admitted Workload."""
    one, other = [record for record in log if record["event"] == "QuotaReserved"][:2]
    extra = {**one, "event": "Preempted", "reason": "InClusterQueue", "by": other["workload"]}
    extra["time"] = max(one["time"], other["time"]) + 0.5
    return sorted([*log, extra], key=lambda each: float(each["time"])), extra


def change_cluster_queue(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Change the ClusterQueue of the first admission."""
    place = _first(log, "QuotaReserved")
    queues = sorted({record["clusterQueue"] for record in log if record["event"] == "QuotaReserved"})
    other = next(each for each in queues if each != log[place]["clusterQueue"])
    return _with(log, place, {**log[place], "clusterQueue": other})


def remove_preemption(log: Sequence[Record]) -> tuple[list[Record], Record]:
    """Remove the first preemption and all records of its preemptor."""
    first = log[_first(log, "Preempted")]
    return [each for each in log if each is not first and each.get("workload") != first["by"]], first


def _first(log: Sequence[Record], event: str) -> int:
    return next(place for place, record in enumerate(log) if record["event"] == event)


def _swap_records(log: Sequence[Record], one: str, other: str) -> list[Record]:
    names = {one: other, other: one}
    fields = ("workload", "by")
    return [{**each, **{key: names.get(each[key], each[key]) for key in fields if key in each}} for each in log]


def _with(log: Sequence[Record], place: int, record: Record) -> tuple[list[Record], Record]:
    return [*log[:place], record, *log[place + 1 :]], record


def _flavors(scenario: Scenario) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for step in scenario.steps:
        for obj in step.apply:
            if key_of(obj).kind == scheme.CLUSTER_QUEUE:
                groups = obj["spec"].get("resourceGroups") or ()
                result[obj["metadata"]["name"]] = [each["name"] for group in groups for each in group["flavors"]]
    return result


def _with_other_victim(log: Sequence[Record], may: Callable[[Record, str, str], bool]) -> tuple[list[Record], Record]:
    """Change the victim of the first preemption for which `may` accepts another admitted Workload."""
    held: dict[str, str] = {}
    for place, record in enumerate(log):
        match record["event"]:
            case "QuotaReserved":
                held[record["workload"]] = record["clusterQueue"]
            case "Preempted":
                queue = held.pop(record["workload"])
                others = [each for each, of in held.items() if may(record, queue, of)]
                if others:
                    return _with(log, place, {**record, "workload": others[0]})
            case "Finished" | "Evicted":
                held.pop(record["workload"], None)
    raise AssertionError("the log contains no preemption that this change supports")
