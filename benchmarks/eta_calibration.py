"""How often forecasts are right: on a trace of a cluster of GPUs whose pods wait in queues that are too small.

    python benchmarks/eta_calibration.py TRACE [--moments N] [--each N] [--gpus N] [--forks N] [--half {1,2}]
        [--keep FILE] [--plot FILE.svg]

TRACE is a folder as `batchyard simulate --trace` reads it. Each pod that asks for GPUs becomes a Workload, in one of
two queues by its quality of service, which borrow from each other. The whole is simulated once, with run times as they
were. Then the same run is stopped N times in each half, each time while somebody waits; the starts of a few who wait,
drawn by chance, are foretold from what was known then: no run time but of those that had ended, nobody who was yet to
come.

These forecasts are gone through once more in the order of time, as a platform that runs does: what had been found out
by then of the earlier ones corrects each (core/calibration). Told is how often the interval that should hold the true
start in so many of a hundred cases did, as forks said and as it was told, by halves, by horizon, and with the interval
in which that share is by a bootstrap of stretches of moments, for those of neighbouring moments are right or wrong
together.

`--keep FILE` writes the forecasts there as they are made, and goes on from those that are there already.
"""

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, log1p
from pathlib import Path
from time import process_time
from typing import Any, Final, NamedTuple

from calibration_plot import drawn

from batchyard.api.meta import Key, Obj, with_metadata
from batchyard.api.scheme import WORKLOAD
from batchyard.base import draw_integer
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.sim.event_log import Record
from batchyard.sim.forecast import HORIZON, SERVER_WORK_MAX, WORK_MAX, Forecast, ForecastOptions, forecasts
from batchyard.sim.forecasting.arrivals import BlockBootstrap
from batchyard.sim.forecasting.calibration import LEVELS, Calibration, StartOutcome, add_forecasts, apply_outcomes
from batchyard.sim.forecasting.run_times import Basis
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import State
from batchyard.sim.world import World

API: Final = "kueue.x-k8s.io/v1beta2"
RESOURCE: Final = "batchyard.dev/gpu-milli"
QUEUES: Final = {"LS": 0.6, "BE": 0.4}
NOMINAL: Final = (10, 20, 30, 40, 50, 60, 70, 80, 90)
#: Nobody is asked about before so many have come: there is no history.
FIRST: Final = 200
HORIZONS: Final = ((10 * MINUTE, "under 10 minutes"), (HOUR, "under an hour"), (6 * HOUR, "under 6 hours"))
#: How often it is drawn anew in which interval a share is.
BOOTSTRAPS: Final = 400


class Case(NamedTuple):
    """Who is asked about when; seconds from the beginning."""

    half: int
    at: float
    names: Sequence[str]


class Outcome(NamedTuple):
    """A forecast, and how long it took to start in truth."""

    half: int
    forecast: Forecast
    truth: Duration


