"""Which jobs an object belongs to."""

import make
from batchyard.api.meta import Key, Obj, ancestry, controller_reference, key_of, owning_jobs
from edits import edited


def owned(obj: Obj, owner: Obj) -> Obj:
    return edited(obj, {"metadata.ownerReferences": [controller_reference(owner)]})


def chain(length: int) -> list[Obj]:
    """Jobs each of which belongs to the one before."""
    jobs: list[Obj] = [make.job("job-0")]
    for number in range(1, length):
        jobs.append(owned(make.job(f"job-{number}"), jobs[-1]))
    return jobs


def names_above(obj: Obj, *there: Obj) -> list[str]:
    found = {key_of(each): each for each in there}
    return [above["metadata"]["name"] for above in owning_jobs(obj, found.get)]


def test_they_are_told_from_below() -> None:
    jobs = chain(3)
    assert names_above(jobs[2], *jobs) == ["job-1", "job-0"]
    assert names_above(jobs[2], jobs[1]) == ["job-1"]
    assert names_above(jobs[2]) == []


def test_another_one_of_the_same_name_is_none_of_them() -> None:
    below = chain(2)[1]
    assert names_above(below, edited(make.job("job-0"), {"metadata.uid": "another"})) == []


def test_what_is_no_job_is_none_of_them() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": make.metadata("c", uid="u")}
    assert names_above(owned(make.job(), config), config) == []


def test_owners_that_go_in_circles_or_on_and_on_are_told_as_far_as_kueue_looks() -> None:
    first, second = owned(make.job("first"), make.job("second")), owned(make.job("second"), make.job("first"))
    assert names_above(first, first, second) == ["second", "first"] * 5
    alone = owned(make.job(), make.job())
    assert names_above(alone, alone) == ["job"] * 10
    jobs = chain(20)
    assert len(names_above(jobs[-1], *jobs)) == 10


def test_the_topmost_that_names_a_queue_manages_what_is_below() -> None:
    jobs = chain(3)
    jobs[0] = edited(jobs[0], {"metadata.labels": {}})
    found = {key_of(each): each for each in jobs}
    assert ancestry(jobs[2], found.get) == (key_of(jobs[1]), None)
    assert ancestry(jobs[1], found.get) == (None, None)


def test_who_manages_it_is_not_known_while_an_owner_is_not_to_be_seen() -> None:
    jobs = chain(3)
    assert ancestry(jobs[2], {key_of(jobs[1]): jobs[1]}.get) == (None, Key("Job.batch", "team", "job-0"))
