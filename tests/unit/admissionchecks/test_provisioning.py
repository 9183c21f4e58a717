"""Two-phase admission with a ProvisioningRequest: its content, and the effect of each condition."""

from typing import Any

import pytest

import make
from batchyard.admissionchecks.provisioning import ProvisioningController
from batchyard.api import scheme
from batchyard.api.meta import Obj, key_of, with_metadata, with_path
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.lifecycle import checks_of
from stage import Stage, condition_state
from unit.admissionchecks.provisioning_make import (
    CLASS,
    check,
    check_state,
    config,
    only_request,
    provisioning_stage,
    requests,
    run_to,
    set_request_condition,
    templates,
)
from yard import group, queue, workload

#: The check applies to one flavor only.
ON_SPOT = {"admissionChecks": [{"name": "prov", "onFlavors": ["spot"]}]}


def stage_with_request(job: Obj | None = None, **spec: Any) -> Stage:
    """A Job whose request is pending; the keywords are the spec of the config."""
    stage = provisioning_stage(**spec)
    stage.put(job or make.job(parallelism=2, completions=2))
    return stage


def is_suspended(stage: Stage) -> bool:
    return bool(stage.get(scheme.JOB, "job")["spec"]["suspend"])


def event(stage: Stage, reason: str) -> list[str]:
    return [e.message for e in stage.events if e.reason == reason]


# Content of requests.


def test_workload_with_quota_gets_provisioning_request() -> None:
    stage = stage_with_request(parameters={"maxRunDurationSeconds": "600"})
    wl, request = stage.only_workload(), only_request(stage)
    name = f"{wl['metadata']['name']}-prov-1"
    pod_sets = [{"podTemplateRef": {"name": f"ppt-{name}-main"}, "count": 2}]
    assert (request["apiVersion"], request["metadata"]["name"]) == ("autoscaling.x-k8s.io/v1", name)
    assert request["metadata"]["labels"] == {"kueue.x-k8s.io/managed": "true"}
    assert request["spec"] == {
        "provisioningClassName": CLASS,
        "podSets": pod_sets,
        "parameters": {"maxRunDurationSeconds": "600"},
    }
    (owner,) = request["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Workload", wl["metadata"]["uid"], True)
    assert event(stage, "ProvisioningRequestCreated") == [f'Created ProvisioningRequest: "{name}"']
    assert (check_state(stage), is_suspended(stage)) == (("Pending", ""), True)


def test_pod_template_has_flavor_labels_and_is_owned_by_request() -> None:
    stage = provisioning_stage()
    flavor = make.flavor("spot", labels={"pool": "dws"}, tolerations=[{"key": "dws", "operator": "Exists"}])
    stage.put(flavor)
    stage.put(make.job())
    (template,) = templates(stage)
    assert template["metadata"]["labels"] == {"kueue.x-k8s.io/managed": "true"}
    assert template["template"]["spec"]["nodeSelector"] == {"pool": "dws"}
    assert template["template"]["spec"]["tolerations"] == [{"key": "dws", "operator": "Exists"}]
    (owner,) = template["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ProvisioningRequest", only_request(stage)["metadata"]["uid"])


