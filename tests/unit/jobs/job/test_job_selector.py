"""The selector and the pod labels of a Job."""

from batchyard.jobs.job.spec import with_selector
from unit.jobs.job.job_make import job


def test_job_gets_selector_and_pod_labels_with_uid_and_name() -> None:
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


def test_job_with_selector_is_unchanged() -> None:
    created = with_selector(job())
    assert with_selector(created) is created


def test_manual_selector_is_unchanged() -> None:
    own = job(manualSelector=True, selector={"matchLabels": {"app": "x"}})
    assert with_selector(own) is own


def test_existing_pod_labels_are_kept() -> None:
    given = job()
    given["spec"]["template"]["metadata"] = {"labels": {"app": "x", "job-name": "other"}}
    labels = with_selector(given)["spec"]["template"]["metadata"]["labels"]
    assert (labels["app"], labels["job-name"], labels["controller-uid"]) == ("x", "other", "uid-job")
