"""The child Jobs of a JobSet: groups, status counts, success and startup."""

from collections.abc import Sequence
from typing import Any

import pytest

import make
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj
from batchyard.jobs.jobset.policies import are_all_ready, has_succeeded, replicated_statuses, startup_decision
from batchyard.jobs.jobset.spec import ChildJobs, sort_children

TWO = [make.replicated_job("driver"), make.replicated_job("worker", replicas=2, parallelism=3, completions=3)]


def jobset(restarts: int = 0, jobs: Sequence[make.Obj] = TWO, suspend: bool = False, **spec: Any) -> Obj:
    js = with_defaults(make.jobset(replicated_jobs=jobs, suspend=suspend, **spec))
    return {**js, "status": {"restarts": restarts}}


def child(name: str, of: str = "worker", attempt: str | None = "0", **fields: Any) -> Obj:
    """A Job of a JobSet; `ended` is the type of its last condition, other fields are its status."""
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": of}
    if attempt is not None:
        labels["jobset.sigs.k8s.io/restart-attempt"] = attempt
    spec = {"suspend": False, "parallelism": 3, "completions": 3, **fields.pop("spec", {})}
    ended = fields.pop("ended", None)
    conditions = {"conditions": [make.condition(ended)]} if ended else {}
    return {**make.job(name, queue=None, labels=labels, **spec), "status": {**fields, **conditions}}


def children(*jobs: Obj) -> ChildJobs:
    result = sort_children(jobset(), jobs)
    assert result is not None
    return result


def names(jobs: Sequence[Obj]) -> list[str]:
    return [job["metadata"]["name"] for job in jobs]


def test_sort_children_groups_jobs_by_result() -> None:
    result = children(
        child("a"), child("b", ended="Complete"), child("c", ended="Failed"), child("d", ended="Suspended")
    )
    assert (names(result.active_jobs), names(result.successful_jobs), names(result.failed_jobs)) == (
        ["a", "d"],
        ["b"],
        ["c"],
    )
    assert sorted(result.names()) == ["a", "b", "c", "d"]


def test_sort_children_groups_jobs_of_previous_attempts() -> None:
    jobs = [child("a", attempt="2"), child("b", attempt="1"), child("c", attempt="0", ended="Failed")]
    result = sort_children(jobset(restarts=2), jobs)
    assert result is not None
    assert (names(result.active_jobs), names(result.previous_jobs), result.failed_jobs) == (["a"], ["b", "c"], [])


@pytest.mark.parametrize("attempt", [None, "", "one", "-1", "²"])
def test_sort_children_rejects_invalid_restart_attempt(attempt: str | None) -> None:
    assert sort_children(jobset(), [child("a"), child("b", attempt=attempt)]) is None


def test_job_is_ready_if_all_expected_pods_are_ready_or_succeeded() -> None:
    few = {"parallelism": 5, "completions": 2}
    jobs = [child("a", ready=2, succeeded=1), child("b", ready=2), child("c", ready=2, spec=few)]
    assert replicated_statuses(jobset(), children(*jobs))["worker"]["ready"] == 2


def test_replicated_statuses_count_jobs_separately() -> None:
    jobs = [
        child("a", active=3, ready=3),
        child("b", spec={"suspend": True}),
        child("c", of="driver", ended="Failed"),
        child("d", of="driver", ended="Complete"),
        child("e", of="stranger", ended="Complete"),
        child("f", of="stranger"),
    ]
    result = replicated_statuses(jobset(), children(*jobs))
    assert result["worker"] == {"name": "worker", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 1}
    assert result["driver"] == {"name": "driver", "ready": 0, "succeeded": 1, "failed": 1, "active": 0, "suspended": 0}
    assert list(result) == ["driver", "worker"]


def test_are_all_ready_counts_ready_and_succeeded_jobs() -> None:
    counts = replicated_statuses(jobset(), children())
    assert not are_all_ready(jobset(), counts)
    counts["driver"]["succeeded"], counts["worker"]["ready"] = 1, 2
    assert are_all_ready(jobset(), counts)


@pytest.mark.parametrize(
    ("policy", "done", "complete"),
    [
        ({}, ["worker", "worker"], False),
        ({}, ["worker", "worker", "driver"], True),
        ({"operator": "All", "targetReplicatedJobs": ["driver"]}, ["worker"], False),
        ({"operator": "All", "targetReplicatedJobs": ["driver"]}, ["driver"], True),
        ({"operator": "Any"}, ["worker"], True),
        ({"operator": "Any", "targetReplicatedJobs": ["driver"]}, ["worker"], False),
    ],
)
def test_success_policy_evaluates_operator_and_targets(policy: Obj, done: Sequence[str], complete: bool) -> None:
    js = jobset(successPolicy=policy)
    assert has_succeeded(js, [child(name, of=name, ended="Complete") for name in done]) is complete


def startup(js: Obj, **counts: dict[str, int]) -> tuple[list[str], bool]:
    statuses = replicated_statuses(js, children())
    for name, fields in counts.items():
        statuses[name].update(fields)
    result = startup_decision(js, statuses)
    return [each["name"] for each in result.replicated_jobs], result.must_wait


IN_ORDER = {"startupPolicyOrder": "InOrder"}


def test_startup_without_order_returns_all_jobs() -> None:
    assert startup(jobset()) == (["driver", "worker"], False)


def test_in_order_startup_returns_next_unstarted_job() -> None:
    js = jobset(startupPolicy=IN_ORDER)
    assert startup(js) == (["driver"], True)
    assert startup(js, driver={"ready": 1}) == (["worker"], True)
    assert startup(js, driver={"succeeded": 1}, worker={"ready": 1}) == (["worker"], True)
    assert startup(js, driver={"failed": 1}, worker={"ready": 2}) == ([], False)


def test_suspended_jobset_ignores_startup_order() -> None:
    assert startup(jobset(startupPolicy=IN_ORDER, suspend=True)) == (["driver", "worker"], False)


def dependent(status: str, suspend: bool = False) -> Obj:
    jobs = [TWO[1], {**TWO[0], "dependsOn": [{"name": "worker", "status": status}]}]
    return jobset(jobs=jobs, suspend=suspend)


def test_dependent_job_waits_until_dependency_is_ready() -> None:
    assert startup(dependent("Ready")) == (["worker"], False)
    assert startup(dependent("Ready"), worker={"ready": 1}) == (["worker"], False)
    assert startup(dependent("Ready"), worker={"ready": 1, "failed": 1}) == (["worker", "driver"], False)


def test_dependent_job_waits_until_dependency_is_complete() -> None:
    assert startup(dependent("Complete"), worker={"ready": 2}) == (["worker"], False)
    assert startup(dependent("Complete"), worker={"succeeded": 2}) == (["worker", "driver"], False)


def test_dependent_job_waits_while_jobset_is_suspended() -> None:
    assert startup(dependent("Ready", suspend=True)) == (["worker"], False)


def test_dependent_job_never_starts_with_later_or_missing_dependency() -> None:
    jobs = [{**TWO[0], "dependsOn": [{"name": "worker", "status": "Complete"}]}, TWO[1]]
    assert startup(jobset(jobs=jobs), worker={"succeeded": 2}) == (["worker"], False)
    jobs = [{**TWO[0], "dependsOn": [{"name": "nobody", "status": "Ready"}]}]
    assert startup(jobset(jobs=jobs)) == ([], False)