def test_pod_template_uses_limits_as_missing_requests() -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": "1"}}
    template = {"spec": {"containers": [{"name": "c", "resources": resources}], "initContainers": [{"name": "i"}]}}
    stage = provisioning_stage()
    gpus = [{"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [_spot("cpu", "nvidia.com/gpu")]}]
    checked = {"admissionChecks": [{"name": "prov"}]}
    stage.put(queue("cq", groups=gpus, admissionChecksStrategy=checked), make.job(template=template))
    (container,) = templates(stage)[0]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}


def _spot(*resources: str) -> Obj:
    return {"name": "spot", "resources": [{"name": name, "nominalQuota": 8} for name in resources]}


def test_job_annotations_override_config_parameters() -> None:
    prefix = "provreq.kueue.x-k8s.io/"
    annotations = {f"{prefix}maxRunDurationSeconds": "60", f"{prefix}mine": "x", "other": "y"}
    parameters = {"maxRunDurationSeconds": "600", "zone": "a"}
    stage = stage_with_request(make.job(annotations=annotations), parameters=parameters)
    assert only_request(stage)["spec"]["parameters"] == {"maxRunDurationSeconds": "60", "mine": "x", "zone": "a"}


def test_jobset_request_contains_all_pod_sets() -> None:
    jobs = [make.replicated_job("a", replicas=2), make.replicated_job("b")]
    stage = stage_with_request(make.jobset(replicated_jobs=jobs))
    pod_sets = only_request(stage)["spec"]["podSets"]
    assert [(p["podTemplateRef"]["name"][-2:], p["count"]) for p in pod_sets] == [("-a", 2), ("-b", 1)]
    assert len(templates(stage)) == 2


def test_identical_pod_sets_share_template_with_merge_policy() -> None:
    jobs = [make.replicated_job("a", replicas=2), make.replicated_job("b")]
    stage = stage_with_request(make.jobset(replicated_jobs=jobs), podSetMergePolicy="IdenticalPodTemplates")
    (pod_set,) = only_request(stage)["spec"]["podSets"]
    assert (pod_set["podTemplateRef"]["name"][-2:], pod_set["count"]) == ("-a", 3)
    set_request_condition(stage, "Provisioned")
    (result,) = checks_of(stage.only_workload())
    assert [update["name"] for update in result["podSetUpdates"]] == ["a", "b"]
    assert lifecycle.is_admitted(stage.only_workload())


def test_check_is_ready_without_request_if_no_pod_needs_managed_resource() -> None:
    stage = stage_with_request(managedResources=["nvidia.com/gpu"])
    assert requests(stage) == []
    assert check_state(stage) == ("Ready", "the provisioning request is not needed")
    assert not is_suspended(stage)
    reported = "Admission check prov updated state from Pending to Ready with message: "
    assert event(stage, "AdmissionCheckUpdated") == [reported + "the provisioning request is not needed"]


def test_request_is_not_created_before_quota_reservation() -> None:
    stage = stage_with_request(make.job(parallelism=20, completions=20))
    assert (check_state(stage), requests(stage)) == (("Pending", ""), [])


def test_check_reports_conflict_of_pod_template_with_flavor() -> None:
    stage = stage_with_request(make.job(template=make.pod_template(nodeSelector={"pool": "other"})))
    assert lifecycle.status(stage.only_workload()).value == "pending"  # no flavor matches
    stage = provisioning_stage()
    stage.put(make.flavor("spot"))
    stage.put(make.job(template=make.pod_template(nodeSelector={"pool": "other"})))
    request = only_request(stage)
    stage.put(make.flavor("spot", labels={"pool": "dws"}), config(provisioningClassName="another"))
    name = f"ppt-{request['metadata']['name']}-main"
    conflict = "conflict for nodeSelector: conflict for key=pool, value1=other, value2=dws"
    message = f'Error creating PodTemplate "{name}": invalid admission check PodSetUpdate: {conflict}'
    assert (check_state(stage), event(stage, "FailedCreate")) == (("Pending", message), [message])


def test_request_is_not_created_while_assigned_flavor_is_missing() -> None:
    stage = stage_with_request()
    stage.delete(scheme.RESOURCE_FLAVOR, "spot", "")
    stage.put(config(parameters={"a": "2"}))
    assert lifecycle.has_quota_reservation(stage.only_workload())
    assert (check_state(stage), requests(stage), event(stage, "FailedCreate")) == (("Pending", ""), [], [])
    stage.put(make.flavor("spot", labels={"pool": "dws"}))
    assert requests(stage) == [], "the controller does not watch flavors"
    stage.run(10)
    assert only_request(stage)["spec"]["parameters"] == {"a": "2"}
    assert [each["template"]["spec"]["nodeSelector"] for each in templates(stage)] == [{"pool": "dws"}]


# Conditions of requests.


def test_check_reports_eta_of_provisioning_request() -> None:
    stage = stage_with_request()
    set_request_condition(stage, "Accepted", "accepted")
    assert check_state(stage) == ("Pending", "")
    set_request_condition(stage, "Provisioned", "Waiting for resources. ETA: 2026-01-01T01:00:00Z", status=False)
    assert check_state(stage) == ("Pending", "Waiting for resources. ETA: 2026-01-01T01:00:00Z")
    assert event(stage, "UpdatedAdmissionCheck") == ["prov: Waiting for resources. ETA: 2026-01-01T01:00:00Z"]
    assert event(stage, "AdmissionCheckUpdated") == []


def test_job_starts_on_provisioned_nodes() -> None:
    selector = [{"key": "on", "valueFromProvisioningClassDetail": "Request"}]
    selector.append({"key": "off", "valueFromProvisioningClassDetail": "Nothing"})
    stage = stage_with_request(podSetUpdates={"nodeSelector": selector})
    run_to(stage, 90)
    set_request_condition(stage, "Accepted")
    set_request_condition(stage, "Provisioned", "there", provisioningClassDetails={"Request": "r1"})
    assert (check_state(stage), is_suspended(stage)) == (("Ready", "there"), False)
    template = stage.get(scheme.JOB, "job")["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    name = only_request(stage)["metadata"]["name"]
    assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == name
    assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == CLASS
    assert template["spec"]["nodeSelector"] == {"pool": "dws", "on": "r1"}
    assert event(stage, "Admitted") == ["Admitted by ClusterQueue cq, wait time since reservation was 90s"]
    (result,) = checks_of(stage.only_workload())
    assert result["lastTransitionTime"] == make.stamp(90)


@pytest.mark.parametrize(
    ("answer", "word"), [("Failed", "failure"), ("BookingExpired", "booking expired")], ids=["failed", "expired"]
)
def test_failed_request_is_retried_after_backoff(answer: str, word: str) -> None:
    stage = stage_with_request()
    first = only_request(stage)["metadata"]["name"]
    run_to(stage, 100)
    set_request_condition(stage, "Accepted")
    set_request_condition(stage, answer, "no room")
    wl = stage.only_workload()
    assert (check_state(stage), lifecycle.status(wl).value) == (
        ("Retry", f"Retrying after {word}: no room"),
        "quotaReserved",
    )
    assert wl["status"]["requeueState"]["requeueAt"] == make.stamp(160)
    stage.run(159)
    assert only_request(stage)["metadata"]["name"] == first
    stage.run(160)
    message = f'Evicted due to AdmissionCheck in Retry state: "prov" (Retrying after {word}: no room)'
    assert event(stage, "EvictedDueToAdmissionCheck") == [message]
    assert only_request(stage)["metadata"]["name"] == first[:-1] + "2"
    assert (check_state(stage), lifecycle.has_quota_reservation(stage.only_workload())) == (("Pending", ""), True)


def test_backoff_grows_until_workload_is_deactivated() -> None:
    retry = {"backoffLimitCount": 3, "backoffBaseSeconds": 10, "backoffMaxSeconds": 30}
    stage = stage_with_request(retryStrategy=retry)
    for begin in (0, 10, 30, 60):
        stage.run(begin)
        assert stage.kernel.now() == make.at(begin)
        set_request_condition(stage, "Failed", "no room")
    wl = stage.only_workload()
    assert condition_state(wl, "Evicted")[1] == "DeactivatedDueToAdmissionCheck"
    assert event(stage, "AdmissionCheckRejected") == [
        'Deactivated due to AdmissionCheck in Rejected state: "prov" (no room)'
    ]
    assert (wl["spec"]["active"], requests(stage)) == (False, [])
    assert [e["count"] for e in wl["status"]["schedulingStats"]["evictions"]] == [3, 1]


def test_retries_of_flavor_specific_check_are_counted() -> None:
    stage = provisioning_stage(retryStrategy={"backoffLimitCount": 1, "backoffBaseSeconds": 10})
    cq = queue("cq", groups=[group(other={"cpu": 0}, spot={"cpu": 8})], admissionChecksStrategy=ON_SPOT)
    stage.put(make.flavor("other"), cq, make.job())
    set_request_condition(stage, "Failed", "no room")
    stage.run(10)
    assert [check["retryCount"] for check in checks_of(stage.only_workload())] == [1]
    assert only_request(stage)["metadata"]["name"].endswith("-prov-2")
    set_request_condition(stage, "Failed", "no room")
    assert condition_state(stage.only_workload(), "Evicted")[1] == "DeactivatedDueToAdmissionCheck"


def test_workload_is_admitted_at_once_on_flavor_without_check() -> None:
    stage = provisioning_stage(retryStrategy={"backoffBaseSeconds": 10})
    cq = queue("cq", groups=[group(other={"cpu": 0}, spot={"cpu": 8})], admissionChecksStrategy=ON_SPOT)
    stage.put(make.flavor("other"), cq, make.job())
    set_request_condition(stage, "Failed", "no room")
    groups = [group(other={"cpu": 8}, spot={"cpu": 8})]
    stage.put(queue("cq", groups=groups, admissionChecksStrategy=ON_SPOT))
    stage.run(10)
    wl = stage.only_workload()
    assert (lifecycle.is_admitted(wl), checks_of(wl), len(event(stage, "Admitted"))) == (True, (), 1)


def test_expired_booking_is_ignored_after_admission() -> None:
    stage = stage_with_request()
    set_request_condition(stage, "Provisioned")
    set_request_condition(stage, "BookingExpired", "too late")
    assert (check_state(stage)[0], lifecycle.is_admitted(stage.only_workload())) == ("Ready", True)


def test_revoked_capacity_deactivates_workload() -> None:
    stage = stage_with_request()
    set_request_condition(stage, "Provisioned")
    set_request_condition(stage, "CapacityRevoked", "time is up")
    wl = stage.only_workload()
    message = 'The workload is deactivated due to AdmissionCheck in Rejected state: "prov" (time is up)'
    assert condition_state(wl, "Evicted") == ("True", "DeactivatedDueToAdmissionCheck", message)
    assert (is_suspended(stage), wl["spec"]["active"]) == (True, False)


def test_deactivated_workload_gets_new_request_on_reactivation() -> None:
    stage = stage_with_request(retryStrategy={"backoffLimitCount": 0})
    set_request_condition(stage, "Failed")
    stage.put(with_path(stage.only_workload(), ("spec", "active"), True))
    assert only_request(stage)["metadata"]["name"].endswith("-prov-1")
    assert condition_state(stage.only_workload(), "Requeued")[1] == "Reactivated"


# Deletion and replacement.


def test_request_is_deleted_when_workload_finishes() -> None:
    stage = stage_with_request()
    set_request_condition(stage, "Provisioned")
    stage.put(lifecycle.finish(stage.only_workload(), "Succeeded", "", make.NOW))
    assert (requests(stage), templates(stage)) == ([], [])


def test_preempted_workload_gets_new_request() -> None:
    stage = stage_with_request()
    set_request_condition(stage, "Provisioned")
    before = only_request(stage)["metadata"]
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="", now=make.NOW))
    after = only_request(stage)["metadata"]
    assert (after["name"], after["uid"] == before["uid"]) == (before["name"], False)
    assert (check_state(stage)[0], len(templates(stage))) == ("Pending", 1)


