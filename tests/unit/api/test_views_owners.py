"""The owning jobs of an object."""

import make
from batchyard.api.meta import Obj, controller_reference, controlling_jobs, key_of
from object_edits import with_edits


def with_owner(obj: Obj, owner: Obj) -> Obj:
    return with_edits(obj, {"metadata.ownerReferences": [controller_reference(owner)]})


def chain(length: int) -> list[Obj]:
    """Return Jobs, each owned by the previous Job."""
    jobs: list[Obj] = [make.job("job-0")]
    for number in range(1, length):
        jobs.append(with_owner(make.job(f"job-{number}"), jobs[-1]))
    return jobs


def owner_names(obj: Obj, *there: Obj) -> list[str]:
    result = {key_of(each): each for each in there}
    return [above["metadata"]["name"] for above in controlling_jobs(obj, result.get)]


def test_owning_jobs_are_returned_from_nearest_to_topmost() -> None:
    jobs = chain(3)
    assert owner_names(jobs[2], *jobs) == ["job-1", "job-0"]
    assert owner_names(jobs[2], jobs[1]) == ["job-1"]
    assert owner_names(jobs[2]) == []


def test_owner_with_other_uid_is_ignored() -> None:
    below = chain(2)[1]
    assert owner_names(below, with_edits(make.job("job-0"), {"metadata.uid": "another"})) == []


def test_owner_of_other_kind_is_ignored() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": make.metadata("c", uid="u")}
    assert owner_names(with_owner(make.job(), config), config) == []


def test_owner_chain_is_limited_to_kueue_depth() -> None:
    first, second = with_owner(make.job("first"), make.job("second")), with_owner(make.job("second"), make.job("first"))
    assert owner_names(first, first, second) == ["second", "first"] * 5
    alone = with_owner(make.job(), make.job())
    assert owner_names(alone, alone) == ["job"] * 10
    jobs = chain(20)
    assert len(owner_names(jobs[-1], *jobs)) == 10
