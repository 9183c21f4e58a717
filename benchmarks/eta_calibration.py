"""Measures the calibration of forecasts on a GPU cluster trace, whose pods wait in queues with too little quota.

    python benchmarks/eta_calibration.py TRACE [--moments N] [--each N] [--gpus N] [--forks N] [--half {1,2}]
        [--keep FILE] [--plot FILE.svg]

TRACE is a folder in the format of `batchyard simulate --trace`. Each pod that requests GPUs becomes a Workload in one
of two queues, by its quality of service; the queues borrow from each other. A first simulation with the run times of
the trace gives the true start of each Workload. A second one is interrupted at N moments of each half of the trace, at
which Workloads are pending. At each moment it forecasts the starts of some random pending Workloads. The forecasts use
only data known at that moment: the run times of finished Workloads, and no later arrivals.

The forecasts are then replayed in order of time, as on a running platform: the known outcomes of earlier forecasts
correct each later one (batchyard.sim.forecasting.calibration). Prints the coverage of the intervals, uncorrected and
corrected: the percentage of forecasts whose interval contains the true start. There is a table for all forecasts, each
half and each horizon. The confidence interval of the coverage comes from a block bootstrap over the moments, because
forecasts of neighboring moments have correlated errors.

`--keep FILE` stores each forecast in FILE; a later run with the same FILE computes only the missing ones.
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

from calibration_plot import draw_plot

from batchyard.api.meta import Key, Obj, with_metadata
from batchyard.api.scheme import WORKLOAD
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.base.primitives import draw_integer
from batchyard.sim.event_log import Record
from batchyard.sim.forecast import HORIZON, SERVER_WORK_MAX, WORK_MAX, Forecast, ForecastOptions, forecast_workloads
from batchyard.sim.forecasting.arrivals import BlockBootstrap
from batchyard.sim.forecasting.calibration import LEVELS, Calibration, StartOutcome, add_forecasts, apply_outcomes
from batchyard.sim.forecasting.run_times import EstimateBasis
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import State
from batchyard.sim.world import World

API: Final = "kueue.x-k8s.io/v1beta2"
RESOURCE: Final = "batchyard.dev/gpu-milli"
QUEUES: Final = {"LS": 0.6, "BE": 0.4}
NOMINAL_COVERAGES: Final = (10, 20, 30, 40, 50, 60, 70, 80, 90)
#: The number of arrivals before the first forecast, as a history for the forecasts.
HISTORY_MIN: Final = 200
HORIZONS: Final = ((10 * MINUTE, "under 10 minutes"), (HOUR, "under an hour"), (6 * HOUR, "under 6 hours"))
#: The number of bootstrap samples for the confidence interval of a coverage.
BOOTSTRAP_SAMPLES: Final = 400


class ForecastMoment(NamedTuple):
    """A moment in seconds from the start of the trace, and the Workloads whose starts are forecast then."""

    half: int
    at: float
    names: Sequence[str]


class ForecastOutcome(NamedTuple):
    """A forecast, and the true wait of its Workload."""

    half: int
    forecast: Forecast
    wait: Duration


def main() -> None:
    """Compute the forecasts, print the tables, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--moments", type=int, default=75)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--gpus", type=float, default=18)
    parser.add_argument("--forks", type=int, default=12)
    parser.add_argument("--half", type=int, choices=(1, 2), action="append")
    parser.add_argument(
        "--work", type=int, default=WORK_MAX, help=f"limit of the work of a forecast; {SERVER_WORK_MAX} on a server"
    )
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    scenario = scenario_of([*queues(options.gpus), *workloads(options.trace)])
    times = simulate_trace(scenario)
    moments = [
        moment
        for half in options.half or (1, 2)
        for moment in choose_moments(times, half, options.moments, options.each)
    ]
    start = process_time()
    settings = ForecastOptions(forks=options.forks, work_max=options.work)
    uncorrected = list(compute_forecasts(scenario, moments, settings, times, options.keep))
    print(f"{len(uncorrected)} forecasts at {len(moments)} moments, {process_time() - start:.0f} CPU-s")
    corrected = replay_corrections(uncorrected)
    for name, group in group_forecasts(uncorrected).items():
        print_table(f"{name}, uncorrected", [uncorrected[position] for position in group])
        print_table(f"{name}, corrected", [corrected[position] for position in group])
    if options.plot is not None:
        rows = {"uncorrected": uncorrected, "corrected": corrected}
        series = {name: [coverage(row, nominal) for nominal in NOMINAL_COVERAGES] for name, row in rows.items()}
        title = f"{len(corrected)} forecasts at {len(moments)} moments of a trace"
        options.plot.write_text(draw_plot(NOMINAL_COVERAGES, series, title))


