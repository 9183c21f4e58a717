"""Two-phase admission with a ProvisioningRequest: what is asked for, and what comes of every answer."""

from typing import Any

import pytest

import make
from batchyard.admissionchecks.provisioning import ProvisioningController
from batchyard.api import scheme
from batchyard.api.meta import Obj, key_of, with_metadata, with_path
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.lifecycle import checks_of
from stage import Stage, stated
from unit.admissionchecks.provisioning_make import (
    CLASS,
    check,
    config,
    only_request,
    pass_to,
    provisioning_stage,
    requests,
    say,
    state,
    templates,
)
from yard import group, queue

#: The check is for one of the flavors.
ON_SPOT = {"admissionChecks": [{"name": "prov", "onFlavors": ["spot"]}]}


def asked(job: Obj | None = None, **spec: Any) -> Stage:
    """A Job that waits for its request to be answered; the keywords are the config's."""
    stage = provisioning_stage(**spec)
    stage.put(job or make.job(parallelism=2, completions=2))
    return stage


def suspended(stage: Stage) -> bool:
    return bool(stage.get(scheme.JOB, "job")["spec"]["suspend"])


def event(stage: Stage, reason: str) -> list[str]:
    return [e.message for e in stage.events if e.reason == reason]


# What is asked for.


def test_a_workload_with_quota_asks_for_its_pods() -> None:
    stage = asked(parameters={"maxRunDurationSeconds": "600"})
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
    assert (state(stage), suspended(stage)) == (("Pending", ""), True)


def test_a_template_has_what_flavors_want_and_belongs_to_the_request() -> None:
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


def test_limits_are_asked_for_where_nothing_else_is() -> None:
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


def test_annotations_of_a_job_are_parameters_and_come_first() -> None:
    prefix = "provreq.kueue.x-k8s.io/"
    annotations = {f"{prefix}maxRunDurationSeconds": "60", f"{prefix}mine": "x", "other": "y"}
    parameters = {"maxRunDurationSeconds": "600", "zone": "a"}
    stage = asked(make.job(annotations=annotations), parameters=parameters)
    assert only_request(stage)["spec"]["parameters"] == {"maxRunDurationSeconds": "60", "mine": "x", "zone": "a"}


def test_a_jobset_asks_for_all_its_pod_sets() -> None:
    jobs = [make.replicated_job("a", replicas=2), make.replicated_job("b")]
    stage = asked(make.jobset(replicated_jobs=jobs))
    pod_sets = only_request(stage)["spec"]["podSets"]
    assert [(p["podTemplateRef"]["name"][-2:], p["count"]) for p in pod_sets] == [("-a", 2), ("-b", 1)]
    assert len(templates(stage)) == 2


def test_pod_sets_that_are_alike_share_a_template_if_they_may() -> None:
    jobs = [make.replicated_job("a", replicas=2), make.replicated_job("b")]
    stage = asked(make.jobset(replicated_jobs=jobs), podSetMergePolicy="IdenticalPodTemplates")
    (pod_set,) = only_request(stage)["spec"]["podSets"]
    assert (pod_set["podTemplateRef"]["name"][-2:], pod_set["count"]) == ("-a", 3)
    say(stage, "Provisioned")
    (found,) = checks_of(stage.only_workload())
    assert [update["name"] for update in found["podSetUpdates"]] == ["a", "b"]
    assert lifecycle.is_admitted(stage.only_workload())


def test_nothing_is_asked_for_where_no_pod_needs_it() -> None:
    stage = asked(managedResources=["nvidia.com/gpu"])
    assert requests(stage) == []
    assert state(stage) == ("Ready", "the provisioning request is not needed")
    assert not suspended(stage)
    reported = "Admission check prov updated state from Pending to Ready with message: "
    assert event(stage, "AdmissionCheckUpdated") == [reported + "the provisioning request is not needed"]


def test_nothing_is_asked_for_before_there_is_quota() -> None:
    stage = asked(make.job(parallelism=20, completions=20))
    assert (state(stage), requests(stage)) == (("Pending", ""), [])


