"""What Kueue's webhooks make of a new Job or JobSet."""

from typing import Any

import pytest

import make
from batchyard.api.admission.queued_jobs import queue_job
from batchyard.api.meta import Obj, controller_reference, key_of
from edits import GONE, edited

DEFAULTS = (make.local_queue("default"), make.workload_priority_class("default", 7))
FREE = make.job(queue=None, suspend=False)


def queued(obj: Obj, *there: Obj) -> Any:
    """The Job or JobSet where there are these objects."""
    return queue_job(obj, {key_of(each): each for each in there}.get)


def labels(obj: Obj) -> Any:
    """The labels of an object."""
    return obj["metadata"].get("labels")


@pytest.mark.parametrize("obj", [make.job(), make.jobset()], ids=lambda obj: obj["kind"])
def test_what_names_a_queue_begins_suspended(obj: Obj) -> None:
    running = edited(obj, {"spec.suspend": False})
    suspended, unsaid = queued(running), queued(edited(obj, {"spec.suspend": GONE}))
    assert (suspended["spec"]["suspend"], unsaid["spec"]["suspend"]) == (True, True)
    assert queued(suspended) is suspended


@pytest.mark.parametrize("queue", [None, ""])
def test_what_names_no_queue_begins_as_it_is(queue: str | None) -> None:
    obj = make.job(queue=queue, suspend=False)
    assert queued(obj) is obj


def test_what_names_no_queue_waits_in_the_one_called_default() -> None:
    obj = queued(FREE, *DEFAULTS)
    assert labels(obj) == {"kueue.x-k8s.io/queue-name": "default", "kueue.x-k8s.io/priority-class": "default"}
    assert obj["spec"]["suspend"] is True
    assert labels(FREE) is None


def test_what_names_a_queue_and_a_class_has_these() -> None:
    named = {"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/priority-class": "high"}
    assert labels(queued(make.job(labels=named), *DEFAULTS)) == named


def test_the_default_queue_is_that_of_the_namespace() -> None:
    elsewhere = edited(DEFAULTS[0], {"metadata.namespace": "elsewhere"})
    assert queued(FREE, elsewhere) is FREE


def test_what_another_job_owns_is_queued_with_that() -> None:
    owned = edited(FREE, {"metadata.ownerReferences": [controller_reference(make.jobset())]})
    assert queued(owned, *DEFAULTS) is owned
