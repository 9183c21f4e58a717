"""The labels by which a Job finds its pods."""

from batchyard.jobs.job.spec import with_selector
from unit.jobs.job.job_make import job


def test_a_job_selects_by_its_uid_and_labels_its_pods_with_uid_and_name() -> None:
    spec = with_selector(job())["spec"]
    uid = "batch.kubernetes.io/controller-uid"
    assert spec["selector"] == {"matchLabels": {uid: "uid-job"}}
    name = "batch.kubernetes.io/job-name"
    assert spec["template"]["metadata"]["labels"] == {
        "job-name": "job",
        name: "job",
        "controller-uid": "uid-job",
        uid: "uid-job",
    }


def test_a_job_that_has_its_selector_is_left_as_it_is() -> None:
    made = with_selector(job())
    assert with_selector(made) is made


def test_a_selector_made_by_hand_is_left_alone() -> None:
    own = job(manualSelector=True, selector={"matchLabels": {"app": "x"}})
    assert with_selector(own) is own


def test_labels_that_are_given_stay() -> None:
    given = job()
    given["spec"]["template"]["metadata"] = {"labels": {"app": "x", "job-name": "other"}}
    labels = with_selector(given)["spec"]["template"]["metadata"]["labels"]
    assert (labels["app"], labels["job-name"], labels["controller-uid"]) == ("x", "other", "uid-job")
