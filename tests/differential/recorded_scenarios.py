"""Recorded scenarios with the decisions of upstream Kueue, and the comparison of logs.

`cases.tar.xz` contains, for each case, the scenario and the event log of upstream's scheduler in virtual time. Its
README describes the recorded and the omitted events. `cases-FAMILY.tar.xz` contains further families.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from batchyard.api.manifests import read_manifests
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

ARCHIVES = sorted(Path(__file__).parent.glob("cases*.tar.xz"))
SHARED = Path(__file__).parents[3] / "shared" / "oracle"
#: The folders of SHARED with further cases.
SHARED_FOLDERS = ("extra", "afs", "slices", "checks", "podsready", "tas")

Events: TypeAlias = Mapping[int, Counter[tuple[Any, ...]]]


class RecordedCase(NamedTuple):
    """A scenario and the decisions of upstream."""

    scenario: str
    expected: str


@cache
def packed_cases() -> dict[str, RecordedCase]:
    """Return all recorded cases by name."""
    texts: dict[str, str] = {}
    for path in ARCHIVES:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                texts[member.name] = file.read().decode() if file is not None else ""
    return _cases(texts)


def shared_cases() -> dict[str, RecordedCase]:
    """Return the cases beside this repository, if any."""
    folders = (SHARED, *(SHARED / name for name in SHARED_FOLDERS))
    paths = [path for folder in folders for path in sorted(folder.glob("*")) if path.is_file()]
    return _cases({path.name: path.read_text("utf-8") for path in paths})


def _cases(texts: Mapping[str, str]) -> dict[str, RecordedCase]:
    names = [name.removesuffix(".yaml") for name in texts if name.endswith(".yaml")]
    return {name: RecordedCase(texts[f"{name}.yaml"], texts[f"{name}.expected.jsonl"]) for name in sorted(names)}


def difference(name: str, case: RecordedCase) -> str:
    """Return the first difference between our decisions and upstream's; '' if they agree."""
    ours, theirs = _by_instant(run(name, case.scenario)), _by_instant(map(json.loads, case.expected.splitlines()))
    for instant in sorted({**ours, **theirs}):
        mine, recorded = ours.get(instant, Counter()), theirs.get(instant, Counter())
        if mine != recorded:
            return f"at {instant / 1000:g} s: upstream {[*(recorded - mine)]} ours {[*(mine - recorded)]}"
    return ""


def run(name: str, text: str) -> list[Mapping[str, Any]]:
    """Run a scenario; return its event log."""
    scenario = make_scenario(read_manifests([(name, text)]))
    log: list[Mapping[str, Any]] = []
    world = World(scenario, sink=log.append)
    world.run_until(scenario.horizon)
    world.log.record_end(world.client)
    return log


def _by_instant(log: Iterable[Mapping[str, Any]]) -> Events:
    """Return the events of each millisecond; the order within a millisecond is arbitrary."""
    result: dict[int, Counter[tuple[Any, ...]]] = {}
    for record in log:
        what = _comparable(record)
        if what is not None:
            result.setdefault(round(record["time"] * 1000), Counter())[what] += 1
    return result


def _domains(pod_set: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    topology = pod_set.get("topologyAssignment")
    if topology is None:
        return []
    return [tuple(topology["levels"]), *sorted((*each["values"], each["count"]) for each in topology["domains"])]


def _comparable(record: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the parts of a record that must agree; None if there are none."""
    kind = record["event"]
    match kind:
        case "QuotaReserved" | "Reassigned":
            pod_sets = [(p["name"], p["count"], *sorted(p["flavors"].items()), *_domains(p)) for p in record["podSets"]]
            return kind, record["workload"], record["clusterQueue"], *sorted(pod_sets)
        case "Preempted":
            return kind, record["workload"], record["reason"], record["by"]
        case "Evicted":
            return kind, record["workload"], record["reason"]
        case "Finished":
            return kind, record["workload"], record.get("reason", "")
        case "Final":
            return kind, tuple(sorted(record["pending"])), tuple(sorted(record["admitted"]))
        case _:
            return None
