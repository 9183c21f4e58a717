"""How often forecasts are right: on a trace of a cluster of GPUs whose pods wait in queues that are too small.

    python benchmarks/eta_calibration.py TRACE [--predictions N] [--gpus N] [--forks N] [--half {1,2}] [--plot FILE.svg]

TRACE is a folder as `batchyard simulate --trace` reads it. Each pod that asks for GPUs becomes a Workload, in one of
two queues by its quality of service, which borrow from each other. The whole is simulated once, with run times as they
were. Then the same run is stopped N times, each time while somebody waits, who is drawn by a seed; a forecast is made
for him from what was known then: no run time but of those that had ended, nobody who was yet to come. Told is how
often the interval that should hold the true start in so many of a hundred cases did.
"""

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Key, Obj, with_metadata
from batchyard.api.scheme import WORKLOAD
from batchyard.base.instant import SECOND, Duration
from batchyard.sim.event_log import Record
from batchyard.sim.forecast import WORK_MAX, Asked, Forecast, forecasts
from batchyard.sim.generate import scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import State
from batchyard.sim.stretches import chance
from batchyard.sim.world import World

API: Final = "kueue.x-k8s.io/v1beta2"
RESOURCE: Final = "batchyard.dev/gpu-milli"
QUEUES: Final = {"LS": 0.6, "BE": 0.4}
NOMINAL: Final = (10, 20, 30, 40, 50, 60, 70, 80, 90)
#: Nobody is asked about before so many have come: there is no history.
FIRST: Final = 200
#: How often it is told how far it is.
TOLD_EVERY: Final = 5


class Case(NamedTuple):
    """Who is asked about when, and when he starts; seconds from the beginning."""

    at: float
    name: str
    starts: float


class Outcome(NamedTuple):
    """A forecast, and how long it took to start in truth."""

    forecast: Forecast
    truth: Duration


