"""`batchyard submit` without a server: its dry run and its errors."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

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
        pytest.param(("--", "true"), 2, "--queue", id="no queue"),
        pytest.param(("--queue", "q", "-e", "A", "--", "true"), 2, "use the form NAME=VALUE", id="no value"),
        pytest.param(("--queue", "q", "-o", "yaml", "--", "true"), 2, "--output yaml requires --dry-run", id="yaml"),
        pytest.param(
            ("--queue", "q", "--data-dir", "a", "--kubeconfig", "b", "--", "true"),
            2,
            "select two different clusters",
            id="both",
        ),
        pytest.param(("--queue", "q", "--cpu", "two", "--", "true"), 1, "resources.requests[cpu]", id="a quantity"),
        pytest.param(("--queue", "q", "--name", "A_b", "--", "true"), 1, "metadata.name", id="a name"),
        pytest.param(("--queue", "q", "none", "--", "true"), 1, "none is not a folder", id="no folder"),
        pytest.param(
            ("--queue", "q", "--data-dir", "none", "--", "true"),
            1,
            "no platform runs in none: start a platform with `batchyard up`",
            id="no platform",
        ),
        pytest.param(("--queue", "q", "--kubeconfig", "none", "--", "true"), 1, "no such file", id="no file"),
    ],
)
def test_invalid_submit_is_reported_with_remedy(
    batchyard: Batchyard, arguments: tuple[str, ...], code: int, reported: str
) -> None:
    done = batchyard("submit", *arguments, KUBECONFIG="")
    assert done.returncode == code
    assert reported in " ".join(done.stderr.split())
