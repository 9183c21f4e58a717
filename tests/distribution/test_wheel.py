"""The sdist and the pure wheel: contents, metadata, reproducible builds, and the commands of an installation."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: large, namespace: default, labels: {kueue.x-k8s.io/queue-name: jobs}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {requests: {cpu: "8"}}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: any, resources: [{name: cpu, nominalQuota: 4}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: jobs, namespace: default}
spec: {clusterQueue: team}
"""
#: Maximum number of requests until the Job has a Workload.
_LISTINGS = 50
#: Every tracked file of the package must be in the wheel, and those of these folders beside it.
DATA_FOLDERS = ("examples/refarch", "examples/platforms", "deploy/monitoring", "deploy/image")


def build_distributions(folder: Path) -> tuple[Path, Path]:
    """Build an sdist from the checkout and a wheel from the sdist; return their paths."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "--target"]
    subprocess.run([*hatchling, "sdist", "--directory", str(folder)], cwd=ROOT, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    sources = folder / sdist.name.removesuffix(".tar.gz")
    subprocess.run([*hatchling, "wheel", "--directory", str(folder)], cwd=sources, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of the checkout."""
    return build_distributions(tmp_path_factory.mktemp("dist"))


class CleanEnvironment:
    """A virtual environment with the wheel and the dependencies that it declares, and an empty folder to work in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder / "env", with_pip=True)
        self.program = folder / "env/bin/batchyard"
        self.working_folder = folder / "empty"
        self.working_folder.mkdir()
        self._pip("install", str(wheel))

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run the command; return its standard output followed by its standard error."""
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(self.program), *arguments]
        done = subprocess.run(
            command, cwd=self.working_folder, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def _pip(self, *arguments: str) -> None:
        python = self.program.with_name("python")
        subprocess.run([python, "-m", "pip", "--quiet", *arguments], cwd=self.working_folder, check=True)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, distributions: tuple[Path, Path]) -> CleanEnvironment:
    """The wheel, installed from the registry."""
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "typer", "--dest"]
    if subprocess.run([*probe, str(tmp_path_factory.mktemp("probe"))], capture_output=True, check=False).returncode:
        pytest.skip("no package registry can be reached")
    return CleanEnvironment(tmp_path_factory.mktemp("clean"), distributions[1])


@pytest.fixture
def platform(clean: CleanEnvironment) -> Iterator[None]:
    """A platform in the background, in the empty folder."""
    clean.run("up", "--detach")
    yield
    clean.run("down")


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (path for path in archive.namelist() if path.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_wheel_has_all_data_files(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as archive:
        names = {name.partition(".data/data/share/batchyard/")[2] or name for name in archive.namelist()}
        assert sum(".data/data/share/man/man1/batchyard" in name for name in names) > 30
    tracked = subprocess.run(
        ["git", "ls-files", "src/batchyard", *DATA_FOLDERS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert len(tracked) > 500
    assert {path.removeprefix("src/") for path in tracked} <= names
    assert {"batchyard/py.typed", "LICENSE", "requirements-build.lock", "requirements-runtime.lock"} <= names


def test_wheel_metadata_is_complete(distributions: tuple[Path, Path]) -> None:
    metadata = metadata_of(distributions[1])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Keywords"]
    assert metadata.get_all("Provides-Extra") == ["gpu", "storage"]
    assert str(metadata.get_payload()).startswith("# batchyard")


def test_builds_are_reproducible(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    for first, second in zip(distributions, build_distributions(tmp_path), strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


@pytest.mark.parametrize("option", ["--target", "--prefix"])
def test_data_files_are_found_in_each_layout(distributions: tuple[Path, Path], tmp_path: Path, option: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    subprocess.run([*pip, option, str(tmp_path / "root"), str(distributions[1])], cwd=tmp_path, check=True)
    (package,) = tmp_path.rglob("package_data.py")
    program = "from batchyard.package_data import find_folder; print(find_folder('examples/refarch'))"
    environ = {**os.environ, "PYTHONPATH": str(package.parents[1])}
    result = subprocess.check_output([sys.executable, "-P", "-c", program], cwd=tmp_path, env=environ, text=True)
    assert Path(result.strip()) == tmp_path / "root/share/batchyard/examples/refarch"


def test_installation_simulates_and_lints(clean: CleanEnvironment) -> None:
    (clean.working_folder / "large.yaml").write_text(JOB, "utf-8")
    assert "0 admitted, 1 pending" in clean.run("simulate", "large.yaml", "--until", "1m")
    assert "large" in clean.run("lint", "large.yaml", code=1)


def test_installation_plays_the_guide(clean: CleanEnvironment) -> None:
    assert "team-a" in clean.run("guide", "-v")


def test_installation_explains_what_waits_on_its_platform(
    clean: CleanEnvironment, platform: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on this machine")
    monkeypatch.setenv("KUBECONFIG", str(clean.working_folder / ".batchyard/kubeconfig"))
    subprocess.run(["kubectl", "apply", "-f", "-"], input=JOB, text=True, check=True, capture_output=True)
    listing = ["kubectl", "get", "workloads", "--output", "name"]
    assert any(subprocess.check_output(listing) for _ in range(_LISTINGS)), "the Job has no Workload"
    assert "raise nominalQuota of cpu" in clean.run("why", "job/large")


def test_gpus_without_their_library_name_the_extra(clean: CleanEnvironment) -> None:
    program = "from batchyard.server.local_node.node import Gpus; print(Gpus().failure)"
    python = str(clean.program.with_name("python"))
    done = subprocess.check_output([python, "-P", "-c", program], cwd=clean.working_folder)
    assert b"pip install 'batchyard[gpu]'" in done