def main() -> None:
    """Measure, print the table, draw the plot."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--predictions", type=int, default=100)
    parser.add_argument("--gpus", type=float, default=18)
    parser.add_argument("--forks", type=int, default=20)
    parser.add_argument("--half", type=int, choices=(1, 2), action="append")
    parser.add_argument("--part", type=int, nargs=2, default=(1, 1), metavar=("K", "OF"), help="measure a part of them")
    parser.add_argument("--work", type=int, default=WORK_MAX, help="how much work an answer may be")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    scenario = scenario_of([*queues(options.gpus), *workloads(options.trace)])
    halves = options.half or [1, 2]
    found = []
    for half in halves:
        began = process_time()
        cases = chosen(run(scenario), half, options.predictions)
        outcomes: list[Outcome] = []
        asked = Asked(forks=options.forks, work_max=options.work)
        for outcome in predicted(scenario, cases[options.part[0] - 1 :: options.part[1]], asked):
            outcomes.append(outcome)
            if len(outcomes) % TOLD_EVERY == 0:
                told(f"half {half} of the trace so far", outcomes, process_time() - began)
        found.append(outcomes)
        told(f"half {half} of the trace", outcomes, process_time() - began)
    together = [outcome for outcomes in found for outcome in outcomes]
    told("together", together, 0)
    if options.plot is not None:
        options.plot.write_text(drawn([covered(together, nominal) for nominal in NOMINAL], len(together)))


def queues(gpus: float) -> list[dict[str, Any]]:
    """Two queues of one Cohort."""
    made: list[dict[str, Any]] = [{"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "gpu"}}]
    for name, share in QUEUES.items():
        quota = [{"name": RESOURCE, "nominalQuota": round(gpus * share * 1000)}]
        group = {"coveredResources": [RESOURCE], "flavors": [{"name": "gpu", "resources": quota}]}
        spec = {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": [group]}
        made.append({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name.lower()}, "spec": spec})
        metadata = {"name": name.lower(), "namespace": "trace"}
        made.append(
            {"apiVersion": API, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": name.lower()}}
        )
    return made


def workloads(trace: Path) -> Iterable[dict[str, Any]]:
    """The pods of a trace that ran on GPUs, from when the most of them come."""
    rows = [row for file in sorted(trace.glob("*pod*.csv")) for row in csv.DictReader(file.open())]
    ran = [row for row in rows if row["scheduled_time"] and row["num_gpu"] != "0" and row["qos"] in QUEUES]
    born = sorted(float(row["creation_time"]) for row in ran)
    first = born[len(born) // 25]
    for row in ran:
        at = float(row["creation_time"]) - first
        if at >= 0:
            yield workload(row, round(at))


def workload(row: Mapping[str, str], at: int) -> dict[str, Any]:
    """A pod as a Workload."""
    runs = max(1, round(float(row["deletion_time"]) - float(row["scheduled_time"])))
    annotations = {"batchyard.dev/runtime": f"{runs}s", "batchyard.dev/submit-at": f"{at}s"}
    requests = {RESOURCE: int(row["num_gpu"]) * int(row["gpu_milli"])}
    container = {"name": "main", "image": "trace", "resources": {"requests": requests}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": row["name"], "namespace": "trace", "annotations": annotations},
        "spec": {"queueName": row["qos"].lower(), "podSets": [pod_set]},
    }


def run(scenario: Scenario) -> Mapping[str, tuple[float, float]]:
    """When each came and started."""
    came: dict[str, float] = {}
    started: dict[str, float] = {}

    def note(record: Record) -> None:
        if record["event"] == "Created":
            came[record["workload"]] = record["time"]
        elif record["event"] == "Admitted":
            started.setdefault(record["workload"], record["time"])

    World(scenario, sink=note).kernel.run()
    return {name: (came[name], at) for name, at in started.items()}


def chosen(times: Mapping[str, tuple[float, float]], half: int, count: int) -> list[Case]:
    """So many moments, at which somebody comes and somebody waits, with one of those who wait then; in order of time.

    What is chosen must not depend on what comes later: of moments within the waits of given Workloads too many would be
    just before their ends.
    """
    order = sorted(times, key=lambda name: times[name])
    middle = len(order) // 2
    of_half = order[FIRST:middle] if half == 1 else order[middle:]
    cases = []
    for moment in of_half:
        at = times[moment][0] + 1
        waiting = sorted(name for name, (came, starts) in times.items() if came < at < starts)
        if waiting:
            name = waiting[int(chance(7, moment) * len(waiting))]
            cases.append(Case(at, name, times[name][1]))
    return cases[:: max(1, len(cases) // count)][:count]


def predicted(scenario: Scenario, cases: Sequence[Case], asked: Asked) -> Iterable[Outcome]:
    """The forecasts of one run."""
    world = World(scenario)
    for case in cases:
        at = round(case.at * SECOND)
        world.run_until(at)
        found = forecasts(known(world.state()), [case.name], asked).get(case.name)
        if found is not None:
            yield Outcome(found, round(case.starts * SECOND) - at)


def known(state: State) -> State:
    """A state in which nobody says how long anything runs."""
    return replace(state, objects={key: untold(key, obj) for key, obj in state.objects.items()})


def untold(key: Key, obj: Obj) -> Obj:
    """A Workload that does not say how long it runs."""
    return with_metadata(obj, annotations=None) if key.kind == WORKLOAD else obj


def covered(outcomes: Sequence[Outcome], nominal: int) -> float:
    """In how many of a hundred the interval of that width held the truth."""
    held = 0
    for forecast, truth in outcomes:
        low, high = (forecast.quantile(0.5 + side * nominal / 200) for side in (-1, 1))
        held += low is not None and low <= truth and (high is None or truth <= high)
    return 100 * held / len(outcomes)


def told(name: str, outcomes: Sequence[Outcome], took: float) -> None:
    """Print the table of some forecasts."""
    early = sum(truth < (forecast.quantile(0.1) or 0) for forecast, truth in outcomes)
    late = sum((high := forecast.quantile(0.9)) is not None and truth > high for forecast, truth in outcomes)
    print(f"{name}: {len(outcomes)} forecasts, {took:.0f} CPU-s; before p10 {early}, after p90 {late}")
    print("  interval  ", "".join(f"{nominal:6}%" for nominal in NOMINAL))
    print("  held truth", "".join(f"{covered(outcomes, nominal):6.0f}%" for nominal in NOMINAL), flush=True)


def drawn(shares: Sequence[float], count: int) -> str:
    """The plot: what each interval should hold, and what it held."""
    points = [(60 + 3.6 * nominal, 400 - 3.6 * share) for nominal, share in zip(NOMINAL, shares, strict=True)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points)
    ticks = "".join(
        f'<text x="{60 + 3.6 * each}" y="420" text-anchor="middle">{each}</text>'
        f'<text x="50" y="{404 - 3.6 * each}" text-anchor="end">{each}</text>'
        for each in range(0, 101, 20)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 460 460" font-family="sans-serif" font-size="12">\n'
        '<rect width="460" height="460" fill="#ffffff"/>\n'
        '<path d="M60 40V400H420" fill="none" stroke="#444"/>\n'
        '<path d="M60 400L420 40" fill="none" stroke="#999" stroke-dasharray="5 4"/>\n'
        '<path d="M330 130H366V94H330Z" fill="none" stroke="#2a7"/>\n'
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/>\n<g fill="#06c">{marks}</g>\n'
        f'<g fill="#222">{ticks}\n'
        '<text x="240" y="446" text-anchor="middle">the interval should hold the start in so many of 100 cases</text>\n'
        '<text x="16" y="220" text-anchor="middle" transform="rotate(-90 16 220)">it held it in so many</text>\n'
        f'<text x="240" y="24" text-anchor="middle">{count} forecasts on a trace</text></g>\n</svg>\n'
    )


if __name__ == "__main__":
    main()
