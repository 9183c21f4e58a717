"""A custom resource with kubectl: defined, used, kept over a restart, and deleted with all its objects."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess

DEFINITION = str(Path(__file__).parent / "rockets.yaml")
NAME = "rockets.space.example.com"
GOOD: dict[str, Any] = {
    "orbit": "high",
    "engines": 2,
    "maxEngines": 4,
    "callSign": "ARI",
    "launchAt": "2026-01-01T00:00:00Z",
    "crew": [{"name": "ann"}],
    "payload": {"mass": 3, "anything": {"goes": "here"}},
    "unknown": "field",
}
BAD: dict[str, Any] = {"orbit": "sideways", "engines": "many", "callSign": "tiny", "crew": [{"name": "a"}] * 2}

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def rocket(name: str, namespace: str = "default", **spec: Any) -> str:
    metadata = {"name": name, "namespace": namespace}
    return json.dumps({"apiVersion": "space.example.com/v1", "kind": "Rocket", "metadata": metadata, "spec": spec})


def test_custom_resource_is_defined_used_and_deleted(tmp_path: Path) -> None:
    with UpProcess(tmp_path) as first:
        _define_kind(first)
        _check_validation(first)
        _check_subresources(first)
        first.kill()
    with UpProcess(tmp_path) as second:
        _check_after_restart(second)
        _delete_kind(second)
        assert second.end() == 0


def _define_kind(platform: UpProcess) -> None:
    platform.kubectl("apply", "--server-side", "-f", DEFINITION)
    platform.kubectl("wait", "--for=condition=Established", "--timeout=10s", f"crd/{NAME}")
    header, row = platform.kubectl("get", f"crd/{NAME}").splitlines()
    assert header.split() == ["NAME", "CREATED", "AT"]
    assert row.startswith(NAME)
    reported = platform.kubectl("explain", "rockets.spec.orbit")
    assert "ENUM:\n    low\n    high\n" in reported
    assert "How far up it goes." in reported


def _check_validation(platform: UpProcess) -> None:
    reported = platform.kubectl("apply", "-f", "-", sent=rocket("ariane", **GOOD), fails=True)
    assert 'strict decoding error: unknown field "spec.unknown"' in reported
    platform.kubectl("apply", "--validate=ignore", "-f", "-", sent=rocket("ariane", **GOOD))
    spec = json.loads(platform.kubectl("get", "rk", "ariane", "-o", "jsonpath={.spec}"))
    assert spec["crew"] == [{"name": "ann", "role": "pilot"}]
    assert "unknown" not in spec
    reported = platform.kubectl("create", "-f", "-", sent=rocket("bad", **BAD), fails=True)
    assert '* spec.orbit: Unsupported value: "sideways": supported values: "low", "high"' in reported
    assert 'spec.engines in body must be of type integer: "string"' in reported
    assert '* spec.crew[1]: Duplicate value: {"name":"a"}' in reported
    patch = ("patch", "rk", "ariane", "--type=merge", "-p")
    reported = platform.kubectl(*patch, '{"spec": {"orbit": "low"}}', fails=True)
    assert "spec.orbit: Forbidden: the orbit is fixed" in reported


def _check_subresources(platform: UpProcess) -> None:
    platform.kubectl("scale", "rocket/ariane", "--replicas=3")
    reported = platform.kubectl("scale", "rocket/ariane", "--replicas=8", fails=True)
    assert "engines must be at most 4" in reported
    status = '{"spec": {"engines": 1}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}'
    platform.kubectl("patch", "rk", "ariane", "--type=merge", "--subresource=status", "-p", status)
    header, row = platform.kubectl("get", "rockets", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "ORBIT", "ENGINES", "CREWED", "LAUNCH", "READY"]
    assert row.split()[:4] == ["ariane", "high", "3", "false"]
    assert row.split()[-1] == "True"


def _check_after_restart(platform: UpProcess) -> None:
    assert "ariane" in platform.kubectl("get", "spacecraft")
    assert platform.kubectl("get", "rk", "--field-selector=spec.orbit=low", "-o", "name") == ""
    platform.kubectl("create", "namespace", "moon")
    platform.kubectl("create", "-f", "-", sent=rocket("luna", "moon", orbit="low"))
    metadata = {"name": "owned", "ownerReferences": [_owner(platform)]}
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    platform.kubectl("create", "-f", "-", sent=json.dumps(owned))
    platform.kubectl("delete", "rk", "ariane")
    platform.kubectl("wait", "--for=delete", "--timeout=10s", "configmap/owned")
    platform.kubectl("delete", "namespace", "moon", "--timeout=10s")
    assert platform.kubectl("get", "rk", "-A", "-o", "name") == ""


def _owner(platform: UpProcess) -> dict[str, str]:
    uid = platform.kubectl("get", "rk", "ariane", "-o", "jsonpath={.metadata.uid}")
    return {"apiVersion": "space.example.com/v1", "kind": "Rocket", "name": "ariane", "uid": uid}


def _delete_kind(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=rocket("last", orbit="low"))
    platform.kubectl("delete", "crd", NAME, "--timeout=10s")
    assert "NotFound" in platform.kubectl("get", "rockets", fails=True)
