"""The API server of Kubernetes calls the operators: defaults, validation and conversion of versions."""

import json

from e2e_kubernetes.installed_operators import InstalledOperators
from e2e_kubernetes.kubernetes import wait_for
from e2e_kubernetes.objects import V1BETA2, job, job_set, kueue, queue, template


def test_queued_job_is_suspended_at_creation_and_gets_flavor_node_selector(cluster: InstalledOperators) -> None:
    cluster.create(*queue("asked"))
    cluster.create(job("asked", "asked", template("1")), job("large", "asked", template("9")))
    cluster.until("{.spec.suspend}=false", "job", "asked")
    result = cluster.get("job", "asked")
    assert result["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "asked"}
    assert result["metadata"]["generation"] == 2, "it was suspended when it came"
    assert cluster.get("job", "large")["spec"]["suspend"] is True
    cluster.until("{.status.admittedWorkloads} {.status.pendingWorkloads}=1 1", "clusterqueue", "asked")


def test_validating_webhook_rejects_invalid_cluster_queue_with_field_error(cluster: InstalledOperators) -> None:
    policy = {"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "LowerPriority"}}
    wrong = kueue("ClusterQueue", "wrong", {"preemption": policy})
    reported = cluster.kubectl("create", "-f", "-", sent=json.dumps(wrong), fails=True)
    assert 'admission webhook "vclusterqueue.kb.io" denied the request: spec.preemption: Invalid value' in reported


def test_cluster_queue_converts_between_v1beta1_and_v1beta2(cluster: InstalledOperators) -> None:
    old = kueue("ClusterQueue", "old", {"cohort": "all"}, "kueue.x-k8s.io/v1beta1")
    cluster.kubectl("create", "-f", "-", sent=json.dumps(old))
    assert cluster.get("clusterqueues.v1beta2.kueue.x-k8s.io", "old")["spec"]["cohortName"] == "all"
    assert cluster.get("clusterqueues.v1beta1.kueue.x-k8s.io", "old")["spec"]["cohort"] == "all"
    assert cluster.get("crd", "clusterqueues.kueue.x-k8s.io")["status"]["storedVersions"] == ["v1beta2"]


def test_objects_without_spec_do_not_crash_operators(cluster: InstalledOperators) -> None:
    kinds = ("ResourceFlavor", "Topology", "Cohort", "ClusterQueue", "LocalQueue", "Workload")
    bare = [{"apiVersion": V1BETA2, "kind": kind, "metadata": {"name": "bare"}} for kind in kinds]
    cluster.create(*bare)
    cluster.until("{.status.conditions[0].type}=Active", "clusterqueue", "bare")
    cluster.kubectl("delete", "clusterqueue,localqueue,workload,cohort,topology,resourceflavor", "bare")


def test_operator_corrects_status_written_by_another_manager(cluster: InstalledOperators) -> None:
    cluster.create(*queue("status"))
    cluster.until("{.status.conditions[0].status}=True", "clusterqueue", "status")
    theirs = {"apiVersion": V1BETA2, "kind": "ClusterQueue", "metadata": {"name": "status"}}
    options = ("--server-side", "--force-conflicts", "--field-manager=other", "--subresource=status", "-f", "-")
    cluster.kubectl("apply", *options, sent=json.dumps({**theirs, "status": {"pendingWorkloads": 77}}))
    cluster.until("{.status.pendingWorkloads}=0", "clusterqueue", "status")


def test_job_set_event_reports_rejection_of_its_job(cluster: InstalledOperators) -> None:
    privileged = template("1")
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    cluster.create(*queue("refused"), job_set("refused", "refused", privileged, 2))
    reported = ("events", "--field-selector=involvedObject.name=refused,reason=JobCreationFailed")
    wait_for(lambda: bool(cluster.get(*reported)["items"]), cluster.log)
    place = "spec.template.spec.containers[0].securityContext.privileged"
    why = f'Job.batch "refused-workers-0" is invalid: {place}: Forbidden: disallowed by cluster policy'
    message = cluster.get(*reported)["items"][0]["message"]
    assert message == f'job "refused-workers-0" creation failed with error: {why}'
    cluster.kubectl("delete", "jobset", "refused")