def test_request_is_kept_if_reservation_ends_without_eviction() -> None:
    stage = stage_with_request()
    uid = only_request(stage)["metadata"]["uid"]
    stage.put(make.local_queue("lq", cluster_queue="cq", stopPolicy="Hold"))
    assert not lifecycle.has_quota_reservation(stage.only_workload())
    stage.put(make.local_queue("lq", cluster_queue="cq"))
    assert only_request(stage)["metadata"]["uid"] == uid


def test_changed_config_replaces_request() -> None:
    stage = stage_with_request(parameters={"a": "1"})
    uid = only_request(stage)["metadata"]["uid"]
    stage.put(config(parameters={"a": "2"}))
    request = only_request(stage)
    assert (request["spec"]["parameters"], request["metadata"]["uid"] == uid) == ({"a": "2"}, False)
    assert request["metadata"]["name"].endswith("-prov-1")
    (template,) = templates(stage)
    assert template["metadata"]["ownerReferences"][0]["uid"] == request["metadata"]["uid"]


def test_check_stays_pending_until_config_exists() -> None:
    stage = stage_with_request()
    stage.delete(scheme.PROVISIONING_REQUEST_CONFIG, "config", "")
    assert (check_state(stage), requests(stage)) == (("Pending", "the check is not active"), [])
    stage.put(config())
    assert (check_state(stage), len(templates(stage))) == (("Pending", ""), 1)


