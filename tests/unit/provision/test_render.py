"""All files of a platform: reproducible, without overwriting foreign files."""

import signal
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit

import pytest
import yaml

from batchyard.cli.platform.render import RECORD_FILE, write_platform_files
from batchyard.package_data import find_folder, read_folder
from batchyard.provision.engine import engine_deployments
from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from cloud_commands import run_in_process

pytestmark = pytest.mark.slow


def example(old: str = "", new: str = "") -> PlatformModel:
    folder = find_folder("examples/platforms")
    assert folder is not None
    text = (folder / "refarch.yaml").read_text()
    assert old in text
    return read_platform(PlatformSource("p.yaml", text.replace(old, new, 1)))


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RECORD_FILE
    }


def test_render_is_reproducible() -> None:
    assert list(render(example()).items()) == list(render(example()).items())


def test_kustomizations_name_existing_files() -> None:
    texts = render(example())
    kustomizations = [path for path in texts if path.endswith("kustomization.yaml")]
    for path in kustomizations:
        folder = path.removesuffix("kustomization.yaml")
        for resource in yaml.safe_load(texts[path])["resources"]:
            places = (f"{folder}{resource}", f"{folder}{resource}/kustomization.yaml")
            assert any(place in texts for place in places), resource


def test_kueue_is_installed_from_pinned_releases() -> None:
    texts = render(example("engine: batchyard", "engine: kueue"))
    resources = yaml.safe_load(texts["manifests/00-engine/kustomization.yaml"])["resources"]
    assert [url.rpartition("/releases/download/")[2] for url in resources] == [
        "v0.12.0/manifests.yaml",
        "v0.19.2/manifests.yaml",
    ]


def test_operator_is_installed_from_platform_repository() -> None:
    texts = render(example())
    (deployment,) = [
        each
        for each in yaml.safe_load_all(texts["manifests/00-engine/deployment.yaml"])
        if each["kind"] == "Deployment"
    ]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("us-central1-docker.pkg.dev/my-project/gke-batch-refarch/batchyard:")
    assert (deployment["metadata"]["namespace"], deployment["metadata"]["name"]) == engine_deployments(example())[0]
    assert "PodMonitoring" in texts["manifests/00-engine/network.yaml"]


def test_operator_tracks_costs_when_team_has_budget() -> None:
    reported = render(example("# budget:", "budget:"))["manifests/00-engine/deployment.yaml"]
    assert ",costs" in reported
    assert ",costs" not in render(example())["manifests/00-engine/deployment.yaml"]


def test_monitoring_rules_use_kind_of_collector() -> None:
    (managed,) = yaml.safe_load_all(render(example())["manifests/70-monitoring/monitoring.yaml"])
    text = "engine: batchyard\n  monitoring: {collector: ServiceMonitor}"
    (operated,) = yaml.safe_load_all(
        render(example("engine: batchyard", text))["manifests/70-monitoring/monitoring.yaml"]
    )
    assert (managed["kind"], operated["kind"]) == ("ClusterRules", "PrometheusRule")
    assert all("interval" in group for group in managed["spec"]["groups"])


def test_driver_installer_is_added_when_gke_drivers_are_disabled() -> None:
    resources = yaml.safe_load(render(example())["manifests/kustomization.yaml"])["resources"]
    changed = render(example("releaseChannel: REGULAR", "gpuDriver: disabled"))["manifests/kustomization.yaml"]
    (installer,) = [name for name in yaml.safe_load(changed)["resources"] if name not in resources]
    assert "nvidia-driver-installer" in installer


