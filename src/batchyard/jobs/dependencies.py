"""Controller of dependencies between jobs: a job keeps its admission gate until the jobs in its annotation finish.

Slurm's `--dependency` has the same rules: a dependency that can never be met leaves the job pending.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.admission_plugins.job_annotations import kinds_with_queues
from batchyard.api import job_dependencies, meta, scheme, well_known
from batchyard.api.job_dependencies import HOPELESS_STATES, JobDependency
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework.workloads import GenericJob, JobCompletion
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.scheduling.workload import lifecycle

#: The most jobs that a search for a cycle visits.
_VISITS_MAX: Final = 256


class JobDependencies:
    """Controller that removes the admission gates of jobs whose dependencies are met, and records unmet ones."""

    name = "job-dependencies"
    rank = 0

    def __init__(self, managed_jobs: ManagedJobs) -> None:
        """Create the controller for the enabled kinds of jobs; it follows the JobKinds of users."""
        self._managed_jobs = managed_jobs
        self.kinds: Sequence[str] = ()
        self._update_kinds()
        #: The waiting jobs, by Namespace and name of the jobs on which they depend.
        self._dependents: dict[tuple[str, str], dict[meta.Key, None]] = {}
        #: Whether a job succeeded that was deleted after its end, while others depend on it.
        self._deleted_outcomes: dict[meta.Key, bool] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Update the index from a change of a job; return it if it waits, and the jobs that depend on it."""
        key = event.key
        if key.kind == scheme.JOB_KIND:
            self._managed_jobs.observe_job_kind(event)
            self._update_kinds()
            return ()
        self._move_dependent(event)
        own_key = (key,) if _waits(event.obj) and event.type is not EventType.DELETED else ()
        dependents = self._dependents.get((key.namespace, key.name))
        if not dependents or not self._is_relevant(event):
            return own_key
        outcome = self._outcome_of(event.obj)
        self._deleted_outcomes.pop(key, None)
        if event.type is EventType.DELETED and outcome is not None:
            self._deleted_outcomes[key] = outcome
        return (*own_key, *dependents)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the write that removes the gate of a job, or that records the states of its dependencies."""
        job = reader.get(key)
        if job is None or not _waits(job):
            return ReconcileResult()
        try:
            dependencies = job_dependencies.dependencies_of(job)
        except ValueError as error:  # only without the webhook
            return ReconcileResult([], [EventRecord(key, "Warning", "InvalidDependencies", str(error))])
        recorded = job_dependencies.states_of(job)
        states = {each: self._state_of(each, key, recorded.get(str(each), ""), reader) for each in dependencies}
        new_job = job_dependencies.with_states(job, states)
        if all(state == job_dependencies.MET for state in states.values()):
            message = f"All jobs in {well_known.AFTER} finished as required"
            event = EventRecord(key, "Normal", "DependenciesMet", message)
            return ReconcileResult([Update(job_dependencies.without_gate(new_job))], [event])
        if new_job is job:
            return ReconcileResult()
        message = meta.truncate_message(job_dependencies.describe_states(states))
        return ReconcileResult([Update(new_job)], [_state_event(key, states.values(), message)])

    def _update_kinds(self) -> None:
        # Workloads without a job depend on each other in forecasts.
        self.kinds = (scheme.JOB_KIND, scheme.WORKLOAD, *kinds_with_queues(self._managed_jobs))

    def _move_dependent(self, event: WatchEvent) -> None:
        old_targets = {} if event.old is None else _targets_of(event.old)
        new_targets = {} if event.type is EventType.DELETED else _targets_of(event.obj)
        for target in [each for each in old_targets if each not in new_targets]:
            dependents = self._dependents.get(target, {})
            dependents.pop(event.key, None)
            if not dependents:
                self._dependents.pop(target, None)
                for kind in self.kinds:
                    self._deleted_outcomes.pop(meta.Key(kind, *target), None)
        for target in new_targets:
            self._dependents.setdefault(target, {})[event.key] = None

    def _is_relevant(self, event: WatchEvent) -> bool:
        """Return whether a change of a job may change the states of the dependencies on it."""
        old, new = event.old, event.obj
        if old is None or event.type is EventType.DELETED:
            return True
        names = (well_known.AFTER_STATUS, well_known.ADMISSION_GATED_BY)
        if any(meta.annotation(old, name) != meta.annotation(new, name) for name in names):
            return True
        return self._outcome_of(old) != self._outcome_of(new)

    def _state_of(self, dependency: JobDependency, dependent: meta.Key, recorded: str, reader: Reader) -> str:
        """Return the state of a dependency. A dependency stays met if the other job is deleted or created again."""
        if recorded == job_dependencies.MET:
            return recorded
        key = self._key_of(dependency, dependent.namespace)
        job = None if key is None else reader.get(key)
        if key is None or job is None:
            outcome = None if key is None else self._deleted_outcomes.get(key)
            return job_dependencies.MISSING if outcome is None else _finished_state(dependency, succeeded=outcome)
        outcome = self._outcome_of(job)
        if outcome is not None:
            return _finished_state(dependency, succeeded=outcome)
        if not job_dependencies.has_gate(job):
            return job_dependencies.WAITS
        if self._reaches(key, dependent, reader):
            return job_dependencies.CYCLE
        is_blocked = not HOPELESS_STATES.isdisjoint(job_dependencies.states_of(job).values())
        return job_dependencies.BLOCKED if is_blocked else job_dependencies.WAITS

    def _key_of(self, dependency: JobDependency, namespace: str) -> meta.Key | None:
        kind = job_dependencies.find_kind(dependency.kind, self.kinds)
        return None if kind is None else meta.Key(kind, namespace, dependency.name)

    def _outcome_of(self, job: meta.Obj) -> bool | None:
        """Return whether a job succeeded; None while it has not finished."""
        kind = meta.group_kind(job)
        if kind == scheme.POD:
            return {"Succeeded": True, "Failed": False}.get((job.get("status") or {}).get("phase", ""))
        if kind == scheme.WORKLOAD:
            finished = meta.find_condition(job, lifecycle.FINISHED)
            return None if finished is None else finished["reason"] != lifecycle.FAILED
        integration: GenericJob | None = INTEGRATIONS.get(kind)
        completion = self._described_completion(kind, job) if integration is None else integration.completion(job)
        return None if completion is None else completion.succeeded

    def _described_completion(self, kind: str, job: meta.Obj) -> JobCompletion | None:
        from batchyard.jobs.described import description, integration, kinds  # noqa: PLC0415 - CEL takes 0.1 s to load

        try:
            described = kinds.find_integration(kind, self._managed_jobs.job_kinds)
            return None if described is None else described.completion(job)
        except (description.InvalidJobKind, integration.ExpressionFailed):
            return None

    def _reaches(self, start: meta.Key, goal: meta.Key, reader: Reader) -> bool:
        """Return whether a waiting job depends on another one through unmet dependencies of waiting jobs."""
        visited, stack = {start}, [start]
        while stack and len(visited) < _VISITS_MAX:
            for key in self._unmet_keys(stack.pop(), reader):
                if key == goal:
                    return True
                if key not in visited:
                    visited.add(key)
                    stack.append(key)
        return False

    def _unmet_keys(self, key: meta.Key, reader: Reader) -> Iterator[meta.Key]:
        job = reader.get(key)
        if job is not None and _waits(job):
            keys = (self._key_of(each, key.namespace) for each in job_dependencies.unmet_dependencies(job))
            yield from (other for other in keys if other is not None)


def _targets_of(job: meta.Obj) -> dict[tuple[str, str], None]:
    """Return the Namespace and name of each job for which a job waits."""
    if not _waits(job):
        return {}
    namespace = job["metadata"].get("namespace", "")
    return dict.fromkeys((namespace, each.name) for each in job_dependencies.unmet_dependencies(job))


def _waits(job: meta.Obj) -> bool:
    """Return whether a job has the gate of its dependencies; the copy of the gate on its Workload does not count."""
    is_copy = job["kind"] == "Workload" and meta.controller_of(job) is not None
    return job_dependencies.has_gate(job) and not is_copy


def _finished_state(dependency: JobDependency, *, succeeded: bool) -> str:
    is_met = dependency.outcome == job_dependencies.ANY or (dependency.outcome == job_dependencies.OK) == succeeded
    return job_dependencies.MET if is_met else job_dependencies.NEVER


def _state_event(key: meta.Key, states: Iterable[str], message: str) -> EventRecord:
    found = set(states)
    if job_dependencies.CYCLE in found:
        return EventRecord(key, "Warning", "DependencyCycle", message)
    if found & HOPELESS_STATES:
        return EventRecord(key, "Warning", "DependencyNeverSatisfied", message)
    return EventRecord(key, "Normal", "WaitingForDependencies", message)
