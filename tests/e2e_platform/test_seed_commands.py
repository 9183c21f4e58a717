"""The unmodified kubectl commands of the source documents, run by a shell.

docs/reference/compatibility.md lists the commands that are not run, each with the reason.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TEXTS = sorted((ROOT.parent / "shared" / "seeds").glob("*.txt"))
NO_KUBECTL = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

SECRET = "kubectl create secret generic hf-secret --from-literal=hf_api_token=${HF_TOKEN} --dry-run=client -o yaml"
#: Each executed command with its expected output, in a working order; `watch` itself is omitted.
EXECUTED_COMMANDS = {
    f"{SECRET} | kubectl -n team-a apply -f -": "secret/hf-secret created",
    f"{SECRET} | kubectl -n team-b apply -f -": "secret/hf-secret created",
    "kubectl apply -f kueue-dws-config.yaml": "clusterqueue.kueue.x-k8s.io/dws-cluster-queue created",
    "kubectl create -f ./dws-queues.yaml": "clusterqueue.kueue.x-k8s.io/its-own created",
    "kubectl apply -f kueue.yaml": "localqueue.kueue.x-k8s.io/multislice-queue created",
    "kubectl apply -f jobsets-multislice.yaml": "jobset.jobset.x-k8s.io/multislice-1slice created",
    "kubectl get workloads": "jobset-multislice-3slice-",
    "kubectl get pods": "multislice-3slice-slice-",
    "watch kubectl get jobs --all-namespaces": "NAMESPACE   NAME",
    "watch kubectl get clusterqueues": "COHORT     PENDING WORKLOADS\n",
    "watch kubectl get clusterqueues -o wide": "PENDING WORKLOADS   ADMITTED WORKLOADS\n",
    "watch kubectl get nodes": "STATUS   ROLES    AGE",
    # These commands lack names; kubectl reports that.
    "kubectl delete -n team-a localqueue": "no name was specified",
    "kubectl delete -n team-b localqueue": "no name was specified",
    "kubectl delete clusterqueue": "no name was specified",
    "kubectl delete resourceflavor": "no name was specified",
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform for the tests of this module, with the teams of the reference architecture."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder, "--cluster", str(EXAMPLES / "refarch/cluster.yaml"), "--speed", "60x") as started:
        parts = (f"--filename={EXAMPLES / 'refarch/platform' / part}" for part in ("teams", "priorityclass", "kueue"))
        started.kubectl("apply", "-R", *parts)
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the commands."""
    folder = tmp_path_factory.mktemp("files")
    shutil.copy(EXAMPLES / "refarch/dws/kueue-dws-config.yaml", folder)
    shutil.copy(EXAMPLES / "multislice/platform.yaml", folder / "kueue.yaml")
    shutil.copy(EXAMPLES / "multislice/jobsets.yaml", folder / "jobsets-multislice.yaml")
    own = (EXAMPLES / "dws/platform.yaml").read_text("utf-8")
    own = re.sub(r"name: dws-(flavor|prov|config|cluster-queue|local-queue)\b", r"name: its-own", own)
    (folder / "dws-queues.yaml").write_text(own, "utf-8")
    return folder


@NO_KUBECTL
def test_seed_commands_print_expected_output(platform: UpProcess, files: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig), "HF_TOKEN": "hush"}
    for command, expected in EXECUTED_COMMANDS.items():
        shell = ["bash", "-c", command.removeprefix("watch ")]
        done = subprocess.run(shell, cwd=files, env=environment, capture_output=True, text=True, check=False)
        assert expected in done.stdout + done.stderr, (command, done)
        assert (done.returncode == 0) is ("no name" not in expected), (command, done)


@pytest.mark.skipif(not TEXTS, reason="the texts are not in ../shared/seeds")
def test_seed_commands_are_run_or_documented() -> None:
    reported = (ROOT / "docs/reference/compatibility.md").read_text("utf-8")
    result = [command for text in TEXTS for command in commands_of(text.read_text("utf-8"))]
    assert len(result) == 28
    assert [command for command in result if command not in EXECUTED_COMMANDS and f"`{command}`" not in reported] == []


def commands_of(text: str) -> Iterator[str]:
    """The kubectl commands of a text, each on one line, without the operators that join them."""
    joined = re.sub(r" \\\n\s+", " ", text)
    for line in re.findall(r"^\s*((?:watch )?kubectl .*)$", joined, re.MULTILINE):
        yield re.sub(r"( ?&& \\|\s*```)$", "", line.replace(" \\ ", " ")).strip()