def test_obsolete_files_are_deleted(tmp_path: Path) -> None:
    write_platform_files({"a.yaml": "a", "sub/b.yaml": "b"}, tmp_path, overwrite=False)
    assert write_platform_files({"a.yaml": "new"}, tmp_path, overwrite=False) == ([], 1)
    assert files_in(tmp_path) == {"a.yaml": "new"}
    assert not (tmp_path / "sub").exists()


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    write_platform_files({"a.yaml": "a"}, tmp_path, overwrite=False)
    write_platform_files({"b.yaml": "b"}, tmp_path, overwrite=False)
    assert files_in(tmp_path) == {"b.yaml": "b", "mine.yaml": "mine"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_changed_file_is_replaced_only_with_overwrite(tmp_path: Path, overwrite: bool) -> None:
    write_platform_files({"a.yaml": "a", "b.yaml": "b"}, tmp_path, overwrite=False)
    (tmp_path / "a.yaml").write_text("changed")
    in_the_way, _ = write_platform_files({"a.yaml": "new", "b.yaml": "new"}, tmp_path, overwrite=overwrite)
    assert in_the_way == ([] if overwrite else ["a.yaml"])
    assert files_in(tmp_path) == (
        {"a.yaml": "new", "b.yaml": "new"} if overwrite else {"a.yaml": "changed", "b.yaml": "b"}
    )


def test_changed_obsolete_file_is_kept(tmp_path: Path) -> None:
    write_platform_files({"a.yaml": "a"}, tmp_path, overwrite=False)
    (tmp_path / "a.yaml").write_text("changed")
    assert write_platform_files({"b.yaml": "b"}, tmp_path, overwrite=False) == ([], 0)
    assert files_in(tmp_path) == {"a.yaml": "changed", "b.yaml": "b"}


def test_interrupted_write_recognizes_its_files(tmp_path: Path) -> None:
    write_platform_files({"a.yaml": "a", "b.yaml": "b"}, tmp_path, overwrite=False)
    (tmp_path / "b.yaml").unlink()
    (tmp_path / "b.yaml").mkdir()
    (tmp_path / "b.yaml" / "mine").write_text("mine")
    with pytest.raises(OSError, match="directory"):
        write_platform_files({"a.yaml": "new", "b.yaml": "new"}, tmp_path, overwrite=True)
    (tmp_path / "b.yaml" / "mine").unlink()
    (tmp_path / "b.yaml").rmdir()
    assert write_platform_files({"a.yaml": "newer", "b.yaml": "newer"}, tmp_path, overwrite=False) == ([], 0)


def test_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_platform_files({"a.yaml": "a"}, folder, overwrite=False)

    def without_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        setrlimit(RLIMIT_FSIZE, (4000, 4000))
        write_platform_files({"a.yaml": "b" * 5000}, folder, overwrite=False)

    assert run_in_process(without_room, tmp_path / "told") == 70
    assert files_in(folder) == {"a.yaml": "a"}
    assert write_platform_files({"a.yaml": "c"}, folder, overwrite=False) == ([], 0)


def test_managed_prometheus_reads_kueue_metrics_with_reader_token() -> None:
    text = read_folder("examples/platforms", ".yaml")["multislice.yaml"].replace(
        "\nspec:\n", "\nspec:\n  engine: kueue\n"
    )
    platform = read_platform(PlatformSource("p", text))
    objects = list(yaml.safe_load_all(render(platform)["manifests/70-monitoring/monitoring.yaml"]))
    by_kind = {obj["kind"]: obj for obj in objects}
    (endpoint,) = by_kind["PodMonitoring"]["spec"]["endpoints"]
    secret = endpoint["authorization"]["credentials"]["secret"]
    assert (endpoint["port"], endpoint["scheme"], secret["key"]) == (8443, "https", "token")
    assert by_kind["Secret"]["type"] == "kubernetes.io/service-account-token"
    assert by_kind["Secret"]["metadata"]["name"] == secret["name"]
    account = by_kind["Secret"]["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert account == by_kind["ServiceAccount"]["metadata"]["name"]
    assert by_kind["Role"]["rules"][0]["resourceNames"] == [secret["name"]]
    assert by_kind["RoleBinding"]["subjects"][0]["namespace"] == "gmp-system"
    assert {obj["metadata"].get("namespace", "") for obj in objects} <= {"kueue-system", ""}
