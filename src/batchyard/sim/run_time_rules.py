"""Run times of a scenario's jobs: rules from a file, and the jobs that have no run time.

A file of rules is CSV: in each row a name pattern and a run time. The first row that matches a job gives its run time:

    # pattern,run time
    team-a/train-*,45m
    nightly,"lognormal(mean=10m,sigma=0.5)"
    *,uniform(5m,20m)

A pattern with `/` matches `namespace/name`, a pattern without `/` matches the name. The random run time of a job
depends on the seed and on its name only. It becomes the job's annotation, so a job with an annotation keeps its own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import exp, log
from statistics import NormalDist
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj, annotation, group_kind, key_of, with_metadata
from batchyard.base.instant import MILLISECOND, Duration, format_duration, parse_duration
from batchyard.base.primitives import draw_integer
from batchyard.kubelet.simulated import durations
from batchyard.scheduling.workload.lifecycle import is_bare_workload
from batchyard.sim.scenario import VIRTUAL_TIME_MAX, FileFault, InvalidScenario, Scenario

#: The maximum size of a file of rules: each rule is compared with each job.
RULES_MAX: Final = 1_000
RULES_TEXT_LENGTH_MAX: Final = 1 << 20
#: The maximum number of errors in a file that are reported.
_FAULTS_MAX: Final = 50
_SIGMA_MAX: Final = 10.0
_RANDOM_RANGE: Final = 1 << 52
_FORMS: Final = "90s, uniform(5m,20m), exponential(10m) or lognormal(mean=10m,sigma=0.5)"
_DISTRIBUTION_PATTERN: Final = re.compile(r"([a-z]+)\((.*)\)", re.ASCII)
_JOB_KINDS: Final = (scheme.JOB, scheme.JOB_SET, scheme.POD)
_HEADER_WORDS: Final = frozenset({"pattern", "name", "name pattern"})


class UniformTime(NamedTuple):
    """A run time that is distributed uniformly between two durations; a constant if they are equal."""

    minimum: Duration
    maximum: Duration

    def quantile(self, fraction: float) -> float:
        """Return the run time in microseconds that is not exceeded by this fraction (0 to 1) of all runs."""
        return self.minimum + fraction * (self.maximum - self.minimum)


class ExponentialTime(NamedTuple):
    """A run time with an exponential distribution."""

    mean: Duration

    def quantile(self, fraction: float) -> float:
        """Return the run time in microseconds that the fraction `fraction` of all runs does not exceed."""
        return -self.mean * log(1 - fraction)


class LognormalTime(NamedTuple):
    """A run time with a lognormal distribution; `sigma` is the standard deviation of its logarithm."""

    mean: Duration
    sigma: float

    def quantile(self, fraction: float) -> float:
        """Return the run time in microseconds that the fraction `fraction` of all runs does not exceed."""
        return self.mean * exp(self.sigma * NormalDist().inv_cdf(fraction) - self.sigma**2 / 2)


TimeDistribution: TypeAlias = UniformTime | ExponentialTime | LognormalTime


class RunTimeRule(NamedTuple):
    """A row of a file of run times; `location` is its `file:line`."""

    location: str
    pattern: str
    distribution: TimeDistribution

    def matches(self, obj: Obj) -> bool:
        """Return whether the rule is for an object, by its name or by the prefix of its generated name."""
        metadata = obj["metadata"]
        name = metadata.get("name") or metadata.get("generateName", "")
        return fnmatchcase(f"{metadata.get('namespace') or ''}/{name}" if "/" in self.pattern else name, self.pattern)

    def draw(self, seed: int, *names: str) -> Duration:
        """Return the run time for a seed and names, in whole milliseconds from 1 ms to ten years."""
        fraction = (draw_integer(seed, "run time", *names) + 0.5) / _RANDOM_RANGE
        milliseconds = round(min(self.distribution.quantile(fraction), VIRTUAL_TIME_MAX) / MILLISECOND)
        return max(1, milliseconds) * MILLISECOND


class _RowError(Exception):
    """An error in a row of run-time rules: its column, the problem and the remedy."""

    def __init__(self, column: int, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.column, self.problem, self.remedy = column, problem, remedy


def parse_run_time_rules(name: str, text: str) -> list[RunTimeRule]:
    """Parse the text of the file `name` as run-time rules; raise InvalidScenario with up to 50 errors."""
    if len(text) > RULES_TEXT_LENGTH_MAX:
        raise InvalidScenario([_file_fault(name, f"the file is longer than {RULES_TEXT_LENGTH_MAX:,} characters")])
    rules: list[RunTimeRule] = []
    faults: list[FileFault] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pattern, comma, run_time_text = line.partition(",")
        if not rules and not faults and pattern.lower() in _HEADER_WORDS and not _is_duration(run_time_text):
            continue
        try:
            rules.append(RunTimeRule(f"{name}:{number}", *_parse_row(pattern, comma, run_time_text)))
        except _RowError as error:
            faults.append(FileFault(f"{name}:{number}:{error.column}", FieldError("", error.problem, error.remedy)))
        if len(rules) > RULES_MAX:
            raise InvalidScenario([_file_fault(f"{name}:{number}", f"the file has more than {RULES_MAX:,} rows")])
    if not rules and not faults:
        remedy = f"write rows such as train-*,10m; a run time is {_FORMS}"
        faults.append(FileFault(name, FieldError("", "the file has no rows", remedy)))
    if faults:
        raise InvalidScenario(faults[:_FAULTS_MAX])
    return rules


def _file_fault(location: str, problem: str) -> FileFault:
    return FileFault(location, FieldError("", problem, "use patterns such as team-a/train-* for many jobs"))


def _is_duration(text: str) -> bool:
    try:
        parse_duration(text)
    except ValueError:
        return False
    return True


def _parse_row(pattern: str, comma: str, run_time_text: str) -> tuple[str, TimeDistribution]:
    column = len(pattern) + 2
    name_pattern = pattern.strip().strip('"')
    if not name_pattern:
        raise _RowError(1, "the name pattern is empty", "write a pattern such as train-*, or * for all jobs")
    if not comma:
        raise _RowError(1, f"the row {name_pattern!r} has no comma", "write a name pattern and a run time: train-*,10m")
    if not run_time_text.strip():
        raise _RowError(
            column, f"the row has no run time after {name_pattern!r}", f"write one after the comma: {_FORMS}"
        )
    column += len(run_time_text) - len(run_time_text.lstrip())
    return name_pattern, _parse_distribution(run_time_text.strip(), column)


def _parse_distribution(text: str, column: int) -> TimeDistribution:
    if text.startswith('"'):
        text, column = text.removeprefix('"').removesuffix('"'), column + 1
    match = _DISTRIBUTION_PATTERN.fullmatch(text)
    if match is None:
        duration = _parse_time(text, column)
        return UniformTime(duration, duration)
    arguments_column = column + match.start(2)
    arguments, columns = [], []
    for argument in match[2].split(","):
        columns.append(arguments_column + len(argument) - len(argument.lstrip()))
        arguments.append(argument.strip())
        arguments_column += len(argument) + 1
    parse = {"uniform": _parse_uniform, "exponential": _parse_exponential, "lognormal": _parse_lognormal}.get(match[1])
    if parse is None:
        raise _RowError(column, f"{match[1]!r} is not a distribution", f"use {_FORMS}")
    return parse(arguments, columns, column)


def _parse_uniform(arguments: Sequence[str], columns: Sequence[int], column: int) -> TimeDistribution:
    if len(arguments) != 2:
        raise _RowError(column, "uniform needs two durations", "write it as uniform(5m,20m)")
    minimum, maximum = (_parse_time(*each) for each in zip(arguments, columns, strict=True))
    if minimum > maximum:
        remedy = f"write it as uniform({arguments[1]},{arguments[0]})"
        raise _RowError(columns[0], f"the minimum {arguments[0]} exceeds the maximum {arguments[1]}", remedy)
    return UniformTime(minimum, maximum)


def _parse_exponential(arguments: Sequence[str], columns: Sequence[int], column: int) -> TimeDistribution:
    if len(arguments) != 1:
        raise _RowError(column, "exponential needs one duration, its mean", "write it as exponential(10m)")
    return ExponentialTime(_parse_time(arguments[0].removeprefix("mean="), columns[0]))


def _parse_lognormal(arguments: Sequence[str], columns: Sequence[int], column: int) -> TimeDistribution:
    values: dict[str, tuple[str, int]] = {}
    for argument, argument_column in zip(arguments, columns, strict=True):
        name, equals, value = argument.partition("=")
        if name not in {"mean", "sigma"} or not equals:
            remedy = "write it as lognormal(mean=10m,sigma=0.5)"
            raise _RowError(argument_column, f"{argument!r} is not mean= or sigma=", remedy)
        values[name] = value, argument_column + len(name) + 1
    if len(values) != 2 or len(arguments) != 2:
        problem = "lognormal needs its mean and the sigma of its logarithm"
        raise _RowError(column, problem, "write it as lognormal(mean=10m,sigma=0.5)")
    text, sigma_column = values["sigma"]
    try:
        sigma = float(text)
    except ValueError:
        sigma = -1.0
    if not 0 <= sigma <= _SIGMA_MAX:
        problem = f"sigma {text!r} is not a number from 0 to {_SIGMA_MAX:g}"
        raise _RowError(sigma_column, problem, "write sigma=0.5, for example")
    return LognormalTime(_parse_time(*values["mean"]), sigma)


def _parse_time(text: str, column: int) -> Duration:
    try:
        duration = parse_duration(text)
    except ValueError:
        raise _RowError(column, f"{text!r} is not a run time", f"use {_FORMS}") from None
    if duration > VIRTUAL_TIME_MAX:
        raise _RowError(column, f"the run time {text} is more than ten years", "use a shorter one")
    return duration


def with_run_times(scenario: Scenario, rules: Sequence[RunTimeRule], seed: int) -> tuple[Scenario, list[RunTimeRule]]:
    """Return a scenario whose jobs have the run times of the rules, and the rules that are no job's first match.

    Rules are for Jobs, JobSets, Pods, and Workloads without an owner. A job with a run time annotation keeps its own.
    """
    used_rules: dict[RunTimeRule, None] = {}
    unnamed_count = 0
    steps = []
    for step in scenario.steps:
        objects = []
        for obj in step.apply:
            rule = next((rule for rule in rules if rule.matches(obj)), None) if _is_job(obj) else None
            if rule is None:
                objects.append(obj)
                continue
            used_rules[rule] = None
            key = key_of(obj) if obj["metadata"].get("name") else f"unnamed {(unnamed_count := unnamed_count + 1)}"
            objects.append(_with_run_time(obj, rule.draw(seed, group_kind(obj), str(key))))
        steps.append(step._replace(apply=objects))
    return replace(scenario, steps=steps), [rule for rule in rules if rule not in used_rules]


def _is_job(obj: Obj) -> bool:
    kind = group_kind(obj)
    return kind in _JOB_KINDS or (kind == scheme.WORKLOAD and is_bare_workload(obj))


def _with_run_time(obj: Obj, runtime: Duration) -> Obj:
    if annotation(obj, well_known.RUNTIME) is not None:
        return obj
    annotations = {**(obj["metadata"].get("annotations") or {}), well_known.RUNTIME: format_duration(runtime)}
    return with_metadata(obj, annotations=annotations)


@dataclass(frozen=True, slots=True)
class UnknownRunTimes:
    """The numbers of jobs and of Workloads without a job in a scenario, and how many of each have no run time."""

    job_count: int
    unknown_job_count: int
    workload_count: int
    unknown_workload_count: int


def unknown_run_times(scenario: Scenario) -> UnknownRunTimes:
    """Count a scenario's jobs and its Workloads without a job, and how many of each have no run time.

    Such jobs get the default run time of one minute; such Workloads run until they are deleted.
    """
    objects: dict[Key | int, Obj] = {}
    for step in scenario.steps:
        for obj in filter(_is_job, step.apply):
            objects[key_of(obj) if obj["metadata"].get("name") else id(obj)] = obj
    workloads = [obj for obj in objects.values() if group_kind(obj) == scheme.WORKLOAD]
    jobs = [obj for obj in objects.values() if group_kind(obj) != scheme.WORKLOAD]
    has_default = scenario.runtime is not None or durations.default_runtime(scenario.cluster) is not None
    return UnknownRunTimes(
        len(jobs),
        0 if has_default else sum(not _has_run_time(job, scenario.cluster) for job in jobs),
        len(workloads),
        sum(durations.annotated_runtime(workload) is None for workload in workloads),
    )


def _has_run_time(job: Obj, cluster: Obj | None) -> bool:
    metadata = job["metadata"]
    name = f"{metadata.get('namespace') or ''}/{metadata.get('name') or metadata.get('generateName', '')}"
    if durations.annotated_runtime(job) is not None or durations.named_runtime(cluster, [name]) is not None:
        return True
    return all(any(map(_states_run_time, templates)) for templates in _template_chains(job))


def _template_chains(job: Obj) -> Iterator[tuple[Obj, ...]]:
    """Yield each pod template of a job with its enclosing templates, innermost first; a Pod is its own template."""
    spec = job["spec"]
    if group_kind(job) == scheme.JOB_SET:
        for replicated in spec.get("replicatedJobs") or ():
            yield replicated["template"]["spec"]["template"], replicated["template"]
    else:
        yield (spec["template"] if group_kind(job) == scheme.JOB else job,)


def _states_run_time(template: Obj) -> bool:
    if durations.template_runtime(template) is not None:
        return True
    containers: Sequence[Mapping[str, Sequence[str]]] = (template.get("spec") or {}).get("containers") or ()
    if not containers:
        return False
    command, args = (tuple(containers[0].get(field) or ()) for field in ("command", "args"))
    image = str(containers[0].get("image") or "")
    return durations.sleep_time_of_command(image, command, args) is not None
