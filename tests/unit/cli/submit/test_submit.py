"""`batchyard submit` without a server: its dry run and its errors."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from batchyard.jobs.described.kinds import find_integration

GPU = "nvidia.com/gpu"
Batchyard: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

ALL = """\
apiVersion: batch/v1
kind: Job
metadata:
  annotations:
    batchyard.dev/runtime: 5s
  labels:
    app.kubernetes.io/instance: mine
    app.kubernetes.io/managed-by: batchyard-submit
    kueue.x-k8s.io/priority-class: high
    kueue.x-k8s.io/queue-name: jobs
  name: mine
  namespace: team
spec:
  backoffLimit: 2
  completionMode: Indexed
  completions: 4
  parallelism: 2
  podFailurePolicy:
    rules:
    - action: Ignore
      onPodConditions:
      - type: DisruptionTarget
  suspend: true
  template:
    spec:
      containers:
      - command:
        - python
        - train.py
        - --dry-run
        - --name
        - x y
        env:
        - name: A
          value: b=c
        - name: CHECKPOINT_DIR
          value: /checkpoints
        image: example/pytorch:2
        name: main
        resources:
          limits:
            cpu: '2'
            memory: 4Gi
            nvidia.com/gpu: '1'
          requests:
            cpu: '2'
            memory: 4Gi
            nvidia.com/gpu: '1'
        volumeMounts:
        - mountPath: /checkpoints
          name: checkpoints
      nodeSelector:
        pool: gpu
      restartPolicy: Never
      tolerations:
      - effect: NoSchedule
        key: nvidia.com/gpu
        operator: Exists
      - effect: NoSchedule
        key: spot
        operator: Exists
      - key: team
        operator: Equal
        value: a
      volumes:
      - hostPath:
          path: /srv/saved
          type: DirectoryOrCreate
        name: checkpoints
