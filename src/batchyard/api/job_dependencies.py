"""Dependencies between jobs: the annotation `batchyard.dev/after`, their states, and the gate of a waiting job.

The annotation lists jobs of the same Namespace, such as `ok:train-a,any:jobset/prep`. The job has an admission gate
until every dependency is met. A second annotation holds the state of each dependency, for users and across restarts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import meta, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import rules

#: The most jobs on which one job may depend.
DEPENDENCIES_MAX: Final = 64
DEFAULT_KIND: Final = "job"
#: The required outcome of the other job: it succeeds, it finishes, or it fails.
OK, ANY, NOT_OK = "ok", "any", "notok"
_VERBS: Final = {OK: "succeed", ANY: "finish", NOT_OK: "fail"}
_KIND_PATTERN: Final = re.compile(r"[a-z][a-z0-9.-]{0,252}")
_PATH: Final = f"metadata.annotations[{well_known.AFTER}]"
_REMEDY: Final = "list jobs such as ok:train-a,any:jobset/prep"
_SHOWN_MAX: Final = 5

# The states of a dependency.

MET: Final = "met"
WAITS: Final = "waits"
#: The other job does not exist.
MISSING: Final = "missing"
#: The other job has finished with another outcome.
NEVER: Final = "never"
#: The other job waits for this one.
CYCLE: Final = "cycle"
#: A dependency of the other job can never be met.
BLOCKED: Final = "blocked"
#: The states in which only a change by a user can start the job.
HOPELESS_STATES: Final = frozenset({NEVER, CYCLE, BLOCKED})


class JobDependency(NamedTuple):
    """A job that must finish before another one starts: the required outcome, the kind in lower case, and the name."""

    outcome: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.outcome}:{self.name if self.kind == DEFAULT_KIND else f'{self.kind}/{self.name}'}"

    def describe(self, state: str) -> str:
        """Return a sentence about the dependency in a state, such as `waits for job/a to succeed`."""
        job, verb = f"{self.kind}/{self.name}", _VERBS[self.outcome]
        match state:
            case "met":
                return f"{job} has finished as required"
            case "missing":
                return f"waits for {job} to {verb}, and {job} does not exist"
            case "never":
                return f"{job} {'succeeded' if self.outcome == NOT_OK else 'failed'}, and must {verb}"
            case "cycle":
                return f"waits for {job} to {verb}, and {job} waits for this job (a cycle)"
            case "blocked":
                return f"waits for {job} to {verb}, and {job} can never start"
        return f"waits for {job} to {verb}"


def parse_dependencies(text: str) -> list[JobDependency]:
    """Parse the value of the annotation; raise ValueError with the reason if it is invalid."""
    if not text.strip():
        return []
    items = [item.strip() for item in text.split(",")]
    if len(items) > DEPENDENCIES_MAX:
        raise ValueError(f"a job may depend on at most {DEPENDENCIES_MAX} jobs, and these are {len(items)}")
    dependencies = [_parse_dependency(item) for item in items]
    named: set[tuple[str, str]] = set()
    for each in dependencies:
        if each[1:] in named:
            raise ValueError(f"{each.kind}/{each.name} is named twice")
        named.add(each[1:])
    return dependencies


def _parse_dependency(item: str) -> JobDependency:
    outcome, colon, job = item.partition(":")
    if not colon or outcome not in _VERBS:
        raise ValueError(f"{item!r} must begin with ok:, any: or notok:, as in ok:NAME")
    kind, slash, name = job.rpartition("/")
    if slash and not _KIND_PATTERN.fullmatch(kind):
        raise ValueError(f"{item!r} has an invalid kind {kind!r}")
    if errors := rules.dns_subdomain_errors(name):
        raise ValueError(f"{item!r} has an invalid job name: {errors[0]}")
    return JobDependency(outcome, kind or DEFAULT_KIND, name)


def dependencies_of(job: Obj) -> list[JobDependency]:
    """Return the dependencies of a job; raise ValueError if the annotation is invalid."""
    return parse_dependencies(meta.annotation(job, well_known.AFTER) or "")


def find_kind(name: str, kinds: Sequence[str]) -> str | None:
    """Return the kind, such as `JobSet.jobset.x-k8s.io`, that a dependency names; None if `kinds` do not contain it."""
    return next((each for each in kinds if name in {each.partition(".")[0].lower(), each.lower()}), None)


# The admission gate.


def has_gate(job: Obj) -> bool:
    """Return whether a job has the admission gate of its dependencies."""
    return well_known.AFTER in _gates_of(job)


def with_gate(job: Obj) -> Obj:
    """Return the job with the admission gate of its dependencies."""
    return job if has_gate(job) else _with_gates(job, [*_gates_of(job), well_known.AFTER])


def without_gate(job: Obj) -> Obj:
    """Return the job without the admission gate of its dependencies; its other gates stay."""
    return _with_gates(job, [gate for gate in _gates_of(job) if gate != well_known.AFTER])


def _gates_of(job: Obj) -> list[str]:
    text = meta.annotation(job, well_known.ADMISSION_GATED_BY) or ""
    return [gate.strip() for gate in text.split(",")] if text.strip() else []


def _with_gates(job: Obj, gates: Sequence[str]) -> Obj:
    return _with_annotation(job, well_known.ADMISSION_GATED_BY, ",".join(gates))


def _with_annotation(job: Obj, name: str, value: str) -> Obj:
    annotations = {key: old for key, old in (job["metadata"].get("annotations") or {}).items() if key != name}
    return meta.with_metadata(job, annotations={**annotations, name: value} if value else annotations)


# The states of the dependencies of a job.


def states_of(job: Obj) -> dict[str, str]:
    """Return the recorded states of a job's dependencies, by their text in the annotation."""
    text = meta.annotation(job, well_known.AFTER_STATUS) or ""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {name.strip(): state.strip() for name, _, state in pairs}


