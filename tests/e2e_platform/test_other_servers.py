"""why, eta and whatif for a cluster without batchyard: computed from a snapshot in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.kill_rounds import ask
from e2e_platform.operator_process import plain_kubeconfig
from e2e_platform.other_server import OtherServer
from e2e_platform.platform_process import UpProcess
from e2e_platform.snapshot_commands import batchyard
from unit.sim.forks_make import queue, workload

API = "/apis/kueue.x-k8s.io/v1beta2"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The kubeconfig of a cluster with a running Workload and a pending Workload."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder, "--insecure-loopback") as platform, OtherServer(platform.url) as other:
        assert ask(platform.url, "POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})[0] == 201
        flavor, cluster_queue, local_queue = queue(1)
        team = f"{API}/namespaces/team"
        for path, obj in (
            (f"{API}/resourceflavors", flavor),
            (f"{API}/clusterqueues", cluster_queue),
            (f"{team}/localqueues", local_queue),
            (f"{team}/workloads", workload("a", 3600)),
            (f"{team}/workloads", workload("b", 60)),
        ):
            assert ask(platform.url, "POST", path, obj)[0] == 201
        yield str(plain_kubeconfig(folder, other.url))


def test_why_is_computed_locally(kubeconfig: str) -> None:
    done = batchyard("why", "workload/b", "-n", "team", "--kubeconfig", kubeconfig, "-o", "json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["binding"]["limit"] == "nominal"


def test_eta_is_computed_locally(kubeconfig: str) -> None:
    done = batchyard("eta", "workload/b", "-n", "team", "--kubeconfig", kubeconfig, "-o", "json")
    assert done.code == 0, done.stderr
    assert 3000 < json.loads(done.stdout)["waitSeconds"]["p50"] <= 3600


def test_whatif_is_computed_locally(kubeconfig: str, tmp_path: Path) -> None:
    change = tmp_path / "change.yaml"
    change.write_text(json.dumps(queue(2)[1]), "utf-8")
    done = batchyard("whatif", "-f", str(change), "--kubeconfig", kubeconfig)
    assert done.stdout.startswith("1 starts sooner") or "sooner" in done.stdout.splitlines()[0], done.stderr


def test_unknown_workload_error_suggests_similar_names(kubeconfig: str) -> None:
    done = batchyard("why", "workload/bb", "-n", "team", "--kubeconfig", kubeconfig)
    assert (done.code, "similar names: b" in done.stderr) == (1, True)
