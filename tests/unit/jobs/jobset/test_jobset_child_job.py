"""The Jobs and the Service of a JobSet, and resumed Jobs."""

from typing import Any

import make
from batchyard.api import well_known
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj, with_path
from batchyard.jobs.jobset.controller import child_jobs, headless_service
from batchyard.jobs.jobset.policies import has_start_time, resume_job, without_start_time
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World
from yard import queue

DOMAIN = "jobset.sigs.k8s.io/"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
BY_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
POOL = "cloud.google.com/gke-nodepool"
THREE = [
    make.replicated_job("a", 2),
    {**make.replicated_job("b", 3), "groupName": "g"},
    {**make.replicated_job("c", 4), "groupName": "g"},
]


def jobset(**fields: Any) -> Obj:
    js = with_defaults(make.jobset(replicated_jobs=fields.pop("jobs", THREE), **fields))
    return {**js, "status": {"restarts": 7}}


def child(js: Obj, replicated: int = 0, index: int = 0) -> Obj:
    (job,) = child_jobs(js, js["spec"]["replicatedJobs"][replicated], [index])
    return job


def annotated_job(name: str = "a", **annotations: str) -> Obj:
    """A replicated job whose Jobs have annotations."""
    replicated = make.replicated_job(name)
    return {**replicated, "template": {**replicated["template"], "metadata": {"annotations": annotations}}}


def test_child_job_and_pods_have_index_labels_and_annotations() -> None:
    job = child(jobset(), 2, 1)
    place = {
        "jobset-name": "js",
        "jobset-uid": "uid-js",
        "replicatedjob-name": "c",
        "replicatedjob-replicas": "4",
        "global-replicas": "9",
        "job-index": "1",
        "job-global-index": "6",
        "job-key": "a997113d5e0c02ddd253590e7ddd2312408d623a",
        "group-name": "g",
        "group-replicas": "7",
        "job-group-index": "4",
        "restart-attempt": "7",
    }
    marks = {DOMAIN + name: value for name, value in place.items()}
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert (metadata["labels"], metadata["annotations"]) == (marks, marks)


