"""Changes of Kueue's webhooks to a new Job or JobSet."""

import re
from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import queue_job
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Obj, controller_reference, key_of
from object_edits import GONE, with_edits

DEFAULTS = (make.local_queue("default"), make.workload_priority_class("default", 7))
FREE = make.job(queue=None, suspend=False)


def apply_webhooks(obj: Obj, *there: Obj) -> Any:
    """Return the Job or JobSet after the webhooks, with these existing objects."""
    return queue_job(obj, {key_of(each): each for each in there}.get)


def labels(obj: Obj) -> Any:
    """The labels of an object."""
    return obj["metadata"].get("labels")


@pytest.mark.parametrize("obj", [make.job(), make.jobset()], ids=lambda obj: obj["kind"])
def test_job_with_queue_name_is_suspended(obj: Obj) -> None:
    running = with_edits(obj, {"spec.suspend": False})
    suspended, unsaid = apply_webhooks(running), apply_webhooks(with_edits(obj, {"spec.suspend": GONE}))
    assert (suspended["spec"]["suspend"], unsaid["spec"]["suspend"]) == (True, True)
    assert apply_webhooks(suspended) is suspended


@pytest.mark.parametrize("queue", [None, ""])
def test_job_without_queue_name_is_unchanged(queue: str | None) -> None:
    obj = make.job(queue=queue, suspend=False)
    assert apply_webhooks(obj) is obj


def test_job_without_queue_name_gets_default_queue_and_class() -> None:
    obj = apply_webhooks(FREE, *DEFAULTS)
    assert labels(obj) == {"kueue.x-k8s.io/queue-name": "default", "kueue.x-k8s.io/priority-class": "default"}
    assert obj["spec"]["suspend"] is True
    assert labels(FREE) is None


def test_job_with_queue_name_and_class_keeps_its_labels() -> None:
    named = {"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/priority-class": "high"}
    assert labels(apply_webhooks(make.job(labels=named), *DEFAULTS)) == named


def test_default_queue_of_other_namespace_is_ignored() -> None:
    elsewhere = with_edits(DEFAULTS[0], {"metadata.namespace": "elsewhere"})
    assert apply_webhooks(FREE, elsewhere) is FREE


def owned_by(owner: Obj, obj: Obj = FREE) -> Obj:
    """Return the Job with another job as its controller."""
    return with_edits(obj, {"metadata.ownerReferences": [controller_reference(owner)]})


@pytest.mark.parametrize("queue", [None, "lq"])
def test_job_owned_by_queued_job_is_unchanged(queue: str | None) -> None:
    owned = owned_by(make.jobset(), make.job(queue=queue, suspend=False))
    assert apply_webhooks(owned, make.jobset(), *DEFAULTS) is owned


@pytest.mark.parametrize("queue", [None, "lq"])
def test_job_owned_by_job_without_queue_is_suspended_if_it_names_queue(queue: str | None) -> None:
    above = make.jobset(queue=None)
    owned = owned_by(above, make.job(queue=queue, suspend=False))
    assert apply_webhooks(owned, above, *DEFAULTS)["spec"]["suspend"] is bool(queue)


@pytest.mark.parametrize("obj", [FREE, make.job(suspend=False), make.jobset()], ids=str)
def test_job_with_missing_owner_is_rejected(obj: Obj) -> None:
    name = f"m{obj['kind'].lower()}.kb.io"
    reported = f'admission webhook "{name}" denied the request: Job.batch "nobody" not found'
    with pytest.raises(Forbidden, match=f"^{re.escape(reported)}$"):
        apply_webhooks(owned_by(make.job("nobody"), obj), *DEFAULTS)


def test_owner_with_other_uid_is_ignored() -> None:
    there = with_edits(make.jobset(), {"metadata.uid": "another"})
    owned = owned_by(make.jobset(), make.job(suspend=False))
    assert apply_webhooks(owned, there)["spec"]["suspend"] is True


def test_owner_of_unknown_api_group_is_ignored() -> None:
    reference = {**controller_reference(make.job()), "apiVersion": "example.com/v1"}
    owned = apply_webhooks(with_edits(FREE, {"metadata.ownerReferences": [reference]}), *DEFAULTS)
    assert labels(owned)["kueue.x-k8s.io/queue-name"] == "default"
