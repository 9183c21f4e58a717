"""The Active condition of AdmissionChecks of the provisioning controller, and its effect on queues."""

from typing import Any

import pytest

import make
from batchyard.admissionchecks.provisioning import ProvisioningChecks
from batchyard.api import scheme
from batchyard.api.meta import with_path
from stage import Stage, condition_state
from unit.admissionchecks.provisioning_make import check, config, provisioning_stage

ACTIVE = ("True", "Active", "The admission check is active")


def active(stage: Stage) -> tuple[str, str, str]:
    return condition_state(stage.get(scheme.ADMISSION_CHECK, "prov", ""), "Active")


def bad(message: str) -> tuple[str, str, str]:
    return "False", "BadParametersRef", message


def test_check_is_active_while_config_exists() -> None:
    stage = Stage(ProvisioningChecks())
    stage.put(check())
    assert active(stage) == bad('ProvisioningRequestConfig.kueue.x-k8s.io "config" not found')
    stage.put(config())
    assert active(stage) == ACTIVE
    stage.delete(scheme.PROVISIONING_REQUEST_CONFIG, "config", "")
    assert active(stage)[0] == "False"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "missing parameters reference"),
        ({"name": ""}, "empty name: bad parameters reference"),
        ({"apiGroup": "batch"}, 'wrong group "batch", expecting "kueue.x-k8s.io": bad parameters reference'),
        ({"kind": "Other"}, 'wrong kind "Other", expecting "ProvisioningRequestConfig": bad parameters reference'),
    ],
    ids=str,
)
def test_check_reports_invalid_parameters_reference(parameters: dict[str, Any] | None, message: str) -> None:
    given = check()
    reference = None if parameters is None else {**given["spec"]["parameters"], **parameters}
    stage = Stage(ProvisioningChecks())
    stage.put(config(), with_path(given, ("spec", "parameters"), reference))
    assert active(stage) == bad(message)


def test_check_follows_changed_config_reference() -> None:
    stage = Stage(ProvisioningChecks())
    stage.put(config("other"), check())
    stage.put(check(config="other"))
    assert active(stage) == ACTIVE
    stage.put(config())
    stage.delete(scheme.PROVISIONING_REQUEST_CONFIG, "config", "")
    assert active(stage) == ACTIVE


def test_checks_of_other_controllers_are_ignored() -> None:
    stage = Stage(ProvisioningChecks())
    stage.put(config(), check(controllerName="example.com/theirs"))
    assert "status" not in stage.get(scheme.ADMISSION_CHECK, "prov", "")


def test_queue_is_inactive_while_check_is_inactive() -> None:
    stage = provisioning_stage()
    assert condition_state(stage.get(scheme.CLUSTER_QUEUE, "cq", ""), "Active")[1] == "Ready"
    stage.delete(scheme.PROVISIONING_REQUEST_CONFIG, "config", "")
    message = "Can't admit new workloads: references inactive AdmissionCheck(s): prov."
    assert condition_state(stage.get(scheme.CLUSTER_QUEUE, "cq", ""), "Active") == (
        "False",
        "AdmissionCheckInactive",
        message,
    )
    stage.put(make.job())
    assert condition_state(stage.only_workload(), "QuotaReserved")[1:] == ("Suspended", "ClusterQueue cq is inactive")
    stage.put(config())
    assert condition_state(stage.only_workload(), "QuotaReserved")[0] == "True"
