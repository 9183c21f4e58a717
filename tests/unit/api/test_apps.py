"""Validation and defaults of Deployments, ReplicaSets, StatefulSets, DaemonSets and CronJobs."""

from typing import Any

import pytest

from batchyard.api.manifests import decode
from batchyard.api.validation import validate_update


def app_object(kind: str, **spec: Any) -> dict[str, Any]:
    """Return an object whose selector matches its own Pod template."""
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    whole = {"selector": {"matchLabels": {"app": "a"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "a"}, "spec": whole}


def cron_job(schedule: str, **spec: Any) -> dict[str, Any]:
    pods = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}
    job = {"spec": {"template": {"spec": pods}}}
    whole = {"schedule": schedule, "jobTemplate": job, **spec}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"}, "spec": whole}


def faults(obj: dict[str, Any]) -> list[str]:
    return [f"{fault.path}: {fault.problem}" for fault in decode(obj).faults]


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_default_to_1(kind: str) -> None:
    result = decode(app_object(kind))
    assert result.obj is not None
    assert result.obj["spec"]["replicas"] == 1
    assert result.warnings == []


def test_update_strategy_defaults_to_rolling_update() -> None:
    deployment, daemon_set = decode(app_object("Deployment")).obj, decode(app_object("DaemonSet")).obj
    assert deployment is not None
    assert daemon_set is not None
    rolling = {"maxSurge": "25%", "maxUnavailable": "25%"}
    assert deployment["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    recreated = decode(app_object("Deployment", strategy={"type": "Recreate"})).obj
    assert recreated is not None
    assert recreated["spec"]["strategy"] == {"type": "Recreate"}


NO_MATCH = "spec.template.metadata.labels: Invalid value: {}: `selector` does not match template `labels`"


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ({"selector": {"matchLabels": {"app": "b"}}}, [NO_MATCH.format('{"app":"a"}')]),
        ({"selector": {}}, ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"]),
        ({"selector": None}, ["spec.selector: Required value"]),
        ({"replicas": -1}, ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    ],
)
def test_invalid_deployment_is_rejected(spec: dict[str, Any], reported: list[str]) -> None:
    assert faults(app_object("Deployment", **spec)) == reported


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("*/2/3 * * * *", "too many slashes: */2/3"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("@hourlyish", "unrecognized descriptor: @hourlyish"),
        ("@every 5", 'failed to parse duration @every 5: time: missing unit in duration "5"'),
        ("@every 5d", 'failed to parse duration @every 5d: time: unknown unit "d" in duration "5d"'),
        ("@every x", 'failed to parse duration @every x: time: invalid duration "x"'),
        ("TZ=UTC 0 * * * *", "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
    ],
)
def test_invalid_schedule_is_rejected(schedule: str, problem: str) -> None:
    assert faults(cron_job(schedule)) == [f'spec.schedule: Invalid value: "{schedule}": {problem}']


@pytest.mark.parametrize(
    "schedule",
    ["0,15,30-40/5 */2 1-31 jan-DEC Mon,wed", "? ? ? ? ?", "@every 1h30m", "@every 1.5h", "0 0 1 1 sun/2", "@midnight"],
)
def test_valid_schedule_is_accepted(schedule: str) -> None:
    assert faults(cron_job(schedule)) == []


def test_schedule_over_1024_bytes_is_rejected() -> None:
    assert faults(cron_job("0," * 200_000 + "0 * * * *")) == [
        "spec.schedule: Too long: may not be more than 1024 bytes"
    ]


@pytest.mark.parametrize(
    ("zone", "problem"),
    [
        ("../../../etc/passwd", "unknown time zone ../../../etc/passwd"),
        ("/etc/passwd", "unknown time zone /etc/passwd"),
        ("europe/berlin", "unknown time zone europe/berlin"),
        ("Mars/Base", "unknown time zone Mars/Base"),
        ("", "timeZone must be nil or non-empty string"),
        ("local", "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"),
    ],
)
def test_unknown_time_zone_is_rejected(zone: str, problem: str) -> None:
    assert faults(cron_job("@daily", timeZone=zone)) == [f'spec.timeZone: Invalid value: "{zone}": {problem}']


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Etc/GMT+5", "America/Argentina/Buenos_Aires"])
def test_iana_time_zone_is_accepted(zone: str) -> None:
    assert faults(cron_job("@daily", timeZone=zone)) == []


@pytest.mark.parametrize(
    ("obj", "reported"),
    [
        (cron_job("often"), ['spec.schedule: Invalid value: "often": expected exactly 5 fields, found 1: [often]']),
        (cron_job("@daily"), []),
        (cron_job("*/5 * * * *"), []),
        (
            cron_job("* * * * *", concurrencyPolicy="No"),
            ['spec.concurrencyPolicy: Unsupported value: "No": supported values: "Allow", "Forbid", "Replace"'],
        ),
    ],
)
def test_cron_job_schedule_and_concurrency_policy_are_validated(obj: dict[str, Any], reported: list[str]) -> None:
    assert faults(obj) == reported


def test_replica_set_selector_is_immutable() -> None:
    old, new = decode(app_object("ReplicaSet")).obj, decode(app_object("ReplicaSet")).obj
    assert old is not None
    assert new is not None
    assert validate_update(new, old) == []
    new["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    assert [fault.path for fault in validate_update(new, old)] == ["spec.selector"]


def test_stateful_set_update_allows_replicas_and_rejects_service_name() -> None:
    old, new = decode(app_object("StatefulSet")).obj, decode(app_object("StatefulSet", replicas=3)).obj
    other = decode(app_object("StatefulSet", serviceName="b")).obj
    assert old is not None
    assert new is not None
    assert other is not None
    assert validate_update(new, old) == []
    assert "are forbidden" in validate_update(other, old)[0].problem


@pytest.mark.parametrize(
    ("obj", "status"),
    [
        (app_object("Deployment"), {}),
        (app_object("ReplicaSet"), {"replicas": 0}),
        (app_object("StatefulSet", serviceName="s"), {"availableReplicas": 0, "replicas": 0}),
        (cron_job("@daily"), {}),
        ({**app_object("Deployment"), "status": {"replicas": 2}}, {"replicas": 2}),
    ],
)
def test_decode_adds_default_status(obj: dict[str, Any], status: dict[str, Any]) -> None:
    result = decode(obj).obj
    assert result is not None
    assert result["status"] == status
