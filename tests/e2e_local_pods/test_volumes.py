"""PersistentVolumeClaims of pods that are processes of this machine, with kubectl."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e_local_pods.node import PATIENCE, script, wait_for
from e2e_platform.platform_process import UpProcess
from integration_shim.machine import until

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def create_claim(platform: UpProcess, name: str) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": CLAIM}
    platform.kubectl("create", "-f", "-", sent=json.dumps(claim))


def run_script(platform: UpProcess, name: str, text: str, claim: str, **mount: Any) -> str:
    """Run a pod that mounts a claim at /data; return its log."""
    volumes: Mapping[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data", **mount}]}
    platform.kubectl("create", "-f", "-", sent=script(name, text, container=mounts, **volumes))
    wait_for(platform, name, "Succeeded")
    return platform.kubectl("logs", name)


def test_files_of_a_claim_outlive_pods_but_not_the_claim(platform: UpProcess, folder: Path) -> None:
    create_claim(platform, "data")
    assert run_script(platform, "writer", "echo hello > /data/log", "data") == ""
    header, row = platform.kubectl("get", "pvc", "data").splitlines()
    assert header.split()[:4] == ["NAME", "STATUS", "VOLUME", "CAPACITY"]
    name, status, volume, capacity, modes, class_name = row.split()[:6]
    assert (name, status, capacity, modes, class_name) == ("data", "Bound", "1Gi", "RWO", "standard")
    assert run_script(platform, "reader", "cat /data/log; ln -s /etc /data/out", "data", readOnly=False) == "hello\n"
    assert (folder / "node" / "claims" / volume / "log").read_text() == "hello\n"
    platform.kubectl("delete", "pvc", "data", "--wait=false")
    platform.kubectl("get", "pvc", "data")
    platform.kubectl("delete", "pod", "writer", "reader")
    platform.kubectl("wait", "--for=delete", f"pv/{volume}", PATIENCE)
    until(lambda: not any((folder / "node" / "claims").iterdir()))


def test_pod_waits_for_its_claim(platform: UpProcess) -> None:
    volumes: Mapping[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "late"}}]}
    platform.kubectl("create", "-f", "-", sent=script("early", "true", **volumes))
    events = ("get", "events", "--field-selector=reason=FailedScheduling", "-o", "jsonpath={.items[*].message}")
    until(lambda: 'persistentvolumeclaim "late" not found' in platform.kubectl(*events))
    create_claim(platform, "late")
    wait_for(platform, "early", "Succeeded")


def test_claim_cannot_grow(platform: UpProcess) -> None:
    create_claim(platform, "fixed")
    patch = json.dumps({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    refused = platform.kubectl("patch", "pvc", "fixed", "-p", patch, fails=True)
    assert "Only bound persistent volume claims can be expanded" in refused


def test_claim_for_one_pod_delays_the_second_pod(platform: UpProcess) -> None:
    spec = {**CLAIM, "accessModes": ["ReadWriteOncePod"]}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "single"}, "spec": spec}
    platform.kubectl("create", "-f", "-", sent=json.dumps(claim))
    volumes: Mapping[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "single"}}]}
    for name in ("holder", "follower"):
        platform.kubectl("create", "-f", "-", sent=script(name, "sleep 1000", **volumes))
    events = ("get", "events", "--field-selector=reason=FailedScheduling", "-o", "jsonpath={.items[*].message}")
    until(lambda: "same name and ReadWriteOncePod access mode" in platform.kubectl(*events))
    wait_for(platform, "holder", "Running")
    platform.kubectl("delete", "pod", "holder", "--grace-period=1")
    wait_for(platform, "follower", "Running")
    platform.kubectl("delete", "pod", "follower", "--grace-period=1", "--wait=false")