def queues(gpus: float) -> list[dict[str, Any]]:
    """Return a flavor and two queues of one Cohort, with this number of GPUs."""
    objs: list[dict[str, Any]] = [{"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "gpu"}}]
    for name, share in QUEUES.items():
        quota = [{"name": RESOURCE, "nominalQuota": round(gpus * share * 1000)}]
        group = {"coveredResources": [RESOURCE], "flavors": [{"name": "gpu", "resources": quota}]}
        spec = {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": [group]}
        objs.append({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name.lower()}, "spec": spec})
        metadata = {"name": name.lower(), "namespace": "trace"}
        objs.append(
            {"apiVersion": API, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": name.lower()}}
        )
    return objs


def workloads(trace: Path) -> Iterable[dict[str, Any]]:
    """Yield the pods of a trace that ran on GPUs as Workloads, without the first 4 % of the arrivals."""
    rows = [row for file in sorted(trace.glob("*pod*.csv")) for row in csv.DictReader(file.open())]
    ran = [row for row in rows if row["scheduled_time"] and row["num_gpu"] != "0" and row["qos"] in QUEUES]
    arrivals = sorted(float(row["creation_time"]) for row in ran)
    first = arrivals[len(arrivals) // 25]
    for row in ran:
        at = float(row["creation_time"]) - first
        if at >= 0:
            yield workload(row, round(at))


def workload(row: Mapping[str, str], at: int) -> dict[str, Any]:
    """Return a pod of the trace as a Workload; `at` is its arrival in seconds."""
    run_time = max(1, round(float(row["deletion_time"]) - float(row["scheduled_time"])))
    annotations = {"batchyard.dev/runtime": f"{run_time}s", "batchyard.dev/submit-at": f"{at}s"}
    requests = {RESOURCE: int(row["num_gpu"]) * int(row["gpu_milli"])}
    container = {"name": "main", "image": "trace", "resources": {"requests": requests}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": row["name"], "namespace": "trace", "annotations": annotations},
        "spec": {"queueName": row["qos"].lower(), "podSets": [pod_set]},
    }


def simulate_trace(scenario: Scenario) -> Mapping[str, tuple[float, float]]:
    """Return the arrival and the start of each Workload, in seconds."""
    arrivals: dict[str, float] = {}
    starts: dict[str, float] = {}

    def observe(record: Record) -> None:
        if record["event"] == "Created":
            arrivals[record["workload"]] = record["time"]
        elif record["event"] == "Admitted":
            starts.setdefault(record["workload"], record["time"])

    World(scenario, sink=observe).kernel.run()
    return {name: (arrivals[name], at) for name, at in starts.items()}


def choose_moments(times: Mapping[str, tuple[float, float]], half: int, count: int, each: int) -> list[ForecastMoment]:
    """Return at most `count` moments of a half in order of time, each with at most `each` pending Workloads.

    Each moment is just after an arrival, so that the choice does not depend on later events. Moments chosen within the
    waits of given Workloads would be biased.
    """
    order = sorted(times, key=lambda name: times[name])
    middle = len(order) // 2
    names_of_half = order[HISTORY_MIN:middle] if half == 1 else order[middle:]
    candidates: dict[float, ForecastMoment] = {}
    for latest in names_of_half:
        at = times[latest][0] + 1
        pending = [name for name, (arrival, start) in times.items() if arrival < at < start]
        if pending and at not in candidates:
            shuffled = sorted(pending, key=lambda name: draw_integer(7, latest, name))
            candidates[at] = ForecastMoment(half, at, shuffled[:each])
    moments = list(candidates.values())
    return moments[:: max(1, len(moments) // count)][:count]


def compute_forecasts(
    scenario: Scenario,
    moments: Sequence[ForecastMoment],
    options: ForecastOptions,
    times: Mapping[str, tuple[float, float]],
    file: Path | None,
) -> Iterable[ForecastOutcome]:
    """Yield the uncorrected forecasts of the moments in order of time; read those that the file contains."""
    lines = file.read_text("utf-8").splitlines() if file is not None and file.exists() else []
    rows = {row["at"]: row["found"] for row in map(json.loads, lines)}
    world = World(scenario)
    for moment in moments:
        at = round(moment.at * SECOND)
        if moment.at not in rows:
            world.run_until(at)
            results = forecast_workloads(hide_run_times(world.state()), moment.names, options)
            rows[moment.at] = [
                [name, each.at, str(each.basis), list(each.waits), each.forks] for name, each in results.items()
            ]
            if file is not None:
                with file.open("a") as stream:
                    stream.write(json.dumps({"at": moment.at, "found": rows[moment.at]}) + "\n")
        for name, now, basis, waits, forks in rows[moment.at]:
            forecast = Forecast(name, now, EstimateBasis(basis), waits, forks, 0)
            yield ForecastOutcome(moment.half, forecast, round(times[name][1] * SECOND) - at)


def replay_corrections(outcomes: Sequence[ForecastOutcome]) -> list[ForecastOutcome]:
    """Return the same forecasts, each corrected by the outcomes of earlier forecasts that were known at its time."""
    calibration, results = Calibration(), list[ForecastOutcome]()
    starts = {(each.forecast.workload, each.forecast.at): each.forecast.at + each.wait for each in outcomes}
    for now in sorted({each.forecast.at for each in outcomes}):
        calibration = apply_outcomes(
            calibration,
            now,
            lambda sample: known_outcome(starts[sample.workload, sample.at], now),  # noqa: B023 - called at once
        )
        uncorrected = [each for each in outcomes if each.forecast.at == now]
        corrected = [each._replace(forecast=each.forecast.correct_by(calibration)) for each in uncorrected]
        calibration = add_forecasts(calibration, [each.forecast.calibration_record("") for each in corrected])
        results += corrected
    return results


def known_outcome(start: Instant, now: Instant) -> StartOutcome:
    """Return the outcome of a forecast as known now: without the start if it is in the future."""
    return StartOutcome(start if start <= now else None)


def hide_run_times(state: State) -> State:
    """Return a state without the run times of the Workloads."""
    return replace(state, objects={key: without_run_time(key, obj) for key, obj in state.objects.items()})


def without_run_time(key: Key, obj: Obj) -> Obj:
    """Return the object; a Workload loses its annotations, which contain the run time."""
    return with_metadata(obj, annotations=None) if key.kind == WORKLOAD else obj


def group_forecasts(outcomes: Sequence[ForecastOutcome]) -> Mapping[str, Sequence[int]]:
    """Return the positions of the forecasts by group: all, each half, and each horizon.

    The horizon of a forecast is determined by the median wait of its forks.
    """
    groups: dict[str, list[int]] = {"all": [], "first half": [], "second half": []}
    groups |= {name: [] for _, name in HORIZONS} | {"6 hours and more": []}
    for position, outcome in enumerate(outcomes):
        median = outcome.forecast.quantile_of_forks(0.5)
        wait = HORIZON if median is None else median
        horizon = next((name for most, name in HORIZONS if wait < most), "6 hours and more")
        for name in ("all", ("first half", "second half")[outcome.half - 1], horizon):
            groups[name].append(position)
    return {name: group for name, group in groups.items() if group}


def covers(outcome: ForecastOutcome, nominal: int) -> bool:
    """Return whether the interval with this nominal coverage contains the true wait."""
    low, high = (outcome.forecast.quantile(0.5 + side * nominal / 200) for side in (-1, 1))
    return low is not None and low <= outcome.wait and (high is None or outcome.wait <= high)


def coverage(outcomes: Sequence[ForecastOutcome], nominal: int) -> float:
    """Return the percentage of intervals with this nominal coverage that contain the true wait."""
    return 100 * sum(covers(outcome, nominal) for outcome in outcomes) / len(outcomes)


def coverage_bounds(outcomes: Sequence[ForecastOutcome], nominal: int) -> tuple[float, float]:
    """Return the 90 % confidence interval of the coverage, from a block bootstrap over the moments."""
    moments: dict[Instant, list[bool]] = {}
    for outcome in outcomes:
        moments.setdefault(outcome.forecast.at, []).append(covers(outcome, nominal))
    rows = list(moments.values())
    coverages = []
    for seed in range(BOOTSTRAP_SAMPLES):
        bootstrap = BlockBootstrap(len(rows), seed, "bounds")
        sample = [each for _ in rows for each in rows[bootstrap.next_index()]]
        coverages.append(100 * sum(sample) / len(sample))
    coverages.sort()
    return coverages[BOOTSTRAP_SAMPLES // 20], coverages[-BOOTSTRAP_SAMPLES // 20]


def log_wait(wait: Duration | None) -> float:
    """Return the logarithm of a wait in seconds plus one, limited by the horizon; None is the horizon."""
    return log1p((HORIZON if wait is None else min(wait, HORIZON)) / SECOND)


def pinball_loss(outcomes: Sequence[ForecastOutcome]) -> float:
    """Return the mean pinball loss of all quantiles of the log-wait; sharp and accurate forecasts have a low loss."""
    loss = 0.0
    for _, forecast, wait in outcomes:
        for level in LEVELS:
            error = log_wait(wait) - log_wait(forecast.quantile(level))
            loss += max(level * error, (level - 1) * error)
    return loss / len(outcomes) / len(LEVELS)


def interval_ratio(outcomes: Sequence[ForecastOutcome]) -> float:
    """Return the median of p90 divided by p10."""
    widths = sorted(log_wait(each.forecast.quantile(0.9)) - log_wait(each.forecast.quantile(0.1)) for each in outcomes)
    return float(exp(widths[len(widths) // 2]))


def print_table(name: str, outcomes: Sequence[ForecastOutcome]) -> None:
    """Print the coverage, loss and width of a group of forecasts."""
    early = sum(wait < (forecast.quantile(0.1) or 0) for _, forecast, wait in outcomes)
    late = sum((upper := forecast.quantile(0.9)) is not None and wait > upper for _, forecast, wait in outcomes)
    low, high = coverage_bounds(outcomes, 80)
    moments = len({each.forecast.at for each in outcomes})
    print(f"{name}: {len(outcomes)} forecasts, {moments} moments; starts before p10 {early}, after p90 {late}")
    print("  nominal coverage ", "".join(f"{nominal:6}%" for nominal in NOMINAL_COVERAGES))
    print("  measured coverage", "".join(f"{coverage(outcomes, nominal):6.0f}%" for nominal in NOMINAL_COVERAGES))
    interval = f"coverage of the 80% interval between {low:.0f}% and {high:.0f}%"
    loss, ratio = pinball_loss(outcomes), interval_ratio(outcomes)
    print(f"  {interval}, loss {loss:.3f}, p90/p10 {ratio:.1f}", flush=True)


if __name__ == "__main__":
    main()