def test_deleted_request_of_ready_check_is_not_recreated() -> None:
    stage = stage_with_request()
    set_request_condition(stage, "Provisioned")
    stage.delete(scheme.PROVISIONING_REQUEST, only_request(stage)["metadata"]["name"])
    assert (check_state(stage)[0], requests(stage)) == ("Ready", [])


def test_controller_ignores_checks_of_other_controllers() -> None:
    other = with_path(check("theirs"), ("spec", "controllerName"), "example.com/theirs")
    active = {**other, "status": {"conditions": [make.condition("Active")]}}
    stage = provisioning_stage(active, checks={"theirs": {"name": "theirs"}})
    stage.put(make.job())
    set_request_condition(stage, "Provisioned")
    assert [check_state(stage, name)[0] for name in ("prov", "theirs")] == ["Ready", "Pending"]
    assert is_suspended(stage)


def test_each_check_has_its_own_request() -> None:
    stage = provisioning_stage(check("second"), checks={"second": {"name": "second"}})
    stage.put(make.job())
    names = [r["metadata"]["name"] for r in requests(stage)]
    assert [name.rpartition("-")[0].rpartition("-")[2] for name in names] == ["prov", "second"]


def test_handled_failure_is_replaced_by_next_attempt() -> None:
    stage = stage_with_request()
    request = only_request(stage)
    wl = stage.only_workload()
    result = [{**checks_of(wl)[0], "retryCount": 1}]
    failed = {"conditions": [make.condition("Failed", message="no room")]}
    stage.put(with_path(wl, ("status", "admissionChecks"), result), {**request, "status": failed})
    assert only_request(stage)["metadata"]["name"] == request["metadata"]["name"][:-1] + "2"
    assert lifecycle.has_quota_reservation(stage.only_workload())


