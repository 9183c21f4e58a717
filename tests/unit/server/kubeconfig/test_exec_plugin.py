"""Credentials from the exec plugins of a kubeconfig, and the errors of plugins without credentials."""

import asyncio
import base64
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchyard.server.kubeconfig.loading import run_credential_plugin

VERSION = "client.authentication.k8s.io/v1"


def answer(**status: Any) -> str:
    return json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status})


def plugin(folder: Path, script: str, **options: Any) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(stat.S_IRWXU)
    return {"apiVersion": VERSION, "command": str(path), **options}


def run_plugin(found: dict[str, Any], cluster: Mapping[str, Any] | None = None) -> Mapping[str, str]:
    return asyncio.run(asyncio.wait_for(run_credential_plugin(found, cluster or {}), 10))


def test_exec_plugin_returns_token_or_certificate(tmp_path: Path) -> None:
    assert run_plugin(plugin(tmp_path, f"echo '{answer(token='abc')}'")) == {"token": "abc"}
    both = answer(clientCertificateData="c", clientKeyData="k")
    encoded = {"client-certificate-data": "Yw==", "client-key-data": "aw=="}
    assert run_plugin(plugin(tmp_path, f"echo '{both}'")) == encoded


@pytest.mark.parametrize(
    ("printed", "reported"),
    [
        ("hello", "did not print an ExecCredential"),
        ("5", "did not print an ExecCredential"),
        (answer(), "neither a token nor a client certificate"),
        (answer(token=None), "neither a token nor a client certificate"),
        (answer(clientCertificateData="c"), "must print both clientCertificateData and clientKeyData"),
        (answer(token="x").replace("/v1", "/v1beta1"), "instead of"),
        (answer().replace("{}", "null"), "neither a token nor a client certificate"),
    ],
)
def test_invalid_exec_credential_is_rejected(tmp_path: Path, printed: str, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        run_plugin(plugin(tmp_path, f"echo '{printed}'"))


def test_exec_plugin_with_large_stderr_does_not_block(tmp_path: Path) -> None:
    script = f"head -c 200000 /dev/zero | tr '\\\\0' ' ' >&2; echo '{answer(token='abc')}'"
    assert run_plugin(plugin(tmp_path, script)) == {"token": "abc"}


def test_exec_plugin_receives_cluster_info_on_request(tmp_path: Path) -> None:
    meant = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
    (tmp_path / "ca.pem").write_text("pem")
    cluster = {"server": "https://c", "certificate-authority": str(tmp_path / "ca.pem"), "extensions": meant}
    script = 'printf %s "$KUBERNETES_EXEC_INFO" > "$0.asked"; ' + f"echo '{answer(token='abc')}'"
    run_plugin(plugin(tmp_path, script, provideClusterInfo=True), cluster)
    request = json.loads((tmp_path / "plugin.asked").read_text())
    authority = base64.b64encode(b"pem").decode()
    reported = {"server": "https://c", "certificate-authority-data": authority, "config": {"audience": "x"}}
    assert request["spec"]["cluster"] == reported


def test_missing_exec_plugin_is_reported_with_install_hint() -> None:
    with pytest.raises(ValueError, match=r"none was not found on this machine\. Get it"):
        run_plugin({"apiVersion": VERSION, "command": "/none", "installHint": "Get it"})


def test_abandoned_exec_plugin_process_is_terminated(tmp_path: Path) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_credential_plugin(plugin(tmp_path, 'echo $$ > "$0.pid"; exec sleep 60'), {}), 1)

    asyncio.run(give_up())
    assert not Path("/proc", (tmp_path / "plugin.pid").read_text().strip()).exists()
