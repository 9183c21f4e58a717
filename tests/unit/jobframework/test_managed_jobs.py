"""Which jobs are managed: jobs without a queue name, enabled kinds, ancestors, and jobs of other controllers."""

from typing import Any

import pytest

import make
from batchyard import simulate
from batchyard.admission_plugins.built_in import AncestorSearch, ManagedJobs, find_managed_ancestor, queue_job
from batchyard.api import scheme
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, controller_reference, key_of, parse_selector
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.integration import JobSetIntegration
from object_edits import with_edits
from stage import Stage, condition_state

ALL = ManagedJobs(without_queue_name=True)
WRAPPER = ("jobs.example.com/v1", "Wrapper")
FREE = make.job(queue=None, suspend=False)


def owned_by(owner: Obj, obj: Obj) -> Obj:
    return with_edits(obj, {"metadata.ownerReferences": [controller_reference(owner)]})


def wrapper_of(queue: str | None) -> Obj:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else None
    return {"apiVersion": WRAPPER[0], "kind": WRAPPER[1], "metadata": make.metadata("aw", labels=labels)}


def nested_jobs(*queues: str | None) -> list[Obj]:
    """Return a Job in a JobSet in a wrapper, with these queue names."""
    job_queue, jobset_queue, wrapper_queue = queues
    wrapper = wrapper_of(wrapper_queue)
    jobset = owned_by(wrapper, make.jobset(queue=jobset_queue))
    return [owned_by(jobset, make.job(queue=job_queue, suspend=False)), jobset, wrapper]


def ancestor_name(objects: list[Obj], managed_jobs: ManagedJobs) -> str:
    search = find_managed_ancestor(objects[0], {key_of(each): each for each in objects}.get, managed_jobs)
    assert search.problem == ""
    return "" if search.managed_key is None else search.managed_key.name


@pytest.mark.parametrize(
    ("queues", "without", "with_flag"),
    [
        ((None, None, None), "", "aw"),
        (("q", "q", None), "js", "aw"),
        (("q", None, "q"), "aw", "aw"),
        (("q", "q", "q"), "aw", "aw"),
        (("q", None, None), "", "aw"),
    ],
)
@pytest.mark.parametrize("kinds", [(scheme.JOB, scheme.JOB_SET), (scheme.JOB,)])
def test_topmost_managed_owner_is_found(
    queues: tuple[str | None, ...], without: str, with_flag: str, kinds: tuple[str, ...]
) -> None:
    objects = nested_jobs(*queues)
    expected = without if scheme.JOB_SET in kinds or without == "aw" else ""
    assert ancestor_name(objects, ManagedJobs(kinds=kinds, external_kinds=(WRAPPER,))) == expected
    assert ancestor_name(objects, ManagedJobs(None, True, kinds, (WRAPPER,))) == with_flag


def test_owner_of_unknown_kind_or_other_version_ends_search() -> None:
    objects = nested_jobs(None, None, "q")
    assert ancestor_name(objects, ManagedJobs()) == ""
    assert ancestor_name(objects, ALL) == "js"
    other_version = ("jobs.example.com/v2", "Wrapper")
    assert ancestor_name(objects, ManagedJobs(external_kinds=(other_version,))) == ""


def chain(length: int) -> list[Obj]:
    """Return Jobs, each owned by the previous one; the first has a queue name."""
    jobs: list[Obj] = [make.job("job-0", suspend=False)]
    for number in range(1, length):
        jobs.append(owned_by(jobs[-1], make.job(f"job-{number}", queue=None, suspend=False)))
    return jobs


def search_chain(jobs: list[Obj]) -> AncestorSearch:
    return find_managed_ancestor(jobs[-1], {key_of(each): each for each in jobs}.get)


def test_search_fails_at_eleventh_owner() -> None:
    assert search_chain(chain(11)).managed_key == Key("Job.batch", "team", "job-0")
    assert search_chain(chain(12)).is_too_deep
    jobs = chain(12)
    with pytest.raises(Forbidden, match="managed owner chain limit reached"):
        queue_job(jobs[-1], {key_of(each): each for each in jobs}.get)


