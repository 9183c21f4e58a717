"""Forecasts of a running platform: the start of a Workload, and the effect of a change."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchyard.server.platform.data_dir import running_process_in
from e2e_platform.platform_process import UpProcess, kubectl
from unit.sim.forks_make import queue, workload

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

TEAM = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
WAITING = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/b/eta"


def list_manifest(*objects: Any) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with a long-running Workload and a pending Workload."""
    with UpProcess(tmp_path_factory.mktemp("platform")) as started:
        started.kubectl("create", "-f", "-", sent=list_manifest(TEAM))
        started.kubectl("create", "-f", "-", sent=list_manifest(*queue(1), workload("a", 3600)))
        started.kubectl("wait", "-n", "team", "--for=condition=Admitted", "--timeout=60s", "workload/a")
        started.kubectl("create", "-f", "-", sent=list_manifest(workload("b", 60)))
        yield started


def test_server_forecasts_start_of_workload(platform: UpProcess) -> None:
    reported = json.loads(platform.kubectl("get", "--raw", WAITING))
    assert (reported["kind"], reported["basis"], reported["within"]) == ("Forecast", "manifest", 1)
    assert 3000 < reported["waitSeconds"]["p50"] <= 3600


def test_concurrent_forecast_requests_are_all_answered(platform: UpProcess) -> None:
    command = ["kubectl", "--kubeconfig", str(platform.kubeconfig), "get", "--raw"]
    asking = [
        subprocess.Popen([*command, f"{WAITING}?seed={seed % 4}"], stdout=subprocess.PIPE, text=True)
        for seed in range(8)
    ]
    answers = [json.loads(each.communicate(timeout=60)[0]) for each in asking]
    assert [each["seed"] for each in answers] == [0, 1, 2, 3] * 2


def test_platform_stores_its_forecast_samples_after_first_request(platform: UpProcess) -> None:
    for seed in (11, 12):  # requests are answered in order, with those of the platform itself in between
        platform.kubectl("get", "--raw", f"{WAITING}?seed={seed}")
    known = json.loads((platform.kubeconfig.parent / "forecasts.json").read_text("utf-8"))
    assert known == {"tracks": {}, "pending": []}  # a certain forecast is not a sample


def test_forecasts_leave_no_child_process(platform: UpProcess) -> None:
    for seed in (13, 14):
        platform.kubectl("get", "--raw", f"{WAITING}?seed={seed}")
    children = Path(f"/proc/{platform.process.pid}/task/{platform.process.pid}/children")
    running = running_process_in(platform.kubeconfig.parent)
    assert running is not None
    assert children.read_text("utf-8").split() == [str(running.guard)]  # it runs as long as the platform


def test_forecast_rejects_unknown_workload_and_invalid_seed(platform: UpProcess) -> None:
    reported = platform.kubectl("get", "--raw", WAITING.replace("/b/", "/x/"), fails=True)
    assert 'workloads.kueue.x-k8s.io "x" not found' in reported
    assert "not a number" in platform.kubectl("get", "--raw", f"{WAITING}?seed=x", fails=True)


def test_eta_command_uses_server(platform: UpProcess) -> None:
    command = [sys.executable, "-m", "batchyard", "eta", "workload/b", "-n", "team", "-o", "json"]
    folder = ["--data-dir", str(platform.kubeconfig.parent)]
    done = subprocess.run([*command, *folder], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["subject"] == {"kind": "Workload", "namespace": "team", "name": "b"}


def test_eta_options_of_the_simulation_are_computed_locally(platform: UpProcess) -> None:
    command = [sys.executable, "-m", "batchyard", "eta", "workload/b", "-n", "team", "-o", "json", "--forks", "3"]
    folder = ["--data-dir", str(platform.kubeconfig.parent)]
    done = subprocess.run([*command, *folder, "--until", "10m"], capture_output=True, text=True, check=True)
    reported = json.loads(done.stdout)
    assert (reported["forks"] <= 3, reported["within"]) == (True, 0)


def test_team_member_gets_forecasts_in_own_namespace(platform: UpProcess) -> None:
    folder = platform.kubeconfig.parent
    create_user = [sys.executable, "-m", "batchyard", "user", "anna", "-n", "team", "--data-dir", str(folder)]
    subprocess.run(create_user, capture_output=True, check=True)
    platform.kubectl("create", "rolebinding", "anna", "--clusterrole=view", "--user=anna", "--namespace=team")
    command = [sys.executable, "-m", "batchyard", "eta", "--kubeconfig", str(folder / "users" / "anna.kubeconfig")]
    one = subprocess.run([*command, "workload/b"], capture_output=True, text=True, check=True)
    assert "workload/b -n team" in one.stdout
    every = subprocess.run([*command, "--all"], capture_output=True, text=True, check=True)
    assert every.stdout == one.stdout
    assert "forecasts of namespace team only: no permission to list other namespaces" in every.stderr
    local = subprocess.run([*command, "--all", "--forks", "3"], capture_output=True, text=True, check=False)
    assert (local.returncode, "no permission to list clusterqueues" in local.stderr) == (1, True)
    missing = subprocess.run([*command, "workload/bb"], capture_output=True, text=True, check=False)
    expected = "batchyard: workload bb not found in namespace team; similar names: b\n"
    assert (missing.returncode, missing.stderr) == (1, expected)
    empty = subprocess.run([*command, "job/train"], capture_output=True, text=True, check=False)
    assert empty.stderr.startswith("batchyard: job train not found in namespace team; no job found")


def test_dry_run_warns_of_admission_and_changes_nothing(platform: UpProcess) -> None:
    env = ["kubectl", "--kubeconfig", str(platform.kubeconfig), "replace", "--dry-run=server", "-f", "-"]
    done = subprocess.run(env, input=json.dumps(queue(2)[1]), capture_output=True, text=True, check=True)
    assert done.stderr == "Warning: team/b would be admitted at once\n"
    assert platform.kubectl("get", "-n", "team", "workload/b", "-o", "jsonpath={.status.admission}") == ""


def test_forecasts_hide_names_from_user_without_permission(platform: UpProcess, tmp_path: Path) -> None:
    folder = platform.kubeconfig.parent
    command = [sys.executable, "-m", "batchyard", "user", "eve", "--data-dir", str(folder)]
    subprocess.run(command, capture_output=True, check=True)
    eve = folder / "users" / "eve.kubeconfig"
    assert "forbidden" in kubectl(eve, "get", "--raw", WAITING, fails=True).lower()
    platform.kubectl("create", "clusterrole", "queues", "--verb=get,update", "--resource=clusterqueues.kueue.x-k8s.io")
    platform.kubectl("create", "clusterrolebinding", "eve", "--clusterrole=queues", "--user=eve")
    env = ["kubectl", "--kubeconfig", str(eve), "replace", "--dry-run=server", "-f", "-"]
    done = subprocess.run(env, input=json.dumps(queue(2)[1]), capture_output=True, text=True, check=True)
    assert done.stderr == "Warning: 1 Workload would be admitted at once\n"
