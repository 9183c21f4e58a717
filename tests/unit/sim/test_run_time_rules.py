"""Run times from a file: distributions, the first match, errors with their place; and jobs without a run time."""

from statistics import mean
from typing import Any

import pytest

from batchyard import simulate
from batchyard.api.meta import annotation
from batchyard.api.well_known import RUNTIME
from batchyard.base.instant import MINUTE, SECOND, parse_duration
from batchyard.sim.run_time_rules import (
    RULES_MAX,
    RULES_TEXT_LENGTH_MAX,
    ExponentialTime,
    LognormalTime,
    UniformTime,
    parse_run_time_rules,
    unknown_run_times,
    with_run_times,
)
from batchyard.sim.scenario import InvalidScenario, Scenario
from batchyard.sim.simulate import Simulation, read_scenario
from unit.sim.forks_make import queue, workload

DRAWS = 4000


def job(name: str, command: tuple[str, ...] = (), **annotations: str) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "command": list(command)}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    stated = {f"batchyard.dev/{field}": value for field, value in annotations.items()}
    metadata = {"name": name, "namespace": "team", "annotations": stated}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def scenario_of(*objects: dict[str, Any]) -> Scenario:
    return read_scenario(objects)[0]


def run_times(scenario: Scenario) -> dict[str, str | None]:
    objects = [obj for step in scenario.steps for obj in step.apply if obj["kind"] in {"Job", "Workload"}]
    return {obj["metadata"]["name"]: annotation(obj, RUNTIME) for obj in objects}


def test_rows_are_patterns_with_run_times_or_distributions() -> None:
    text = """pattern,run time
# trainings
team-a/train-*, 45m
night,"lognormal(mean=10m,sigma=0.5)"
short,exponential(10m)

*,uniform(5m, 20m)
"""
    rules = parse_run_time_rules("r.csv", text)
    assert [(rule.location, rule.pattern) for rule in rules] == [
        ("r.csv:3", "team-a/train-*"),
        ("r.csv:4", "night"),
        ("r.csv:5", "short"),
        ("r.csv:7", "*"),
    ]
    assert [rule.distribution for rule in rules] == [
        UniformTime(45 * MINUTE, 45 * MINUTE),
        LognormalTime(10 * MINUTE, 0.5),
        ExponentialTime(10 * MINUTE),
        UniformTime(5 * MINUTE, 20 * MINUTE),
    ]


@pytest.mark.parametrize("text", ["uniform(5m,15m)", "exponential(10m)", "lognormal(mean=10m,sigma=0.5)", "10m"])
def test_draws_have_the_mean_of_the_distribution(text: str) -> None:
    (rule,) = parse_run_time_rules("r.csv", f"*,{text}")
    draws = [rule.draw(0, str(number)) for number in range(DRAWS)]
    assert mean(draws) == pytest.approx(10 * MINUTE, rel=0.05)
    assert min(draws) > 0


def test_first_match_wins_and_annotations_are_kept() -> None:
    scenario = scenario_of(job("train-1"), job("other"), job("own", runtime="7s"))
    rules = parse_run_time_rules("r.csv", "team/train-*,1m\nnone-*,2m\n*,3m")
    timed, unused = with_run_times(scenario, rules, seed=0)
    assert run_times(timed) == {"train-1": "60s", "other": "180s", "own": "7s"}
    assert [rule.location for rule in unused] == ["r.csv:2"]


def test_run_times_depend_on_seed_and_name_only() -> None:
    rules = parse_run_time_rules("r.csv", "*,exponential(10m)")
    one, both = scenario_of(job("a")), scenario_of(job("b"), job("a"))
    first, second, other = (
        run_times(with_run_times(scenario, rules, seed)[0]) for scenario, seed in ((one, 1), (both, 1), (one, 2))
    )
    assert first["a"] == second["a"] != second["b"]
    assert other["a"] != first["a"]


def test_run_times_of_file_are_simulated() -> None:
    two = {**workload("two", 30), "metadata": {"name": "two", "namespace": "team"}}
    scenario = scenario_of(*queue(1), workload("one", 30), two)
    timed, _ = with_run_times(scenario, parse_run_time_rules("r.csv", "two,45s"), seed=0)
    simulation = Simulation(timed)
    simulation.advance()
    assert simulation.result().duration == 75


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train-* 10m", "r.csv:1:1: the row 'train-* 10m' has no comma; write a name pattern and a run time"),
        ("train-*,", "r.csv:1:9: the row has no run time after 'train-*'; write one after the comma: 90s"),
        ("# c\n,5m", "r.csv:2:1: the name pattern is empty; write a pattern"),
        ("a,soon", "r.csv:1:3: 'soon' is not a run time; use 90s"),
        ("a, normal(5m)", "r.csv:1:4: 'normal' is not a distribution; use"),
        ("a,uniform(5m)", "r.csv:1:3: uniform needs two durations; write it as uniform(5m,20m)"),
        ("a,uniform(5m,x)", "r.csv:1:14: 'x' is not a run time"),
        ("a,uniform(9m,5m)", "r.csv:1:11: the minimum 9m exceeds the maximum 5m; write it as uniform(5m,9m)"),
        ("a,exponential(1m,2m)", "r.csv:1:3: exponential needs one duration"),
        ("a,lognormal(10m,0.5)", "r.csv:1:13: '10m' is not mean= or sigma=; write it as"),
        ("a,lognormal(mean=10m)", "r.csv:1:3: lognormal needs its mean and the sigma"),
        ("a,lognormal(mean=10m,sigma=x)", "r.csv:1:28: sigma 'x' is not a number from 0 to 10"),
        ("a,lognormal(mean=10m,sigma=nan)", "sigma 'nan' is not a number"),
        ("a,999999h", "r.csv:1:3: the run time 999999h is more than ten years; use a shorter one"),
        ("# nothing", "r.csv: the file has no rows; write rows such as train-*,10m"),
        ("a,1m\n" * (RULES_MAX + 1), f"the file has more than {RULES_MAX:,} rows"),
        ("#" * (RULES_TEXT_LENGTH_MAX + 1), "the file is longer than 1,048,576 characters"),
    ],
)
def test_errors_name_file_line_column_and_remedy(text: str, expected: str) -> None:
    with pytest.raises(InvalidScenario) as caught:
        parse_run_time_rules("r.csv", text)
    assert expected in str(caught.value)


def test_all_rows_with_errors_are_reported() -> None:
    with pytest.raises(InvalidScenario) as caught:
        parse_run_time_rules("r.csv", "a,x\nb,1m\nc,y")
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == ["r.csv:1:3:", "r.csv:3:3:"]


@pytest.mark.parametrize(
    ("obj", "unknown"),
    [
        (job("none"), 1),
        (job("annotated", runtime="1s"), 0),
        (job("sleeps", ("sleep", "60")), 0),
        (job("works", ("train.sh",)), 1),
    ],
)
def test_jobs_without_run_time_are_counted(obj: dict[str, Any], unknown: int) -> None:
    counts = unknown_run_times(scenario_of(obj, obj))
    assert (counts.job_count, counts.unknown_job_count) == (1, unknown)
    (finished,) = simulate(obj).jobs
    assert (finished.duration == parse_duration("1m") / SECOND) == bool(unknown or obj["metadata"]["name"] == "sleeps")


def test_workloads_without_job_and_run_time_are_counted() -> None:
    endless = {**workload("two", 30), "metadata": {"name": "two", "namespace": "team"}}
    counts = unknown_run_times(scenario_of(workload("one", 30), endless))
    assert (counts.job_count, counts.workload_count, counts.unknown_workload_count) == (0, 2, 1)