def with_states(job: Obj, states: Mapping[JobDependency, str]) -> Obj:
    """Return the job with the states of its dependencies; the same object if they are recorded."""
    text = ",".join(f"{dependency}={state}" for dependency, state in states.items())
    if text == (meta.annotation(job, well_known.AFTER_STATUS) or ""):
        return job
    return _with_annotation(job, well_known.AFTER_STATUS, text)


def describe_states(states: Mapping[JobDependency, str]) -> str:
    """Return one line about the unmet dependencies, those first that can never be met."""
    unmet = [(dependency, state) for dependency, state in states.items() if state != MET]
    unmet.sort(key=lambda pair: (pair[1] not in HOPELESS_STATES, pair[1] != MISSING))
    texts = [dependency.describe(state) for dependency, state in unmet[:_SHOWN_MAX]]
    return "; ".join([*texts, *([f"{len(unmet) - _SHOWN_MAX} more"] if len(unmet) > _SHOWN_MAX else [])])


def unmet_dependencies(job: Obj) -> list[JobDependency]:
    """Return the dependencies of a job that are not recorded as met; [] if the annotation is missing or invalid."""
    recorded = states_of(job)
    try:
        return [each for each in dependencies_of(job) if recorded.get(str(each)) != MET]
    except ValueError:
        return []


def describe_waiting_job(job: Obj) -> str:
    """Return one line about the unmet dependencies of a job, from its annotations; '' if it does not wait for any."""
    if not has_gate(job):
        return ""
    try:
        dependencies = dependencies_of(job)
    except ValueError as error:
        return str(error)
    recorded = states_of(job)
    return describe_states({each: recorded.get(str(each), WAITS) for each in dependencies})


# Validation.


def dependency_errors(new: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Validate the annotation of a new or changed job; `old` is None for a new job.

    The annotation may change only while the job waits for its dependencies.
    """
    text = meta.annotation(new, well_known.AFTER) or ""
    if old is not None and text == (meta.annotation(old, well_known.AFTER) or ""):
        return
    try:
        dependencies = parse_dependencies(text)
    except ValueError as error:
        yield rules.invalid(_PATH, text, str(error), _REMEDY)
        return
    kind, name = new["kind"].lower(), new["metadata"].get("name")
    if any(each.kind == kind and each.name == name for each in dependencies):
        yield rules.invalid(_PATH, text, "a job cannot depend on itself", _REMEDY)
    if old is not None and dependencies and not has_gate(old):
        message = "the job does not wait for dependencies, so they cannot be added or changed"
        yield rules.forbidden(_PATH, message, "create the job again with the annotation")


def unqueued_message(*, in_group: bool) -> str:
    """Return the error about a job with dependencies that no queue holds back, or about a pod in a group."""
    if in_group:
        return f"{_PATH}: Forbidden: a pod in a group cannot depend on jobs"
    return f"{_PATH}: Forbidden: the job needs the label {well_known.QUEUE_NAME}: without a queue, it starts at once"


def unknown_kind_message(dependency: JobDependency) -> str:
    """Return the error about a dependency on a job of a kind that has no queues."""
    return f'{_PATH}: Invalid value: "{dependency}": {dependency.kind!r} is not a kind of job that has queues here'