def test_child_job_has_name_and_owner_reference() -> None:
    job = child(jobset(), 1, 2)
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("js-b-2", "team")
    assert job["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "name": "js",
            "uid": "uid-js",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_child_job_follows_template_with_defaults() -> None:
    replicated = make.replicated_job("a", backoffLimit=3)
    replicated["template"]["metadata"] = {"labels": {"own": "1"}, "annotations": {"mine": "2"}, "name": "ignored"}
    job = child(jobset(jobs=[replicated], suspend=False))
    assert (job["spec"]["backoffLimit"], job["spec"]["completionMode"], job["spec"]["suspend"]) == (3, "Indexed", False)
    assert job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    assert (job["metadata"]["labels"]["own"], job["metadata"]["annotations"]["mine"]) == ("1", "2")
    assert job["metadata"]["name"] == "js-a-0"
    assert "own" not in job["spec"]["template"]["metadata"]["labels"]


def test_child_job_of_suspended_jobset_is_suspended() -> None:
    assert child(jobset(suspend=True))["spec"]["suspend"] is True


def test_pods_have_subdomain_unless_hostnames_are_disabled() -> None:
    def subdomain(js: Obj) -> str | None:
        result: str | None = child(js)["spec"]["template"]["spec"].get("subdomain")
        return result

    assert subdomain(jobset()) == "js"
    assert subdomain(jobset(network={"subdomain": "net"})) == "net"
    assert subdomain(jobset(network={"enableDNSHostnames": False})) is None


def test_child_job_and_pods_have_coordinator_label_and_annotation() -> None:
    js = jobset(coordinator={"replicatedJob": "b", "jobIndex": 1, "podIndex": 2})
    assert child(js)["metadata"]["labels"][DOMAIN + "coordinator"] == "js-b-1-2.js"
    assert child(js)["spec"]["template"]["metadata"]["annotations"][DOMAIN + "coordinator"] == "js-b-1-2.js"
    js = jobset(coordinator={"replicatedJob": "a"}, network={"subdomain": "net"})
    assert child(js)["metadata"]["labels"][DOMAIN + "coordinator"] == "js-a-0-0.net"


def test_jobset_exclusive_topology_is_copied_to_child_job() -> None:
    job = child(jobset(annotations={EXCLUSIVE: POOL, "other": "x"}))
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert metadata["annotations"][EXCLUSIVE] == POOL
        assert EXCLUSIVE not in metadata["labels"]
        assert "other" not in metadata["annotations"]
    assert "nodeSelector" not in job["spec"]["template"]["spec"]


def test_replicated_job_overrides_exclusive_topology() -> None:
    js = jobset(
        jobs=[annotated_job("a", **{EXCLUSIVE: "rack"}), make.replicated_job("b")], annotations={EXCLUSIVE: POOL}
    )
    annotations = [child(js, i)["spec"]["template"]["metadata"]["annotations"][EXCLUSIVE] for i in (0, 1)]
    assert annotations == ["rack", POOL]


def test_node_selector_strategy_adds_selector_and_toleration() -> None:
    own = make.pod_template(nodeSelector={"zone": "a"}, tolerations=[{"key": "k"}])
    js = jobset(jobs=[make.replicated_job("a", template=own)], annotations={EXCLUSIVE: POOL, BY_SELECTOR: "true"})
    spec = child(js)["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"zone": "a", "alpha.jobset.sigs.k8s.io/namespaced-job": "team_js-a-0"}
    taint = "alpha.jobset.sigs.k8s.io/no-schedule"
    assert spec["tolerations"] == [{"key": "k"}, {"key": taint, "operator": "Exists", "effect": "NoSchedule"}]


def test_node_selector_strategy_without_exclusive_topology_is_ignored() -> None:
    job = child(jobset(annotations={BY_SELECTOR: "true"}))
    assert BY_SELECTOR not in job["metadata"]["annotations"]
    assert "tolerations" not in job["spec"]["template"]["spec"]


def test_service_is_headless_and_selects_pods_of_jobset() -> None:
    service = headless_service(jobset())
    assert (service["metadata"]["name"], service["metadata"]["namespace"]) == ("js", "team")
    assert service["metadata"]["ownerReferences"][0]["uid"] == "uid-js"
    selector = {"jobset.sigs.k8s.io/jobset-name": "js"}
    assert service["spec"] == {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True}


def test_service_respects_subdomain_and_publish_not_ready_addresses() -> None:
    service = headless_service(jobset(network={"subdomain": "net", "publishNotReadyAddresses": False}))
    assert (service["metadata"]["name"], service["spec"]["publishNotReadyAddresses"]) == ("net", False)


def test_resumed_job_merges_scheduling_fields_of_template() -> None:
    own = make.pod_template(labels={"a": "1", "b": "1"}, nodeSelector={"x": "1"}, tolerations=[{"key": "k"}])
    added = make.pod_template(labels={"b": "2"}, nodeSelector={"y": "2"}, tolerations=[{"key": "k"}, {"key": "l"}])
    added["metadata"]["annotations"] = {"n": "v"}
    added["spec"]["schedulingGates"] = [{"name": "g"}]
    job = resume_job(make.job(template=own), added)
    template = job["spec"]["template"]
    assert job["spec"]["suspend"] is False
    assert template["metadata"] == {"labels": {"a": "1", "b": "2"}, "annotations": {"n": "v"}}
    assert template["spec"]["nodeSelector"] == {"x": "1", "y": "2"}
    assert template["spec"]["tolerations"] == [{"key": "k"}, {"key": "l"}]
    assert template["spec"]["schedulingGates"] == [{"name": "g"}]
    assert template["spec"]["containers"] == own["spec"]["containers"]


def test_resumed_job_loses_start_time() -> None:
    job = {**make.job(), "status": {"startTime": make.stamp(), "ready": 0}}
    assert has_start_time(job)
    assert without_start_time(job)["status"] == {"ready": 0}
    assert not has_start_time(make.job())


# --- Jobs with a queue of their own ---


def jobset_of_queued_jobs(jobset_queue: str | None = None, *, suspend: bool = False) -> list[tuple[str, str]]:
    """The Created and Admitted events of a JobSet of two Jobs whose templates name a queue, with quota for one."""
    jobs = make.replicated_job("a", 2, template=make.pod_template({"cpu": "1"}))
    labeled = with_path(jobs, ("template", "metadata"), {"labels": {well_known.QUEUE_NAME: "lq"}})
    js = make.jobset(queue=jobset_queue, replicated_jobs=[labeled], suspend=suspend)
    quota = 2 if jobset_queue else 1
    log: list[Any] = []
    world = World(scenario_of([make.flavor("spot"), queue("cq", quota), make.local_queue(), js]), sink=log.append)
    world.run_until(None)
    kinds = ("Created", "Admitted", "Finished")
    return [(each["event"], each["workload"].split("-")[0]) for each in log if each["event"] in kinds]


def test_jobs_of_jobset_without_queue_are_admitted_one_by_one() -> None:
    events = jobset_of_queued_jobs()
    created, lived = [("Created", "team/job")] * 2, [("Admitted", "team/job"), ("Finished", "team/job")]
    assert events == [*created, *lived, *lived]


def test_suspended_jobset_without_queue_does_not_suspend_admitted_job() -> None:
    assert ("Finished", "team/job") in jobset_of_queued_jobs(suspend=True)


def test_jobset_with_queue_resumes_jobs_that_name_a_queue_too() -> None:
    lived = [("Created", "team/jobset"), ("Admitted", "team/jobset"), ("Finished", "team/jobset")]
    assert jobset_of_queued_jobs("lq") == lived