def test_search_fails_if_job_owns_itself() -> None:
    job, other_job = make.job("first"), make.job("second")
    first, second = owned_by(other_job, job), owned_by(job, other_job)
    assert search_chain([second, first]).problem == "cyclic ownership"


def test_search_fails_if_owner_is_missing() -> None:
    assert search_chain(chain(3)[1:]) == AncestorSearch(None, 'Job.batch "job-0" not found')


def test_nesting_too_deep_is_reported() -> None:
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(*chain(12))
    (event,) = [each for each in stage.events if each.reason == "JobNestingTooDeep"]
    message = "Terminated search for Kueue-managed Job because ancestor depth exceeded limit of 10"
    assert (event.regarding.name, event.type, event.message) == ("job-11", "Warning", message)


def test_job_without_queue_name_is_suspended_in_managed_namespace() -> None:
    namespace, selector = make.namespace(), parse_selector({"matchLabels": {"batch": "yes"}})
    find = {key_of(namespace): namespace}.get
    assert queue_job(FREE, find, ALL)["spec"]["suspend"] is True
    assert queue_job(FREE, find) is FREE
    assert queue_job(FREE, find, ManagedJobs(selector, without_queue_name=True)) is FREE


def test_job_of_disabled_kind_is_unchanged() -> None:
    queues = (make.local_queue("default"), make.workload_priority_class("default", 7))
    find = {key_of(each): each for each in queues}.get
    jobset = make.jobset(suspend=False)
    assert queue_job(jobset, find, ManagedJobs(kinds=(scheme.JOB,))) is jobset
    child = owned_by(jobset, FREE)
    known: dict[Key, Obj] = {key_of(each): each for each in (*queues, jobset)}
    assert queue_job(child, known.get) is child
    child_of_disabled: Any = queue_job(child, known.get, ManagedJobs(kinds=(scheme.JOB,)))
    assert child_of_disabled["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"


def test_managed_job_without_queue_name_gets_workload_without_queue() -> None:
    stage = Stage(JobReconciler(JobIntegration(), managed_jobs=ALL))
    stage.put(make.job(queue=None))
    # The definition of Kueue refuses an empty queueName.
    assert "queueName" not in stage.only_workload()["spec"]
    stage.put(make.job(queue="lq"))
    assert stage.only_workload()["spec"]["queueName"] == "lq"


def test_child_of_managed_jobset_without_queue_name_gets_no_workload() -> None:
    stage = Stage(*(JobReconciler(each, managed_jobs=ALL) for each in (JobIntegration(), JobSetIntegration())))
    jobset = make.jobset(queue=None)
    stage.put(jobset, owned_by(jobset, FREE))
    assert stage.only_workload()["metadata"]["name"].startswith("jobset-")
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is True


WORLD = """
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: spot, resources: [{name: cpu, nominalQuota: 4}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: team}
spec: {clusterQueue: cq}
---
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
"""
JOB = """
---
apiVersion: batch/v1
kind: Job
metadata: {name: free, namespace: team}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: img, resources: {requests: {cpu: 1}}}]
"""


def test_simulation_keeps_job_without_queue_name_pending() -> None:
    result = simulate(WORLD + "manageJobsWithoutQueueName: true" + JOB)
    (workload,) = result.objects[scheme.WORKLOAD]
    assert condition_state(workload, "QuotaReserved") == ("False", "Misconfigured", "LocalQueue  doesn't exist")
    (job,) = result.objects[scheme.JOB]
    assert job["spec"]["suspend"] is True


def test_simulation_runs_job_without_queue_name_in_unmanaged_namespace() -> None:
    selector = "managedJobsNamespaceSelector: {matchLabels: {batch: x}}"
    result = simulate(WORLD + "manageJobsWithoutQueueName: true\n" + selector + JOB)
    assert result.objects[scheme.WORKLOAD] == ()
    (job,) = result.objects[scheme.JOB]
    assert not job["spec"].get("suspend")