"""
OPTIONS = """
--queue jobs --name mine --namespace team --image example/pytorch:2 --cpu 2 --memory 4Gi --gpus 1 --priority high
--completions 4 --parallelism 2 --backoff-limit 2 -e A=b=c --annotation batchyard.dev/runtime=5s
--node-selector pool=gpu --toleration spot:NoSchedule --toleration team=a --checkpoint-dir /srv/saved --dry-run
"""


def test_dry_run_prints_exact_job(batchyard: Batchyard) -> None:
    done = batchyard("submit", *OPTIONS.split(), "--", "python", "train.py", "--dry-run", "--name", "x y")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ALL


def test_files_config_map_precedes_job(batchyard: Batchyard, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ask = (
        "submit",
        "--queue",
        "jobs",
        "--name",
        "mine",
        "--dry-run",
        "-o",
        "json",
        tmp_path,
        "--",
        "python",
        "train.py",
    )
    printed = batchyard(*ask).stdout
    parts, job = json.loads(printed)["items"]
    assert (parts["kind"], parts["metadata"]["name"], job["kind"]) == ("ConfigMap", "mine-files-0", "Job")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][-2:] == ["python", "train.py"]
    assert batchyard(*ask).stdout == printed


def test_default_name_derives_from_command(batchyard: Batchyard) -> None:
    done = batchyard("submit", "--queue", "jobs", "--dry-run", "-o", "json", "--", "python", "train.py")
    assert json.loads(done.stdout)["metadata"]["name"].startswith("train-")


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        pytest.param(("--queue", "q"), 2, "add the command after --", id="no command"),
        pytest.param(("--dry-run", "--", "true"), 2, "cannot find the queue: add --queue", id="no queue"),
        pytest.param(
            ("--queue", "q", "--dry-run", "--gpus", "a100:2", "--", "true"),
            2,
            "use --gpus 2 --node-selector NAME=VALUE",
            id="a model without a cluster",
        ),
        pytest.param(("--gpus", "a100", "--", "true"), 2, "use N or MODEL:N, such as 1 or a100:1", id="no GPU count"),
        pytest.param(
            ("--memory", "4GB", "--", "true"),
            2,
            "--memory: '4GB' is not a quantity; write it as 4G (powers of 1000) or 4Gi (powers of 1024)",
            id="decimal bytes",
        ),
        pytest.param(("--memory", "1.5gib", "--", "true"), 2, "write it as 1.5Gi (powers of 1024)", id="binary bytes"),
        pytest.param(
            ("python", "train.py", "--name", "x"),
            2,
            "--name could belong to submit or to the command: write -- before the command, such as: batchyard submit"
            " -- python train.py --name x",
            id="ambiguous option",
        ),
        pytest.param(("--queue", "q", "-e", "A", "--", "true"), 2, "use the form NAME=VALUE", id="no value"),
        pytest.param(("--queue", "q", "-o", "yaml", "--", "true"), 2, "--output yaml requires --dry-run", id="yaml"),
        pytest.param(
            ("--queue", "q", "--data-dir", "a", "--kubeconfig", "b", "--", "true"),
            2,
            "select two different clusters",
            id="both",
        ),
        pytest.param(("--queue", "q", "--cpu", "two", "--", "true"), 1, "resources.requests[cpu]", id="a quantity"),
        pytest.param(("--queue", "q", "--cpus", "two", "--", "true"), 1, "resources.requests[cpu]", id="CPUs"),
        pytest.param(("--queue", "q", "--name", "A_b", "--", "true"), 1, "metadata.name", id="a name"),
        pytest.param(("--queue", "q", "none", "--", "true"), 1, "none is not a folder", id="no folder"),
        pytest.param(
            ("--queue", "q", "--data-dir", "none", "--", "true"),
            1,
            "no platform runs in none: start a platform with `batchyard up`",
            id="no platform",
        ),
        pytest.param(("--pytorch", "2x", "--", "true"), 2, "use PODS or PODSxGPUS, such as 2 or 2x4", id="no shape"),
        pytest.param(("--pytorch", "2x4", "--gpus", "1", "--", "true"), 2, "use --pytorch 2, or remove", id="GPUs"),
        pytest.param(("--pytorch", "2", "--ray", "2", "--", "true"), 2, "exclude each other", id="two frameworks"),
        pytest.param(("--ray", "2", "--", "true"), 2, "--ray needs an image", id="no image with Ray"),
        pytest.param(("--mpi", "2", "--image", "i", ".", "--", "true"), 2, "cannot ship a folder", id="MPI and folder"),
        pytest.param(("--array", "0", "--", "true"), 2, "use N or N%M, such as 100", id="empty array"),
        pytest.param(("--partial-start", "--", "true"), 2, "add --array N", id="partial start of one pod"),
        pytest.param(("--array", "9", "--completions", "2", "--", "true"), 2, "remove --completions", id="two counts"),
        pytest.param(("--after", "a", "--", "true"), 2, "must begin with ok:, any: or notok:", id="no outcome"),
        pytest.param(("--queue", "q", "--kubeconfig", "none", "--", "true"), 1, "no such file", id="no file"),
    ],
)
def test_invalid_submit_is_reported_with_remedy(
    batchyard: Batchyard, arguments: tuple[str, ...], code: int, reported: str
) -> None:
    done = batchyard("submit", *arguments, KUBECONFIG="")
    assert done.returncode == code
    assert reported in " ".join(done.stderr.split())


def test_command_without_separator_starts_at_first_argument(batchyard: Batchyard) -> None:
    arguments = ("--queue", "jobs", "--dry-run", "-o", "json")
    done = batchyard("submit", *arguments, "python", "train.py", "--epochs", "3")
    assert done.returncode == 0
    container = json.loads(done.stdout)["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "train.py", "--epochs", "3"]
    assert done.stderr == (
        "batchyard: -- is missing before the command; read as: batchyard submit --queue jobs --dry-run -o json --"
        " python train.py --epochs 3\n"
    )


def test_folder_before_command_without_separator_is_shipped(batchyard: Batchyard, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = batchyard("submit", "--queue", "jobs", "--dry-run", "-o", "json", tmp_path, "python", "train.py")
    assert [item["kind"] for item in json.loads(done.stdout)["items"]] == ["ConfigMap", "Job"]


def printed_job(batchyard: Batchyard, *options: str) -> dict[str, Any]:
    dry_run = ("--queue", "q", "--name", "n", "--dry-run", "-o", "json", "--image", "i")
    job: dict[str, Any] = json.loads(batchyard("submit", *dry_run, *options, "--", "python", "a b.py").stdout)
    return job


@pytest.mark.parametrize(
    ("options", "pod_sets"),
    [
        (("--pytorch", "1"), {"master": (1, {"cpu": "1"})}),
        (("--pytorch", "3x4"), {"master": (1, {"cpu": "1", GPU: "4"}), "worker": (2, {"cpu": "1", GPU: "4"})}),
        (("--mpi", "2x8"), {"launcher": (1, {"cpu": "1"}), "worker": (2, {"cpu": "1", GPU: "8"})}),
        (("--ray", "2x1"), {"head": (1, {"cpu": "1"}), "workers": (2, {"cpu": "1", GPU: "1"})}),
    ],
)
def test_framework_job_has_pod_sets(
    batchyard: Batchyard, options: tuple[str, ...], pod_sets: dict[str, tuple[int, dict[str, str]]]
) -> None:
    job = printed_job(batchyard, *options)
    integration = find_integration(f"{job['kind']}.{job['apiVersion'].partition('/')[0]}", {})
    assert integration is not None
    assert integration.is_suspended(job)
    found = {each["name"]: each for each in integration.pod_sets(job) if each["name"] != "submitter"}
    containers = {name: each["template"]["spec"]["containers"][0] for name, each in found.items()}
    counted = {name: (each["count"], containers[name]["resources"]["requests"]) for name, each in found.items()}
    assert counted == pod_sets


def test_ray_job_runs_the_command_as_its_entrypoint(batchyard: Batchyard) -> None:
    spec = printed_job(batchyard, "--ray", "2")["spec"]
    assert spec["entrypoint"] == "python 'a b.py'"
    assert spec["shutdownAfterJobFinishes"] is True  # Kueue requires this


def test_array_is_an_indexed_job_with_retries_for_each_index(batchyard: Batchyard) -> None:
    spec = printed_job(batchyard, "--array", "100%10", "--backoff-limit", "2")["spec"]
    expected = {"completions": 100, "parallelism": 10, "completionMode": "Indexed", "backoffLimitPerIndex": 2}
    assert spec.items() >= expected.items()
    assert "backoffLimit" not in spec


def test_array_may_start_in_part(batchyard: Batchyard) -> None:
    job = printed_job(batchyard, "--array", "9", "--partial-start")
    assert job["metadata"]["annotations"] == {
        "kueue.x-k8s.io/elastic-job": "true",
        "kueue.x-k8s.io/elastic-job-scale-up-strategy": "partial",
        "batchyard.dev/partial-start": "true",
    }


def test_dependencies_become_an_annotation(batchyard: Batchyard) -> None:
    job = printed_job(batchyard, "--after", "ok:a,any:jobset/b", "--after", "notok:c")
    assert job["metadata"]["annotations"] == {"batchyard.dev/after": "ok:a,any:jobset/b,notok:c"}
