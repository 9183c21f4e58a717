"""kubectl with an aggregated API server beside the platform: discovery, lists, watches, and its absence."""

import asyncio
import base64
import os
import shutil
from pathlib import Path

import pytest
import yaml

from e2e_platform.platform_process import UpProcess
from unit.server.platform.flower_server import FlowerServer

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
NAME = "v1.flowers.example.com"


def manifests(server: FlowerServer) -> str:
    """The APIService with its Service and Endpoints."""
    metadata = {"name": "flowers", "namespace": "default"}
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": server.port}]}
    spec = {"group": "flowers.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10}
    spec |= {"service": metadata, "caBundle": base64.b64encode(server.authority).decode()}
    objects = [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 443}]}},
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [subset]},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": NAME}, "spec": spec},
    ]
    return yaml.safe_dump_all(objects)


async def first_lines(platform: UpProcess, count: int, *arguments: str) -> list[str]:
    """The first lines of a running kubectl, which is then killed."""
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("kubectl", *arguments, stdout=pipe, env=environment)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        lines = [(await process.stdout.readline()).decode().strip() for _ in range(count)]
    process.kill()
    await process.wait()
    return lines


async def wait_for_availability(platform: UpProcess, status: str) -> None:
    wait = ("wait", f"apiservice/{NAME}", f"--for=condition=Available={status}", "--timeout=60s")
    await asyncio.to_thread(platform.kubectl, *wait)


async def check_flowers(platform: UpProcess, folder: Path) -> None:
    """Use the API while its server runs, and after it has ended."""
    authority = platform.kubeconfig.parent / "front-proxy/ca.crt"
    async with FlowerServer(folder / "flowers", authority).serve() as server:
        await asyncio.to_thread(platform.kubectl, "apply", "-f", "-", sent=manifests(server))
        await wait_for_availability(platform, "true")
        assert "red" in await asyncio.to_thread(platform.kubectl, "get", "roses")
        assert server.users[-1] == ("admin", ("system:masters", "system:authenticated"))
        lines = await first_lines(platform, 3, "get", "roses", "--watch", "-o", "name")
        assert [line.rpartition("/")[2] for line in lines] == ["red", "blue", "white"]
    await wait_for_availability(platform, "false")
    failed = await asyncio.to_thread(platform.kubectl, "get", "--raw", f"/apis/{NAME[3:]}/v1", fails=True)
    assert "unable to handle the request" in failed


def test_aggregated_api_is_used_like_an_own_one(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data") as platform:
        asyncio.run(check_flowers(platform, tmp_path))
        config_map = ("get", "configmap", "extension-apiserver-authentication", "-n", "kube-system", "-o", "yaml")
        assert '["front-proxy-client"]' in platform.kubectl(*config_map)