def test_a_template_that_contradicts_its_flavor_is_told_in_the_check() -> None:
    stage = asked(make.job(template=make.pod_template(nodeSelector={"pool": "other"})))
    assert lifecycle.status(stage.only_workload()).value == "pending"  # no flavor matches
    stage = provisioning_stage()
    stage.put(make.flavor("spot"))
    stage.put(make.job(template=make.pod_template(nodeSelector={"pool": "other"})))
    request = only_request(stage)
    stage.put(make.flavor("spot", labels={"pool": "dws"}), config(provisioningClassName="another"))
    name = f"ppt-{request['metadata']['name']}-main"
    conflict = "conflict for nodeSelector: conflict for key=pool, value1=other, value2=dws"
    message = f'Error creating PodTemplate "{name}": invalid admission check PodSetUpdate: {conflict}'
    assert (state(stage), event(stage, "FailedCreate")) == (("Pending", message), [message])


# Answers.


def test_what_is_said_of_the_time_it_takes_is_passed_on() -> None:
    stage = asked()
    say(stage, "Accepted", "accepted")
    assert state(stage) == ("Pending", "")
    say(stage, "Provisioned", "Waiting for resources. ETA: 2026-01-01T01:00:00Z", status=False)
    assert state(stage) == ("Pending", "Waiting for resources. ETA: 2026-01-01T01:00:00Z")
    assert event(stage, "UpdatedAdmissionCheck") == ["prov: Waiting for resources. ETA: 2026-01-01T01:00:00Z"]
    assert event(stage, "AdmissionCheckUpdated") == []


