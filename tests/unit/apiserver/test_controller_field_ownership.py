"""Controllers in the same process own the fields that they change in objects of the API."""

from batchyard.apiserver.apply import InProcessFieldManager
from batchyard.apiserver.built_in import built_in_resources
from batchyard.interfaces.client import Update
from unit.apiserver.api import Api

JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
APPLY = {"content-type": "application/apply-patch+yaml"}
TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "j"},
    "spec": {"suspend": True, "template": TEMPLATE},
}


def test_apply_conflicts_with_unsuspend_by_controller() -> None:
    api = Api()
    controllers = InProcessFieldManager(built_in_resources(), api.stored.kernel.now)
    stored = api.ask("PATCH", f"{JOBS}/j?fieldManager=me", JOB, headers=APPLY).body
    let_run = Update({**stored, "spec": {**stored["spec"], "suspend": False}})
    api.stored.attempt(controllers.claim_fields(let_run, api.stored.get))
    again = api.ask("PATCH", f"{JOBS}/j?fieldManager=me", JOB, headers=APPLY)
    reported = 'Apply failed with 1 conflict: conflict with "batchyard" using batch/v1: .spec.suspend'
    assert (again.code, again.body["message"]) == (409, reported)


def test_field_manager_keeps_objects_without_managed_fields() -> None:
    controllers = InProcessFieldManager(built_in_resources(), Api().stored.kernel.now)
    write = Update(JOB)
    assert controllers.claim_fields(write, lambda _: JOB) is write
    assert controllers.claim_fields(write, lambda _: None) is write
