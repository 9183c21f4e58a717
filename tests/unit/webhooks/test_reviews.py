"""What the operator answers an API server that asks about objects: as the embedded API server does it itself."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, selector, with_path
from batchyard.apiserver.patch import json_patched
from batchyard.controller_groups import ON_KUBERNETES
from batchyard.webhooks.hooks import (
    FetchedObjects,
    InvalidReview,
    ObjectNotFetched,
    ObjectQuery,
    converted,
    hooks,
    mutated,
    patch_between,
    validated,
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


def made_of(
    obj: Obj, known: Mapping[ObjectQuery, Sequence[Obj]] = NOTHING, groups: Sequence[str] = ON_KUBERNETES
) -> Any:
    """What becomes of an object, its patch applied."""
    response = mutated(review(obj), groups, FetchedObjects("team", known))["response"]
    assert response["allowed"] is True
    if "patch" not in response:
        return obj
    return json_patched(obj, json.loads(base64.b64decode(response["patch"])))


def test_the_default_queue_is_given_in_managed_namespaces_alone() -> None:
    namespace = ObjectQuery(Key(scheme.NAMESPACE, "", "team"))
    known = {**NOTHING, DEFAULT_QUEUE: [make.local_queue("default")], namespace: [make.namespace()]}
    for managed, is_patched in ((None, True), (selector({}), True), (selector({"matchLabels": {"a": "b"}}), False)):
        answer = mutated(review(UNQUEUED), ON_KUBERNETES, FetchedObjects("team", known), managed)["response"]
        assert ("patch" in answer) is is_patched


def refusal(obj: Obj, old: Obj | None = None, part: str = "") -> str:
    """Why an object is refused; '' if it is not."""
    response = validated(review(obj, old, part), ON_KUBERNETES, FetchedObjects("team", NOTHING))["response"]
    assert response["uid"] == "u"
    assert response["allowed"] is ("status" not in response)
    reported: str = response.get("status", {}).get("message", "")
    return reported


def test_a_job_that_queues_waits_from_the_beginning() -> None:
    job = make.job(labels=QUEUED)
    running = with_path(job, ("spec", "suspend"), False)
    assert made_of(running)["spec"]["suspend"] is True
    assert made_of(UNQUEUED) == UNQUEUED
    assert made_of(running, groups=("jobset",)) == running


def test_a_job_without_a_queue_gets_the_default_one_where_there_is_one() -> None:
    there = {**NOTHING, DEFAULT_QUEUE: [{"metadata": {"name": "default"}}]}
    assert made_of(UNQUEUED, there)["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "default"}


def test_what_is_not_known_is_asked_for() -> None:
    with pytest.raises(ObjectNotFetched) as asked:
        made_of(UNQUEUED, {})
    assert asked.value.question == DEFAULT_QUEUE


def test_a_job_set_gets_its_defaults() -> None:
    bare = with_path(make.jobset(labels=QUEUED), ("spec", "successPolicy"), None)
    found = made_of(bare)["spec"]
    assert found["successPolicy"] == {"operator": "All"}
    assert found["suspend"] is True


def test_queues_are_held_from_the_beginning() -> None:
    bare = {**queue("cq", 1), "metadata": {"name": "cq"}}
    assert made_of(bare)["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]


def test_rules_are_told_in_their_own_words() -> None:
    lent = queue("cq", 1, cohort="all")
    lent = json_patched(lent, [{"op": "add", "path": f"{CPU}/lendingLimit", "value": 2}])
    path = "spec.resourceGroups[0].flavors[0].resources[0].lendingLimit"
    assert refusal(lent).startswith(f'{path}: Invalid value: "2": must be less')
    assert refusal(queue("cq", 1)) == ""


CPU = "/spec/resourceGroups/0/flavors/0/resources/0"


def test_of_jobs_only_what_kueue_asks_is_asked() -> None:
    reported = refusal(make.job(labels={"kueue.x-k8s.io/max-exec-time-seconds": "x"}))
    assert reported.startswith("metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]")
    assert refusal(make.job(parallelism=-1)) == ""


def test_a_job_that_runs_stays_in_its_queue() -> None:
    old = with_path(make.job(labels=QUEUED), ("spec", "suspend"), False)
    new = with_path(old, ("metadata", "labels", "kueue.x-k8s.io/queue-name"), "other")
    assert "field is immutable" in refusal(new, old)


def test_an_admission_is_not_changed_by_a_write_of_the_status() -> None:
    reserved = make.condition("QuotaReserved", reason="QuotaReserved")
    held = make.workload(status={"conditions": [reserved], "admission": make.admission(main=1)})
    other = with_path(held, ("status", "admission", "clusterQueue"), "other")
    assert refusal(other, held, "status").startswith("status.admission: Invalid value")


def test_followers_wait_for_their_leader() -> None:
    notes = {"jobset.sigs.k8s.io/jobset-name": "a", "alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": notes}, "spec": {}}
    assert refusal(pod) == "follower pod node selector not set"


def test_versions_are_converted_and_back_again() -> None:
    stored = queue("cq", 1, cohort="all")
    asked = {"uid": "u", "desiredAPIVersion": "kueue.x-k8s.io/v1beta1", "objects": [stored]}
    (old,) = converted({"request": asked})["response"]["convertedObjects"]
    assert (old["apiVersion"], old["spec"]["cohort"]) == ("kueue.x-k8s.io/v1beta1", "all")
    back = converted({"request": {**asked, "desiredAPIVersion": stored["apiVersion"], "objects": [old]}})["response"]
    assert back["convertedObjects"] == [stored]
    assert back["result"] == {"status": "Success"}


def test_a_version_there_is_not_fails_as_the_form_has_it() -> None:
    asked = {"uid": "u", "desiredAPIVersion": "kueue.x-k8s.io/v9", "objects": [queue("cq", 1)]}
    response = converted({"request": asked})["response"]
    assert response["convertedObjects"] == []
    assert response["result"]["status"] == "Failed"
    assert "v9" in response["result"]["message"]


@pytest.mark.parametrize("sent", [{}, {"request": 1}, {"request": {}}, {"request": {"object": {"kind": "Job"}}}])
def test_what_is_no_review_is_refused(sent: Any) -> None:
    with pytest.raises(InvalidReview):
        mutated(sent, ON_KUBERNETES, FetchedObjects("", {}))
    with pytest.raises(InvalidReview):
        converted(sent)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"a": 1}),
        ({"a": {"b": [1], "c": 2}, "d/e~f": 1}, {"a": {"b": [1, 2]}, "d/e~f": {"g": None}}),
        ({"a": {"b": 1}}, {"a": 1, "h": []}),
    ],
)
def test_a_patch_makes_the_one_of_the_other(before: Any, after: Any) -> None:
    assert json_patched(before, patch_between(before, after)) == after


def test_each_webhook_has_a_name_of_its_own_and_is_asked_about_the_stored_version() -> None:
    names = [hook.name for hook in hooks(ON_KUBERNETES)]
    assert len(dict.fromkeys(names)) == len(names)
    assert {"mjob.kb.io", "vjob.kb.io", "mpod.kb.io", "vworkload.kb.io"} < {*names}
