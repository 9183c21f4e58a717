"""Rejected objects: first the API validates them, then Kueue's webhooks."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Key, Obj, key_of, with_path
from unit.apiserver.api import Api
from yard import queue

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
NAME = "metadata.labels[kueue.x-k8s.io/queue-name]"
MERGE = {"content-type": "application/merge-patch+json"}
JOBS = "/apis/batch/v1/namespaces/team/jobs"
RESERVED = make.condition("QuotaReserved", reason="QuotaReserved")


def bare(obj: Obj, **metadata: Any) -> dict[str, Any]:
    """An object as users send it."""
    known = {field: obj["metadata"][field] for field in ("name", "namespace", "labels") if field in obj["metadata"]}
    return {**{field: value for field, value in obj.items() if field != "status"}, "metadata": {**known, **metadata}}


def lending(limit: int) -> dict[str, Any]:
    """A ClusterQueue with one cpu and a lending limit."""
    created = bare(queue("cq", 1, cohort="all"))
    created["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["lendingLimit"] = limit
    return created


LENT = "spec.resourceGroups[0].flavors[0].resources[0].lendingLimit"


@pytest.mark.parametrize(
    ("path", "sent", "code", "reported"),
    [
        (
            f"{KUEUE}/clusterqueues",
            lending(2),
            403,
            f'admission webhook "vclusterqueue.kb.io" denied the request: {LENT}: Invalid value: "2": must be less',
        ),
        (
            f"{KUEUE}/clusterqueues",
            with_path(lending(2), ("metadata", "name"), "No"),
            422,
            'ClusterQueue.kueue.x-k8s.io "No" is invalid: metadata.name: Invalid value',
        ),
        (
            f"{KUEUE}/namespaces/team/workloads",
            bare(make.workload(pod_sets=[make.pod_set(requests={"pods": 1})])),
            403,
            'admission webhook "vworkload.kb.io" denied the request: spec.podSets[0].template.spec.containers[0]',
        ),
        (
            JOBS,
            bare(make.job(labels={"kueue.x-k8s.io/max-exec-time-seconds": "x"})),
            403,
            'admission webhook "vjob.kb.io" denied the request: metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]',
        ),
        (JOBS, bare(make.job(parallelism=-1)), 422, 'Job.batch "job" is invalid: spec.parallelism'),
        (
            "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets",
            bare(make.jobset(), labels={"kueue.x-k8s.io/queue-name": "No"}),
            403,
            f'admission webhook "vjobset.kb.io" denied the request: {NAME}: Invalid value: "No"',
        ),
    ],
)
def test_invalid_object_is_rejected_by_api_or_webhook(path: str, sent: Any, code: int, reported: str) -> None:
    response = Api().ask("POST", path, sent)
    assert (response.code, response.body["reason"]) == (code, "Forbidden" if code == 403 else "Invalid")
    assert response.body["message"].startswith(reported), response.body["message"]


def test_running_job_cannot_change_queue() -> None:
    api = Api()
    api.post(JOBS, bare(make.job()))
    change = {"spec": {"suspend": False}, "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "other"}}}
    response = api.ask("PATCH", f"{JOBS}/job", change, headers=MERGE)
    assert response.code == 403
    start = f'admission webhook "vjob.kb.io" denied the request: {NAME}: Invalid value: "other": field is immutable'
    assert response.body["message"].startswith(start)


def test_status_patch_cannot_change_admission() -> None:
    api = Api()
    admitted = {"conditions": [RESERVED], "admission": make.admission(main=1)}
    held = make.workload(status=admitted)
    api.stored.store.put(Key(*key_of(held)), held)
    other = {"status": {"admission": {**make.admission(main=1), "clusterQueue": "other"}}}
    response = api.ask("PATCH", f"{KUEUE}/namespaces/team/workloads/wl/status", other, headers=MERGE)
    assert response.code == 403
    start = 'admission webhook "vworkload.kb.io" denied the request: status.admission: Invalid value'
    assert response.body["message"].startswith(start)


def test_partially_admitted_job_is_writable() -> None:
    api, notes = Api(), {"kueue.x-k8s.io/job-min-parallelism": "1"}
    created = api.post(JOBS, bare(make.job(parallelism=3, completions=3), annotations=notes))
    held = with_path(with_path(created, ("spec", "parallelism"), 1), ("spec", "suspend"), value=False)
    assert api.ask("PUT", f"{JOBS}/job", held).code == 200
    assert api.ask("PATCH", f"{JOBS}/job", {"metadata": {"labels": {"a": "b"}}}, headers=MERGE).code == 200
    stored = api.get(f"{JOBS}/job")
    assert api.ask("PUT", f"{JOBS}/job/status", {**stored, "status": {"active": 1}}).code == 200
    new = bare(make.job("other", parallelism=1, completions=1), annotations=notes)
    assert api.ask("POST", JOBS, new).code == 403
    changed = {"metadata": {"annotations": {"kueue.x-k8s.io/job-min-parallelism": "2"}}}
    assert api.ask("PATCH", f"{JOBS}/job", changed, headers=MERGE).code == 403


@pytest.mark.parametrize("verb", ["PATCH", "PUT"])
@pytest.mark.parametrize(("before", "code"), [({}, 403), ({"conditions": [RESERVED]}, 200)], ids=["new", "stored"])
def test_quota_reserved_without_admission_is_rejected_unless_stored(before: Any, code: int, verb: str) -> None:
    api, held, at = Api(), make.workload(status=before), f"{KUEUE}/namespaces/team/workloads/wl"
    api.stored.store.put(Key(*key_of(held)), held)
    other = {"status": {"conditions": [RESERVED, make.condition("PodsReady", reason="Started")]}}
    sent, headers = ({**api.get(at), **other}, {}) if verb == "PUT" else (other, MERGE)
    response = api.ask(verb, f"{at}/status", sent, headers=headers)
    assert response.code == code
    reported = response.body.get("message", "").removeprefix('admission webhook "vworkload.kb.io" denied the request: ')
    assert reported.startswith("status.admission: Required value") == (code == 403)
