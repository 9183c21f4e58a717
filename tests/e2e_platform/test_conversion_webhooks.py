"""A platform whose custom objects a webhook process converts, with kubectl; the process is killed meanwhile."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform import conversion_hook
from e2e_platform.platform_process import UpProcess
from unit.apiserver.crd.converting_api import GROUP, NAME, screen, screens

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
CREATED = ["create", "-f", "-"]


class HookProcess:
    """The process of the webhook, its port and its CA bundle."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, conversion_hook.__file__, str(folder)]
        variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self.port, self.bundle = self.line().split()

    def line(self) -> str:
        """The next printed line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[HookProcess]:
    process = HookProcess(tmp_path)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def platform(tmp_path: Path, hook: HookProcess) -> Iterator[UpProcess]:
    """A platform that serves screens, which the webhook converts."""
    config = {"url": f"https://127.0.0.1:{hook.port}/convert", "caBundle": hook.bundle}
    with UpProcess(tmp_path / "data", "--controllers", "api,namespaces") as running:
        running.kubectl(*CREATED, sent=json.dumps(screens(clientConfig=config)))
        running.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=30s")
        yield running


def read(platform: UpProcess, resource: str, *arguments: str) -> Any:
    return json.loads(platform.kubectl("get", resource, *arguments, "-o", "json"))


def test_kubectl_reads_writes_and_watches_two_versions(platform: UpProcess) -> None:
    platform.kubectl(*CREATED, sent=json.dumps(screen("v2", "a", rows=3, columns=4)))
    platform.kubectl(*CREATED, sent=json.dumps(screen("v1", "b", size="5x6")))
    assert read(platform, f"screens.v1.{GROUP}", "a")["spec"]["size"] == "3x4"
    listed = read(platform, f"screens.v2.{GROUP}")["items"]
    assert [(item["metadata"]["name"], item["spec"]["rows"]) for item in listed] == [("a", 3), ("b", 5)]
    assert "5" in platform.kubectl("get", f"screens.v2.{GROUP}", "b").split()
    platform.kubectl("apply", "--server-side", "-f", "-", sent=json.dumps(screen("v2", "c", rows=1, columns=2)))
    platform.kubectl("scale", f"screens.v2.{GROUP}/c", "--replicas=9")
    assert read(platform, f"screens.v1.{GROUP}", "c")["spec"]["size"] == "9x2"
    metrics = platform.kubectl("get", "--raw", "/metrics")
    assert f'apiserver_crd_conversion_webhook_duration_seconds_count{{crd_name="{NAME}",from_version="v1"' in metrics
    assert 'apiserver_conversion_webhook_request_total{failure_type="",result="success"}' in metrics or (
        'apiserver_conversion_webhook_request_total{result="success",failure_type=""}' in metrics
    )


def test_killed_webhook_fails_its_own_requests_only(platform: UpProcess, hook: HookProcess) -> None:
    platform.kubectl(*CREATED, sent=json.dumps(screen("v1", "a")))
    platform.kubectl(*CREATED, sent=json.dumps(screen("v1", "slow")))
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig)}
    slow = subprocess.Popen(
        ["kubectl", "get", f"screens.v2.{GROUP}", "slow"], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert hook.line() == "waiting\n"
    assert read(platform, f"screens.v1.{GROUP}", "a")["spec"]["size"] == "3x4"
    platform.kubectl("create", "configmap", "c")
    hook.kill()
    _, error = slow.communicate(timeout=60)
    prefix = f"Error from server: conversion webhook for {GROUP}/v1, Kind=Screen failed: Post"
    assert error.startswith(f'{prefix} "https://127.0.0.1:{hook.port}/convert?timeout=30s": '), error
    error = platform.kubectl(*CREATED, sent=json.dumps(screen("v2", "d")), fails=True)
    assert f"conversion webhook for {GROUP}/v2, Kind=Screen failed: " in error
    assert "connection refused" in error
    platform.kubectl("delete", f"screens.v1.{GROUP}", "a", "slow")
