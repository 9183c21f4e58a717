"""Admission and conversion webhooks of the operator; the embedded API server applies the same rules."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_reference, parse_selector, with_path
from batchyard.apiserver.json_patch import apply_json_patch
from batchyard.base.instant import SECOND
from batchyard.controller_groups import KUBERNETES_GROUPS
from batchyard.webhooks.hooks import (
    FetchedObjects,
    InvalidReview,
    ObjectNotFetched,
    ObjectQuery,
    json_patch_between,
    operator_webhooks,
    review_conversion,
    review_mutation,
    review_validation,
)
from yard import queue

QUEUED = {"kueue.x-k8s.io/queue-name": "team"}
DEFAULT_QUEUE = ObjectQuery(Key(scheme.LOCAL_QUEUE, "team", "default"))
DEFAULT_CLASS = ObjectQuery(Key(scheme.WORKLOAD_PRIORITY_CLASS, "", "default"))
UNQUEUED = with_path(make.job(), ("metadata", "labels"), {})
NOTHING: Mapping[ObjectQuery, Sequence[Obj]] = {DEFAULT_QUEUE: [], DEFAULT_CLASS: []}


def review(obj: Obj, old: Obj | None = None, part: str = "") -> dict[str, Any]:
    request = {"uid": "u", "namespace": obj["metadata"].get("namespace", ""), "object": obj, "subResource": part}
    changed = {"operation": "CREATE"} if old is None else {"operation": "UPDATE", "oldObject": old}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**request, **changed}}


def mutated_object(
    obj: Obj, known: Mapping[ObjectQuery, Sequence[Obj]] = NOTHING, groups: Sequence[str] = KUBERNETES_GROUPS
) -> Any:
    """Return an object with the patch of the webhook applied."""
    response = review_mutation(review(obj), groups, FetchedObjects(known))["response"]
    assert response["allowed"] is True
    if "patch" not in response:
        return obj
    return apply_json_patch(obj, json.loads(base64.b64decode(response["patch"])))


TRAINING: Obj = {
    "apiVersion": "ml.example.com/v1",
    "kind": "Training",
    "metadata": {"name": "a", "namespace": "team", "labels": QUEUED},
    "spec": {"workers": 2, "template": {"spec": {"containers": [{"name": "main", "image": "python"}]}}},
}
JOB_KIND: Obj = make.job_kind()
PYTORCH: Obj = {**TRAINING, "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {}}}


def review_of_training(obj: Obj, old: Obj | None = None) -> dict[str, Any]:
    result = review(obj, old)
    result["request"]["resource"] = {"group": "ml.example.com", "version": "v1", "resource": "trainings"}
    return result


def test_job_of_described_kind_is_suspended_at_its_path() -> None:
    assert mutated_object(PYTORCH)["spec"]["runPolicy"] == {"suspend": True}
    assert mutated_object(with_path(PYTORCH, ("metadata", "labels"), {}))["spec"] == PYTORCH["spec"]


def test_job_kind_is_looked_up_for_a_kind_that_is_not_known_yet() -> None:
    query = ObjectQuery(Key(scheme.JOB_KIND, "", "trainings.ml.example.com"))
    with pytest.raises(ObjectNotFetched) as raised:
        review_mutation(review_of_training(TRAINING), KUBERNETES_GROUPS, FetchedObjects(NOTHING))
    assert raised.value.query == query
    fetched = FetchedObjects({**NOTHING, query: [JOB_KIND]})
    response = review_mutation(review_of_training(TRAINING), KUBERNETES_GROUPS, fetched)["response"]
    assert json.loads(base64.b64decode(response["patch"])) == [{"op": "add", "path": "/spec/paused", "value": True}]
    response = review_mutation(review_of_training(TRAINING), KUBERNETES_GROUPS, FetchedObjects({**NOTHING, query: []}))[
        "response"
    ]
    assert (response["allowed"], "patch" in response) == (True, False)


@pytest.mark.parametrize(("suspended", "allowed"), [(True, True), (False, False)])
def test_queue_of_unsuspended_described_job_is_immutable(suspended: bool, allowed: bool) -> None:
    old = with_path(PYTORCH, ("spec", "runPolicy", "suspend"), suspended)
    new = with_path(old, ("metadata", "labels"), {"kueue.x-k8s.io/queue-name": "other"})
    response = review_validation(review(new, old), KUBERNETES_GROUPS, FetchedObjects(NOTHING))["response"]
    assert response["allowed"] is allowed
    if not allowed:
        message = 'metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value: "other": field is immutable'
        assert response["status"]["message"].startswith(message)


def test_job_kind_with_invalid_expression_is_denied() -> None:
    response = review_validation(review(JOB_KIND), KUBERNETES_GROUPS, FetchedObjects(NOTHING))["response"]
    assert response["allowed"] is True
    invalid = with_path(JOB_KIND, ("spec", "ready"), "job.status +")
    response = review_validation(review(invalid), KUBERNETES_GROUPS, FetchedObjects(NOTHING))["response"]
    assert response["status"]["message"].startswith("spec.ready: invalid CEL expression: 1:13: Syntax error")


def test_default_queue_is_set_in_managed_namespaces_only() -> None:
    namespace = ObjectQuery(Key(scheme.NAMESPACE, "", "team"))
    known = {**NOTHING, DEFAULT_QUEUE: [make.local_queue("default")], namespace: [make.namespace()]}
    for managed, is_patched in (
        (None, True),
        (parse_selector({}), True),
        (parse_selector({"matchLabels": {"a": "b"}}), False),
    ):
        answer = review_mutation(review(UNQUEUED), KUBERNETES_GROUPS, FetchedObjects(known), ManagedJobs(managed))[
            "response"
        ]
        assert ("patch" in answer) is is_patched


def refusal(obj: Obj, old: Obj | None = None, part: str = "") -> str:
    """Return the message of the rejection, or '' if the object is accepted."""
    response = review_validation(review(obj, old, part), KUBERNETES_GROUPS, FetchedObjects(NOTHING))["response"]
    assert response["uid"] == "u"
    assert response["allowed"] is ("status" not in response)
    reported: str = response.get("status", {}).get("message", "")
    return reported


def test_own_timeouts_of_job_are_checked_with_their_feature_gate() -> None:
    job = make.job(annotations={"kueue.x-k8s.io/wait-for-pods-ready": '{"timeoutSeconds": 99}'})
    for timeout_max, is_allowed in ((None, True), (99 * SECOND, True), (98 * SECOND, False)):
        fetched = FetchedObjects(NOTHING)
        answer = review_validation(review(job), KUBERNETES_GROUPS, fetched, ready_timeout_max=timeout_max)["response"]
        assert answer["allowed"] is is_allowed


def test_queued_job_is_suspended_at_creation() -> None:
    job = make.job(labels=QUEUED)
    running = with_path(job, ("spec", "suspend"), False)
    assert mutated_object(running)["spec"]["suspend"] is True
    assert mutated_object(UNQUEUED) == UNQUEUED
    assert mutated_object(running, groups=("jobset",)) == running


def test_job_without_queue_gets_existing_default_queue() -> None:
    there = {**NOTHING, DEFAULT_QUEUE: [{"metadata": {"name": "default"}}]}
    assert mutated_object(UNQUEUED, there)["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "default"}


def test_missing_object_raises_object_not_fetched() -> None:
    with pytest.raises(ObjectNotFetched) as request:
        mutated_object(UNQUEUED, {})
    assert request.value.query == DEFAULT_QUEUE


def test_jobset_gets_defaults() -> None:
    bare = with_path(make.jobset(labels=QUEUED), ("spec", "successPolicy"), None)
    result = mutated_object(bare)["spec"]
    assert result["successPolicy"] == {"operator": "All"}
    assert result["suspend"] is True


def test_cluster_queue_gets_finalizer_at_creation() -> None:
    bare = {**queue("cq", 1), "metadata": {"name": "cq"}}
    assert mutated_object(bare)["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]


def test_rejection_message_contains_field_path_and_value() -> None:
    lent = queue("cq", 1, cohort="all")
    lent = apply_json_patch(lent, [{"op": "add", "path": f"{CPU}/lendingLimit", "value": 2}])
    path = "spec.resourceGroups[0].flavors[0].resources[0].lendingLimit"
    assert refusal(lent).startswith(f'{path}: Invalid value: "2": must be less')
    assert refusal(queue("cq", 1)) == ""


CPU = "/spec/resourceGroups/0/flavors/0/resources/0"


def test_job_validation_checks_only_kueue_rules() -> None:
    reported = refusal(make.job(labels={"kueue.x-k8s.io/max-exec-time-seconds": "x"}))
    assert reported.startswith("metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]")
    assert refusal(make.job(parallelism=-1)) == ""


def test_queue_name_of_running_job_is_immutable() -> None:
    old = with_path(make.job(labels=QUEUED), ("spec", "suspend"), False)
    new = with_path(old, ("metadata", "labels", "kueue.x-k8s.io/queue-name"), "other")
    assert "field is immutable" in refusal(new, old)


def test_admission_is_immutable_in_status_update() -> None:
    reserved = make.condition("QuotaReserved", reason="QuotaReserved")
    held = make.workload(status={"conditions": [reserved], "admission": make.admission(main=1)})
    other = with_path(held, ("status", "admission", "clusterQueue"), "other")
    assert refusal(other, held, "status").startswith("status.admission: Invalid value")


def test_follower_pod_without_node_selector_is_rejected() -> None:
    notes = {"jobset.sigs.k8s.io/jobset-name": "a", "alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": notes}, "spec": {}}
    assert refusal(pod) == "follower pod node selector not set"


def test_conversion_to_old_version_and_back_is_lossless() -> None:
    stored = queue("cq", 1, cohort="all")
    request = {"uid": "u", "desiredAPIVersion": "kueue.x-k8s.io/v1beta1", "objects": [stored]}
    (old,) = review_conversion({"request": request})["response"]["convertedObjects"]
    assert (old["apiVersion"], old["spec"]["cohort"]) == ("kueue.x-k8s.io/v1beta1", "all")
    back = review_conversion({"request": {**request, "desiredAPIVersion": stored["apiVersion"], "objects": [old]}})[
        "response"
    ]
    assert back["convertedObjects"] == [stored]
    assert back["result"] == {"status": "Success"}


def test_conversion_to_unknown_version_returns_failed_result() -> None:
    request = {"uid": "u", "desiredAPIVersion": "kueue.x-k8s.io/v9", "objects": [queue("cq", 1)]}
    response = review_conversion({"request": request})["response"]
    assert response["convertedObjects"] == []
    assert response["result"]["status"] == "Failed"
    assert "v9" in response["result"]["message"]


@pytest.mark.parametrize("sent", [{}, {"request": 1}, {"request": {}}, {"request": {"object": {"kind": "Job"}}}])
def test_invalid_review_is_rejected(sent: Any) -> None:
    with pytest.raises(InvalidReview):
        review_mutation(sent, KUBERNETES_GROUPS, FetchedObjects({}))
    with pytest.raises(InvalidReview):
        review_conversion(sent)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"a": 1}),
        ({"a": {"b": [1], "c": 2}, "d/e~f": 1}, {"a": {"b": [1, 2]}, "d/e~f": {"g": None}}),
        ({"a": {"b": 1}}, {"a": 1, "h": []}),
    ],
)
def test_patch_between_objects_produces_target_object(before: Any, after: Any) -> None:
    assert apply_json_patch(before, json_patch_between(before, after)) == after


def test_webhook_names_are_unique() -> None:
    names = [hook.name for hook in operator_webhooks(KUBERNETES_GROUPS)]
    assert len(dict.fromkeys(names)) == len(names)
    assert {"mjob.kb.io", "vjob.kb.io", "mpod.kb.io", "vworkload.kb.io"} < {*names}


def test_managed_label_on_pod_of_job_causes_warning() -> None:
    labels = {**QUEUED, "kueue.x-k8s.io/managed": "true"}
    metadata = make.metadata("p", labels=labels, ownerReferences=[controller_reference(make.job())])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}
    answer = review_validation(review(pod), KUBERNETES_GROUPS, FetchedObjects(NOTHING))["response"]
    message = "pod owner is managed by kueue, label 'kueue.x-k8s.io/managed=true' might lead to unexpected behaviour"
    assert (answer["allowed"], answer["warnings"]) == (True, [message])
    parent = with_path(pod, ("metadata", "annotations"), {"kueue.x-k8s.io/pod-suspending-parent": "apps"})
    update = review_validation(review(parent, parent), KUBERNETES_GROUPS, FetchedObjects(NOTHING))["response"]
    assert "warnings" not in update


DEPLOYMENT: Obj = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "team", "labels": QUEUED},
    "spec": {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
}


def test_deployment_in_queue_gets_labels_of_its_pods() -> None:
    labels = mutated_object(DEPLOYMENT)["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app": "web", "kueue.x-k8s.io/managed": "true", **QUEUED}
    assert mutated_object(DEPLOYMENT, groups=["admission"]) == DEPLOYMENT


def test_queue_of_ready_deployment_is_immutable() -> None:
    moved = with_path(DEPLOYMENT, ("metadata", "labels"), {"kueue.x-k8s.io/queue-name": "other"})
    old = {**DEPLOYMENT, "status": {"readyReplicas": 1}}
    answers = [
        review_validation(review(moved, old), groups, FetchedObjects(NOTHING))["response"]
        for groups in (KUBERNETES_GROUPS, ["admission"])
    ]
    path = "metadata.labels[kueue.x-k8s.io/queue-name]"
    message = answers[0]["status"]["message"]
    assert message.startswith(f'{path}: Invalid value: "other": field is immutable')
    assert answers[1]["allowed"]


def test_webhooks_of_services_see_only_queued_ones() -> None:
    hooks = [each for each in operator_webhooks(KUBERNETES_GROUPS) if each.served_kind.constant == scheme.DEPLOYMENT]
    assert [each.name for each in hooks] == ["mdeployment.kb.io", "vdeployment.kb.io"]
    assert all(each.operations == ("CREATE", "UPDATE") and each.handles_jobs_or_pods for each in hooks)
    assert all("oldObject.metadata.labels" in each.match_conditions[0]["expression"] for each in hooks)
