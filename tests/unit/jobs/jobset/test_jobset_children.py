"""The Jobs of a JobSet sorted, counted and weighed: children, statuses, success, startup."""

from collections.abc import Sequence
from typing import Any

import pytest

import make
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj
from batchyard.jobs.jobset.policies import are_all_ready, has_succeeded, replicated_statuses, startup_decision
from batchyard.jobs.jobset.spec import Children, sort_children

TWO = [make.replicated_job("driver"), make.replicated_job("worker", replicas=2, parallelism=3, completions=3)]


def jobset(restarts: int = 0, jobs: Sequence[make.Obj] = TWO, suspend: bool = False, **spec: Any) -> Obj:
    js = with_defaults(make.jobset(replicated_jobs=jobs, suspend=suspend, **spec))
    return {**js, "status": {"restarts": restarts}}


def child(name: str, of: str = "worker", attempt: str | None = "0", **fields: Any) -> Obj:
    """A Job of a JobSet; `ended` is the type of its last condition, the fields that are left are its status."""
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": of}
    if attempt is not None:
        labels["jobset.sigs.k8s.io/restart-attempt"] = attempt
    spec = {"suspend": False, "parallelism": 3, "completions": 3, **fields.pop("spec", {})}
    ended = fields.pop("ended", None)
    conditions = {"conditions": [make.condition(ended)]} if ended else {}
    return {**make.job(name, queue=None, labels=labels, **spec), "status": {**fields, **conditions}}


def children(*jobs: Obj) -> Children:
    found = sort_children(jobset(), jobs)
    assert found is not None
    return found


def names(jobs: Sequence[Obj]) -> list[str]:
    return [job["metadata"]["name"] for job in jobs]


def test_jobs_are_sorted_by_their_end() -> None:
    found = children(
        child("a"), child("b", ended="Complete"), child("c", ended="Failed"), child("d", ended="Suspended")
    )
    assert (names(found.active), names(found.successful), names(found.failed)) == (["a", "d"], ["b"], ["c"])
    assert sorted(found.names()) == ["a", "b", "c", "d"]


def test_jobs_of_earlier_attempts_are_to_go_however_they_ended() -> None:
    jobs = [child("a", attempt="2"), child("b", attempt="1"), child("c", attempt="0", ended="Failed")]
    found = sort_children(jobset(restarts=2), jobs)
    assert found is not None
    assert (names(found.active), names(found.previous), found.failed) == (["a"], ["b", "c"], [])


@pytest.mark.parametrize("attempt", [None, "", "one", "-1", "²"])
def test_a_job_that_does_not_tell_its_attempt_cannot_be_sorted(attempt: str | None) -> None:
    assert sort_children(jobset(), [child("a"), child("b", attempt=attempt)]) is None


def test_a_job_is_ready_when_as_many_pods_as_may_run_are_ready_or_done() -> None:
    few = {"parallelism": 5, "completions": 2}
    jobs = [child("a", ready=2, succeeded=1), child("b", ready=2), child("c", ready=2, spec=few)]
    assert replicated_statuses(jobset(), children(*jobs))["worker"]["ready"] == 2


def test_each_replicated_job_counts_its_own_jobs() -> None:
    jobs = [
        child("a", active=3, ready=3),
        child("b", spec={"suspend": True}),
        child("c", of="driver", ended="Failed"),
        child("d", of="driver", ended="Complete"),
        child("e", of="stranger", ended="Complete"),
        child("f", of="stranger"),
    ]
    found = replicated_statuses(jobset(), children(*jobs))
    assert found["worker"] == {"name": "worker", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 1}
    assert found["driver"] == {"name": "driver", "ready": 0, "succeeded": 1, "failed": 1, "active": 0, "suspended": 0}
    assert list(found) == ["driver", "worker"]


def test_all_are_ready_when_every_job_runs_or_is_done() -> None:
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
def test_the_success_policy_says_which_jobs_must_succeed(policy: Obj, done: Sequence[str], complete: bool) -> None:
    js = jobset(successPolicy=policy)
    assert has_succeeded(js, [child(name, of=name, ended="Complete") for name in done]) is complete


def turn(js: Obj, **counts: dict[str, int]) -> tuple[list[str], bool]:
    statuses = replicated_statuses(js, children())
    for name, fields in counts.items():
        statuses[name].update(fields)
    found = startup_decision(js, statuses)
    return [each["name"] for each in found.replicated_jobs], found.others_wait


IN_ORDER = {"startupPolicyOrder": "InOrder"}


def test_without_an_order_all_have_their_turn_at_once() -> None:
    assert turn(jobset()) == (["driver", "worker"], False)


def test_in_order_one_has_its_turn_until_it_has_started() -> None:
    js = jobset(startupPolicy=IN_ORDER)
    assert turn(js) == (["driver"], True)
    assert turn(js, driver={"ready": 1}) == (["worker"], True)
    assert turn(js, driver={"succeeded": 1}, worker={"ready": 1}) == (["worker"], True)
    assert turn(js, driver={"failed": 1}, worker={"ready": 2}) == ([], False)


def test_a_suspended_jobset_has_no_order() -> None:
    assert turn(jobset(startupPolicy=IN_ORDER, suspend=True)) == (["driver", "worker"], False)


def dependent(status: str, suspend: bool = False) -> Obj:
    jobs = [TWO[1], {**TWO[0], "dependsOn": [{"name": "worker", "status": status}]}]
    return jobset(jobs=jobs, suspend=suspend)


def test_one_that_depends_on_another_waits_until_that_is_ready() -> None:
    assert turn(dependent("Ready")) == (["worker"], False)
    assert turn(dependent("Ready"), worker={"ready": 1}) == (["worker"], False)
    assert turn(dependent("Ready"), worker={"ready": 1, "failed": 1}) == (["worker", "driver"], False)


def test_one_that_depends_on_another_waits_until_that_is_complete() -> None:
    assert turn(dependent("Complete"), worker={"ready": 2}) == (["worker"], False)
    assert turn(dependent("Complete"), worker={"succeeded": 2}) == (["worker", "driver"], False)


def test_one_that_depends_on_another_waits_while_all_are_suspended() -> None:
    assert turn(dependent("Ready", suspend=True)) == (["worker"], False)


def test_who_depends_on_one_that_comes_later_waits_for_ever() -> None:
    jobs = [{**TWO[0], "dependsOn": [{"name": "worker", "status": "Complete"}]}, TWO[1]]
    assert turn(jobset(jobs=jobs), worker={"succeeded": 2}) == (["worker"], False)
    jobs = [{**TWO[0], "dependsOn": [{"name": "nobody", "status": "Ready"}]}]
    assert turn(jobset(jobs=jobs)) == ([], False)