def test_what_is_provisioned_lets_the_job_run_on_it() -> None:
    selector = [{"key": "on", "valueFromProvisioningClassDetail": "Request"}]
    selector.append({"key": "off", "valueFromProvisioningClassDetail": "Nothing"})
    stage = asked(podSetUpdates={"nodeSelector": selector})
    pass_to(stage, 90)
    say(stage, "Accepted")
    say(stage, "Provisioned", "there", provisioningClassDetails={"Request": "r1"})
    assert (state(stage), suspended(stage)) == (("Ready", "there"), False)
    template = stage.get(scheme.JOB, "job")["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    name = only_request(stage)["metadata"]["name"]
    assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == name
    assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == CLASS
    assert template["spec"]["nodeSelector"] == {"pool": "dws", "on": "r1"}
    assert event(stage, "Admitted") == ["Admitted by ClusterQueue cq, wait time since reservation was 90s"]
    (found,) = checks_of(stage.only_workload())
    assert found["lastTransitionTime"] == make.stamp(90)


@pytest.mark.parametrize(
    ("answer", "word"), [("Failed", "failure"), ("BookingExpired", "booking expired")], ids=["failed", "expired"]
)
def test_a_request_that_came_to_nothing_is_made_again_later(answer: str, word: str) -> None:
    stage = asked()
    first = only_request(stage)["metadata"]["name"]
    pass_to(stage, 100)
    say(stage, "Accepted")
    say(stage, answer, "no room")
    wl = stage.only_workload()
    message = f'Evicted due to AdmissionCheck in Retry state: "prov" (Retrying after {word}: no room)'
    assert stated(wl, "Evicted") == ("True", "AdmissionCheck", message)
    assert lifecycle.status(wl).value == "pending"
    assert (requests(stage), templates(stage)) == ([], [])
    assert wl["status"]["requeueState"]["requeueAt"] == make.stamp(160)
    stage.run(160)
    assert only_request(stage)["metadata"]["name"] == first[:-1] + "2"
    assert (state(stage), lifecycle.has_quota_reservation(stage.only_workload())) == (("Pending", ""), True)


def test_each_failure_makes_the_wait_longer_until_it_is_the_last() -> None:
    retry = {"backoffLimitCount": 3, "backoffBaseSeconds": 10, "backoffMaxSeconds": 30}
    stage = asked(retryStrategy=retry)
    for begin in (0, 10, 30, 60):
        stage.run(begin)
        assert stage.kernel.now() == make.at(begin)
        say(stage, "Failed", "no room")
    wl = stage.only_workload()
    assert stated(wl, "Evicted")[1] == "DeactivatedDueToAdmissionCheck"
    assert event(stage, "AdmissionCheckRejected") == [
        'Deactivated due to AdmissionCheck in Rejected state: "prov" (no room)'
    ]
    assert (wl["spec"]["active"], requests(stage)) == (False, [])
    assert [e["count"] for e in wl["status"]["schedulingStats"]["evictions"]] == [3, 1]


def test_the_tries_of_a_check_that_only_some_flavors_need_are_counted_too() -> None:
    stage = provisioning_stage(retryStrategy={"backoffLimitCount": 1, "backoffBaseSeconds": 10})
    cq = queue("cq", groups=[group(other={"cpu": 0}, spot={"cpu": 8})], admissionChecksStrategy=ON_SPOT)
    stage.put(make.flavor("other"), cq, make.job())
    say(stage, "Failed", "no room")
    assert [check["retryCount"] for check in checks_of(stage.only_workload())] == [1]
    stage.run(10)
    assert only_request(stage)["metadata"]["name"].endswith("-prov-2")
    say(stage, "Failed", "no room")
    assert stated(stage.only_workload(), "Evicted")[1] == "DeactivatedDueToAdmissionCheck"


def test_one_that_goes_on_without_the_check_it_was_tried_for_is_admitted_at_once() -> None:
    stage = provisioning_stage(retryStrategy={"backoffBaseSeconds": 10})
    cq = queue("cq", groups=[group(other={"cpu": 0}, spot={"cpu": 8})], admissionChecksStrategy=ON_SPOT)
    stage.put(make.flavor("other"), cq, make.job())
    say(stage, "Failed", "no room")
    groups = [group(other={"cpu": 8}, spot={"cpu": 8})]
    stage.put(queue("cq", groups=groups, admissionChecksStrategy=ON_SPOT))
    stage.run(10)
    wl = stage.only_workload()
    assert (lifecycle.is_admitted(wl), checks_of(wl), len(event(stage, "Admitted"))) == (True, (), 1)


def test_a_booking_that_expires_after_the_admission_means_nothing() -> None:
    stage = asked()
    say(stage, "Provisioned")
    say(stage, "BookingExpired", "too late")
    assert (state(stage)[0], lifecycle.is_admitted(stage.only_workload())) == ("Ready", True)


def test_capacity_that_is_taken_away_ends_the_workload() -> None:
    stage = asked()
    say(stage, "Provisioned")
    say(stage, "CapacityRevoked", "time is up")
    wl = stage.only_workload()
    message = 'The workload is deactivated due to AdmissionCheck in Rejected state: "prov" (time is up)'
    assert stated(wl, "Evicted") == ("True", "DeactivatedDueToAdmissionCheck", message)
    assert (suspended(stage), wl["spec"]["active"]) == (True, False)


def test_one_that_was_ended_may_be_made_active_again() -> None:
    stage = asked(retryStrategy={"backoffLimitCount": 0})
    say(stage, "Failed")
    stage.put(with_path(stage.only_workload(), ("spec", "active"), True))
    assert only_request(stage)["metadata"]["name"].endswith("-prov-1")
    assert stated(stage.only_workload(), "Requeued")[1] == "Reactivated"


# What goes and what comes back.


def test_a_request_goes_when_its_workload_is_done() -> None:
    stage = asked()
    say(stage, "Provisioned")
    stage.put(lifecycle.finish(stage.only_workload(), "Succeeded", "", make.NOW))
    assert (requests(stage), templates(stage)) == ([], [])


def test_whoever_is_preempted_asks_anew() -> None:
    stage = asked()
    say(stage, "Provisioned")
    before = only_request(stage)["metadata"]
    stage.put(lifecycle.evict(stage.only_workload(), reason="Preempted", message="", now=make.NOW))
    after = only_request(stage)["metadata"]
    assert (after["name"], after["uid"] == before["uid"]) == (before["name"], False)
    assert (state(stage)[0], len(templates(stage))) == ("Pending", 1)


def test_a_request_is_kept_while_its_workload_lost_its_quota_without_an_eviction() -> None:
    stage = asked()
    uid = only_request(stage)["metadata"]["uid"]
    stage.put(make.local_queue("lq", cluster_queue="cq", stopPolicy="Hold"))
    assert not lifecycle.has_quota_reservation(stage.only_workload())
    stage.put(make.local_queue("lq", cluster_queue="cq"))
    assert only_request(stage)["metadata"]["uid"] == uid


def test_a_changed_config_asks_anew() -> None:
    stage = asked(parameters={"a": "1"})
    uid = only_request(stage)["metadata"]["uid"]
    stage.put(config(parameters={"a": "2"}))
    request = only_request(stage)
    assert (request["spec"]["parameters"], request["metadata"]["uid"] == uid) == ({"a": "2"}, False)
    assert request["metadata"]["name"].endswith("-prov-1")
    (template,) = templates(stage)
    assert template["metadata"]["ownerReferences"][0]["uid"] == request["metadata"]["uid"]


def test_a_check_without_its_config_waits_for_it() -> None:
    stage = asked()
    stage.delete(scheme.PROVISIONING_REQUEST_CONFIG, "config", "")
    assert (state(stage), requests(stage)) == (
        ("Pending", "the check is not active"),
        [],
    )
    stage.put(config())
    assert (state(stage), len(templates(stage))) == (("Pending", ""), 1)


def test_a_request_that_is_lost_while_its_check_is_ready_is_not_made_again() -> None:
    stage = asked()
    say(stage, "Provisioned")
    stage.delete(scheme.PROVISIONING_REQUEST, only_request(stage)["metadata"]["name"])
    assert (state(stage)[0], requests(stage)) == ("Ready", [])


def test_checks_of_others_are_left_to_them() -> None:
    other = with_path(check("theirs"), ("spec", "controllerName"), "example.com/theirs")
    active = {**other, "status": {"conditions": [make.condition("Active")]}}
    stage = provisioning_stage(active, checks={"theirs": {"name": "theirs"}})
    stage.put(make.job())
    say(stage, "Provisioned")
    assert [state(stage, name)[0] for name in ("prov", "theirs")] == ["Ready", "Pending"]
    assert suspended(stage)


def test_every_check_has_a_request_of_its_own() -> None:
    stage = provisioning_stage(check("second"), checks={"second": {"name": "second"}})
    stage.put(make.job())
    names = [r["metadata"]["name"] for r in requests(stage)]
    assert [name.rpartition("-")[0].rpartition("-")[2] for name in names] == ["prov", "second"]


def test_an_old_failure_that_was_answered_makes_way_for_the_next_attempt() -> None:
    stage = asked()
    request = only_request(stage)
    wl = stage.only_workload()
    found = [{**checks_of(wl)[0], "retryCount": 1}]
    failed = {"conditions": [make.condition("Failed", message="no room")]}
    stage.put(with_path(wl, ("status", "admissionChecks"), found), {**request, "status": failed})
    assert only_request(stage)["metadata"]["name"] == request["metadata"]["name"][:-1] + "2"
    assert lifecycle.has_quota_reservation(stage.only_workload())


# What a crash leaves behind, and what others do.


def test_a_template_that_was_made_before_a_crash_is_used() -> None:
    before = asked()
    (template,), wl = templates(before), before.only_workload()
    owner = {**template["metadata"]["ownerReferences"][0], "kind": "Workload", "uid": wl["metadata"]["uid"]}
    stage = provisioning_stage(with_metadata(template, ownerReferences=[owner]))
    stage.put(make.job(parallelism=2, completions=2))
    (kept,) = templates(stage)
    assert kept["metadata"]["uid"] == template["metadata"]["uid"]
    assert kept["metadata"]["ownerReferences"][0]["uid"] == only_request(stage)["metadata"]["uid"]


def test_a_template_of_that_name_that_is_not_ours_is_replaced() -> None:
    (template,) = templates(asked())
    foreign = with_metadata({**template, "template": make.pod_template({"cpu": "99"})}, ownerReferences=None)
    stage = provisioning_stage(foreign)
    stage.put(make.job(parallelism=2, completions=2))
    (made,) = templates(stage)
    assert made["template"] == template["template"]


def test_a_template_that_its_request_never_got_goes_with_it() -> None:
    stage = asked()
    (template,), wl = templates(stage), stage.only_workload()
    owner = {**template["metadata"]["ownerReferences"][0], "kind": "Workload", "uid": wl["metadata"]["uid"]}
    stage.put(with_metadata(template, ownerReferences=[owner]))
    stage.put(lifecycle.finish(wl, "Failed", "", make.NOW))
    assert (requests(stage), templates(stage)) == ([], [])


def test_controllers_that_start_anew_go_on_where_the_objects_stand() -> None:
    stage = asked()
    say(stage, "Accepted")
    say(stage, "Provisioned", "soon", status=False)
    fresh = ProvisioningController()
    for kind in fresh.kinds:
        for obj in stage.client.list(kind):
            fresh.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0), make.NOW)
    key = key_of(stage.only_workload())
    assert fresh.reconcile(key, stage.client, make.at(5)) == ReconcileResult()
    prov = stage.get(scheme.ADMISSION_CHECK, "prov", "")
    assert list(fresh.keys_for(WatchEvent(EventType.MODIFIED, key_of(prov), prov, prov, 0), make.NOW)) == [key]


def test_nothing_is_left_to_do_once_all_is_said() -> None:
    stage = asked()
    stage.run(10)
    assert stage.kernel.pending() == 0