# Crashes, and objects of other controllers.


def test_pod_template_created_before_crash_is_reused() -> None:
    before = stage_with_request()
    (template,), wl = templates(before), before.only_workload()
    owner = {**template["metadata"]["ownerReferences"][0], "kind": "Workload", "uid": wl["metadata"]["uid"]}
    stage = provisioning_stage(with_metadata(template, ownerReferences=[owner]))
    stage.put(make.job(parallelism=2, completions=2))
    (kept,) = templates(stage)
    assert kept["metadata"]["uid"] == template["metadata"]["uid"]
    assert kept["metadata"]["ownerReferences"][0]["uid"] == only_request(stage)["metadata"]["uid"]


def test_foreign_pod_template_with_same_name_is_replaced() -> None:
    (template,) = templates(stage_with_request())
    foreign = with_metadata({**template, "template": make.pod_template({"cpu": "99"})}, ownerReferences=None)
    stage = provisioning_stage(foreign)
    stage.put(make.job(parallelism=2, completions=2))
    (created,) = templates(stage)
    assert created["template"] == template["template"]


def test_pod_template_owned_by_workload_is_deleted_when_workload_finishes() -> None:
    stage = stage_with_request()
    (template,), wl = templates(stage), stage.only_workload()
    owner = {**template["metadata"]["ownerReferences"][0], "kind": "Workload", "uid": wl["metadata"]["uid"]}
    stage.put(with_metadata(template, ownerReferences=[owner]))
    stage.put(lifecycle.finish(wl, "Failed", "", make.NOW))
    assert (requests(stage), templates(stage)) == ([], [])


def test_restarted_controller_resumes_from_stored_objects() -> None:
    stage = stage_with_request()
    set_request_condition(stage, "Accepted")
    set_request_condition(stage, "Provisioned", "soon", status=False)
    fresh = ProvisioningController()
    for kind in fresh.kinds:
        for obj in stage.client.list(kind):
            fresh.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0), make.NOW)
    key = key_of(stage.only_workload())
    assert fresh.reconcile(key, stage.client, make.at(5)) == ReconcileResult()
    prov = stage.get(scheme.ADMISSION_CHECK, "prov", "")
    assert list(fresh.keys_for(WatchEvent(EventType.MODIFIED, key_of(prov), prov, prov, 0), make.NOW)) == [key]


def test_controller_schedules_no_timer_while_request_is_pending() -> None:
    stage = stage_with_request()
    stage.run(10)
    assert stage.kernel.pending_count() == 0


# Names that are too long.


@pytest.mark.parametrize("length", [100, 240, 253])
def test_request_with_a_long_name_is_created_once(length: int) -> None:
    """The controller recognizes a request with a truncated name, so it does not replace it again and again."""
    stage = provisioning_stage()
    name = "w" * length
    stage.put(workload(name, queue="lq"))
    first = only_request(stage)
    for number in range(3):
        stage.put(with_metadata(stage.workload(name), labels={"changed": str(number)}))
        stage.run(60 * (number + 1))
    assert only_request(stage) == first
    assert len(first["metadata"]["name"]) <= 253
    assert check_state(stage)[0] == "Pending"