def main() -> None:
    """Measure, print the tables, draw the plot."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--moments", type=int, default=75)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--gpus", type=float, default=18)
    parser.add_argument("--forks", type=int, default=12)
    parser.add_argument("--half", type=int, choices=(1, 2), action="append")
    parser.add_argument(
        "--work", type=int, default=WORK_MAX, help=f"how much an answer may be; of a server {SERVER_WORK_MAX}"
    )
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    scenario = scenario_of([*queues(options.gpus), *workloads(options.trace)])
    times = run(scenario)
    cases = [case for half in options.half or (1, 2) for case in chosen(times, half, options.moments, options.each)]
    began = process_time()
    asked = ForecastOptions(forks=options.forks, work_max=options.work)
    by_forks = list(kept(scenario, cases, asked, times, options.keep))
    print(f"{len(by_forks)} forecasts at {len(cases)} moments, {process_time() - began:.0f} CPU-s")
    corrected = replayed(by_forks)
    for name, part in parts(by_forks).items():
        reported(f"{name}, as forks say", [by_forks[place] for place in part])
        reported(f"{name}, corrected", [corrected[place] for place in part])
    if options.plot is not None:
        lines = {"as forks say": by_forks, "corrected": corrected}
        shares = {name: [covered(found, nominal) for nominal in NOMINAL] for name, found in lines.items()}
        options.plot.write_text(
            drawn(NOMINAL, shares, f"{len(corrected)} forecasts at {len(cases)} moments of a trace")
        )


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


def chosen(times: Mapping[str, tuple[float, float]], half: int, count: int, each: int) -> list[Case]:
    """So many moments, at which somebody comes and somebody waits, with some of those who wait then; in order of time.

    What is chosen must not depend on what comes later: of moments within the waits of given Workloads too many would be
    just before their ends.
    """
    order = sorted(times, key=lambda name: times[name])
    middle = len(order) // 2
    of_half = order[FIRST:middle] if half == 1 else order[middle:]
    cases: dict[float, Case] = {}
    for moment in of_half:
        at = times[moment][0] + 1
        waiting = [name for name, (came, starts) in times.items() if came < at < starts]
        if waiting and at not in cases:
            drawn_first = sorted(waiting, key=lambda name: draw_integer(7, moment, name))
            cases[at] = Case(half, at, drawn_first[:each])
    found = list(cases.values())
    return found[:: max(1, len(found) // count)][:count]


def kept(
    scenario: Scenario,
    cases: Sequence[Case],
    asked: ForecastOptions,
    times: Mapping[str, tuple[float, float]],
    file: Path | None,
) -> Iterable[Outcome]:
    """What forks said of the cases, in order of time; what is in the file already is not worked out again."""
    lines = file.read_text("utf-8").splitlines() if file is not None and file.exists() else []
    rows = {row["at"]: row["found"] for row in map(json.loads, lines)}
    world = World(scenario)
    for case in cases:
        at = round(case.at * SECOND)
        if case.at not in rows:
            world.run_until(at)
            found = forecasts(known(world.state()), case.names, asked)
            rows[case.at] = [
                [name, each.at, str(each.basis), list(each.waits), each.forks] for name, each in found.items()
            ]
            if file is not None:
                with file.open("a") as written:
                    written.write(json.dumps({"at": case.at, "found": rows[case.at]}) + "\n")
        for name, now, basis, waits, forks in rows[case.at]:
            forecast = Forecast(name, now, Basis(basis), waits, forks, 0)
            yield Outcome(case.half, forecast, round(times[name][1] * SECOND) - at)


def replayed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same forecasts, each corrected by what had been found out by then of the earlier ones."""
    calibration, told_so_far = Calibration(), list[Outcome]()
    starts = {(each.forecast.workload, each.forecast.at): each.forecast.at + each.truth for each in outcomes}
    for now in sorted({each.forecast.at for each in outcomes}):
        calibration = apply_outcomes(calibration, now, lambda sample: fate(starts[sample.workload, sample.at], now))  # noqa: B023 - called at once
        asked = [each for each in outcomes if each.forecast.at == now]
        corrected = [each._replace(forecast=each.forecast.correct_by(calibration)) for each in asked]
        calibration = add_forecasts(calibration, [each.forecast.sample("") for each in corrected])
        told_so_far += corrected
    return told_so_far


def fate(starts: Instant, now: Instant) -> StartOutcome:
    """What is known of who starts then: nothing before."""
    return StartOutcome(starts if starts <= now else None)


def known(state: State) -> State:
    """A state in which nobody says how long anything runs."""
    return replace(state, objects={key: untold(key, obj) for key, obj in state.objects.items()})


def untold(key: Key, obj: Obj) -> Obj:
    """A Workload that does not say how long it runs."""
    return with_metadata(obj, annotations=None) if key.kind == WORKLOAD else obj


