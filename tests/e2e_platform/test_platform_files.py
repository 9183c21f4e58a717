"""Rendered platform files, applied by the real kubectl to a running platform."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from batchyard.cli.platform.render import write_platform_files
from batchyard.package_data import read_folder
from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.render import render
from e2e_platform.platform_process import UpProcess, kubectl

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")

TEXT = read_folder("examples/platforms", ".yaml")["refarch.yaml"]
#: Without rules for Prometheus, because their kind is a CRD of Google's managed Prometheus.
WITHOUT_MONITORING = TEXT.replace("engine: batchyard", "engine: batchyard\n  monitoring: {collector: None}")


@pytest.fixture(scope="module")
def rendered_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rendered")
    write_platform_files(
        render(read_platform(PlatformSource("refarch.yaml", WITHOUT_MONITORING))), folder, overwrite=False
    )
    return folder


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, rendered_folder: Path) -> Iterator[UpProcess]:
    folder = tmp_path_factory.mktemp("data")
    with UpProcess(
        folder, "--port", "0", "--cluster", str(rendered_folder / "cluster.yaml"), "--speed", "60"
    ) as running:
        names = [f"team-{letter}" for letter in "abcd"]
        for name in names:
            running.kubectl("create", "namespace", name)
        yield running


def test_server_accepts_all_rendered_manifests(platform: UpProcess, rendered_folder: Path) -> None:
    built = kubectl(platform.kubeconfig, "kustomize", str(rendered_folder / "manifests"))
    objects = [f"{each['kind']}/{each['metadata']['name']}" for each in yaml.safe_load_all(built)]
    checked = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    reported = platform.kubectl(*checked, sent=built).splitlines()
    assert len(reported) == len(objects) == 53
    assert all(line.endswith("serverside-applied (server dry run)") for line in reported)


def test_queues_become_active_and_team_members_have_their_permissions(
    platform: UpProcess, rendered_folder: Path
) -> None:
    platform.kubectl("apply", "--server-side", "-k", str(rendered_folder / "manifests"))
    platform.kubectl("wait", "--for=condition=Active", "clusterqueue", "--all", "--timeout=60s")
    platform.kubectl("wait", "--for=condition=Active", "localqueue", "--all", "-A", "--timeout=60s")
    member = ("--as=ann", "--as-group=team-a@example.com")
    can = ("auth", "can-i")
    assert platform.kubectl(*can, "create", "jobs", "-n", "team-a", *member).strip() == "yes"
    assert platform.kubectl(*can, "get", "jobs", "--subresource=why", "-n", "team-a", *member).strip() == "yes"
    assert platform.kubectl(*can, "get", "clusterqueues", *member).strip() == "yes"
    for request in (
        ("create", "jobs", "-n", "team-b"),
        ("get", "secrets", "-n", "team-a"),
        ("update", "clusterqueues"),
    ):
        assert "no" in platform.kubectl(*can, *request, *member, fails=True).splitlines()


def test_kustomize_builds_rules_and_dashboards(platform: UpProcess, tmp_path: Path) -> None:
    write_platform_files(render(read_platform(PlatformSource("refarch.yaml", TEXT))), tmp_path, overwrite=False)
    built = kubectl(platform.kubeconfig, "kustomize", str(tmp_path / "manifests"))
    kinds = [each["kind"] for each in yaml.safe_load_all(built)]
    assert (kinds.count("ConfigMap"), kinds.count("ClusterRules")) == (6, 1)


@pytest.mark.parametrize(("engine", "count"), [("batchyard", 2), ("kueue", 3)])
def test_server_accepts_monitoring_stack_and_grants_prometheus_access(
    platform: UpProcess, tmp_path: Path, engine: str, count: int
) -> None:
    stated = f"engine: {engine}\n  monitoring: {{collector: None, stack: {{enabled: true}}}}"
    text = TEXT.replace("engine: batchyard", stated)
    write_platform_files(render(read_platform(PlatformSource("refarch.yaml", text))), tmp_path, overwrite=False)
    stack = str(tmp_path / "manifests" / "80-monitoring-stack.yaml")
    platform.kubectl("apply", "--validate=strict", "-f", stack)
    namespace = {"batchyard": "batchyard-system", "kueue": "kueue-system"}[engine]
    platform.kubectl("create", "namespace", namespace)
    access = str(tmp_path / "manifests" / "00-engine" / "monitoring-access.yaml")
    platform.kubectl("apply", "--server-side", "--validate=strict", "-f", access)
    assert "3000" in platform.kubectl("get", "svc/grafana", "-n", "monitoring")
    deployments = platform.kubectl("get", "deployments", "-n", "monitoring", "-o", "name").split()
    assert len(deployments) == count
    request = ("auth", "can-i", "list", "pods", "--as=system:serviceaccount:monitoring:prometheus")
    assert platform.kubectl(*request, "-n", namespace).strip() == "yes"
    assert "no" in platform.kubectl(*request, "-n", "team-a", fails=True).split()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool on this machine")
@pytest.mark.parametrize("engine", ["batchyard", "kueue"])
def test_promtool_accepts_rendered_prometheus_configuration(tmp_path: Path, engine: str) -> None:
    stated = f"engine: {engine}\n  monitoring: {{collector: None, stack: {{enabled: true}}}}"
    files = render(read_platform(PlatformSource("refarch.yaml", TEXT.replace("engine: batchyard", stated))))
    objects = yaml.safe_load_all(files["manifests/80-monitoring-stack.yaml"])
    (data,) = [obj["data"] for obj in objects if obj["metadata"]["name"] == "prometheus-configuration"]
    for name, content in data.items():
        (tmp_path / name).write_text(content)
    configuration = yaml.safe_load(data["prometheus.yml"])
    for job in configuration["scrape_configs"]:
        del job["kubernetes_sd_configs"]  # Debian builds Prometheus without it
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    command = ["promtool", "check", "config", "--syntax-only", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