def parts(outcomes: Sequence[Outcome]) -> Mapping[str, Sequence[int]]:
    """Which forecasts are told of together: all, each half, each horizon by the median of the forks."""
    found: dict[str, list[int]] = {"all": [], "first half": [], "second half": []}
    found |= {name: [] for _, name in HORIZONS} | {"6 hours and more": []}
    for place, outcome in enumerate(outcomes):
        median = outcome.forecast.quantile_of_forks(0.5)
        wait = HORIZON if median is None else median
        horizon = next((name for most, name in HORIZONS if wait < most), "6 hours and more")
        for name in ("all", ("first half", "second half")[outcome.half - 1], horizon):
            found[name].append(place)
    return {name: part for name, part in found.items() if part}


def held(outcome: Outcome, nominal: int) -> bool:
    """Whether the interval of that width held the truth."""
    low, high = (outcome.forecast.quantile(0.5 + side * nominal / 200) for side in (-1, 1))
    return low is not None and low <= outcome.truth and (high is None or outcome.truth <= high)


def covered(outcomes: Sequence[Outcome], nominal: int) -> float:
    """In how many of a hundred the interval of that width held the truth."""
    return 100 * sum(held(outcome, nominal) for outcome in outcomes) / len(outcomes)


def bounds(outcomes: Sequence[Outcome], nominal: int) -> tuple[float, float]:
    """Between what the true share is in 90 of 100 cases: moments drawn anew in stretches, as neighbours are alike."""
    moments: dict[Instant, list[bool]] = {}
    for outcome in outcomes:
        moments.setdefault(outcome.forecast.at, []).append(held(outcome, nominal))
    rows = list(moments.values())
    shares = []
    for seed in range(BOOTSTRAPS):
        places = BlockBootstrap(len(rows), seed, "bounds")
        found = [each for _ in rows for each in rows[places.next_index()]]
        shares.append(100 * sum(found) / len(found))
    shares.sort()
    return shares[BOOTSTRAPS // 20], shares[-BOOTSTRAPS // 20]


def logged(wait: Duration | None) -> float:
    """A wait as it is compared: the logarithm of seconds and one."""
    return log1p((HORIZON if wait is None else min(wait, HORIZON)) / SECOND)


def pinball(outcomes: Sequence[Outcome]) -> float:
    """The mean loss of all quantiles in log-wait: the less the better, for being sharp and for being right."""
    loss = 0.0
    for _, forecast, truth in outcomes:
        for level in LEVELS:
            error = logged(truth) - logged(forecast.quantile(level))
            loss += max(level * error, (level - 1) * error)
    return loss / len(outcomes) / len(LEVELS)


def width(outcomes: Sequence[Outcome]) -> float:
    """By what factor p90 is greater than p10, in the median."""
    widths = sorted(logged(each.forecast.quantile(0.9)) - logged(each.forecast.quantile(0.1)) for each in outcomes)
    return float(exp(widths[len(widths) // 2]))


def reported(name: str, outcomes: Sequence[Outcome]) -> None:
    """Print the table of some forecasts."""
    early = sum(truth < (forecast.quantile(0.1) or 0) for _, forecast, truth in outcomes)
    late = sum((far := forecast.quantile(0.9)) is not None and truth > far for _, forecast, truth in outcomes)
    low, high = bounds(outcomes, 80)
    moments = len({each.forecast.at for each in outcomes})
    print(f"{name}: {len(outcomes)} forecasts, {moments} moments; before p10 {early}, after p90 {late}")
    print("  interval  ", "".join(f"{nominal:6}%" for nominal in NOMINAL))
    print("  held truth", "".join(f"{covered(outcomes, nominal):6.0f}%" for nominal in NOMINAL))
    print(
        f"  80% in truth {low:.0f}-{high:.0f}%, loss {pinball(outcomes):.3f}, p90/p10 {width(outcomes):.1f}", flush=True
    )


if __name__ == "__main__":
    main()
