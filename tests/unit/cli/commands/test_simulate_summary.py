"""The report of `batchyard simulate` about a run: summary, lint findings, run times, unknown queues, comparison."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PREEMPTION = "examples/preemption"
QUEUES = (ROOT / "examples" / "first-steps" / "platform.yaml").read_text("utf-8")
JOB = """
---
apiVersion: batch/v1
kind: Job
metadata: {name: train-%d, namespace: team, labels: {kueue.x-k8s.io/queue-name: %s}%s}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: train, resources: {requests: {cpu: 1}}}]
"""

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]


def manifests(tmp_path: Path, count: int, queue: str = "jobs", metadata: str = "") -> Path:
    """Write the queues of the first steps with some Jobs without a run time."""
    path = tmp_path / "jobs.yaml"
    path.write_text(QUEUES + "".join(JOB % (number, queue, metadata) for number in range(count)), "utf-8")
    return path


def test_table_is_bounded_and_wide_lists_all(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 40)
    short, wide = batchyard("simulate", path), batchyard("simulate", path, "-o", "wide")
    assert short.stdout.count("Complete") == 20
    assert "\n20 of 40 Jobs shown; all: -o wide\n" in short.stdout
    assert "\n20 of 40 Workloads shown; all: -o wide\n" in short.stdout
    assert wide.stdout.count("Complete") == 40
    assert "shown; all:" not in wide.stdout
    assert "NEVER ADMITTED" in wide.stdout
    assert "NEVER ADMITTED" not in short.stdout


def test_summary_is_in_json_and_grouped(batchyard: Batchyard) -> None:
    done = batchyard("simulate", PREEMPTION, "-o", "json", "--by", "team")
    summary = json.loads(done.stdout)["summary"]
    assert (summary["by"], [row["name"] for row in summary["groups"]]) == ("team", ["production", "research"])
    assert summary["overall"]["preemptions"] == 3


def test_pending_workloads_are_listed_with_reason(batchyard: Batchyard) -> None:
    printed = batchyard("simulate", "examples/fair-sharing", "--until", "5m").stdout
    rows = printed.partition("# pending Workloads\n")[2].partition("\n\n")[0]
    assert "cpu: 1 more needed in default-flavor" in rows
    assert "insufficient unused quota" not in rows
    wide = batchyard("simulate", "examples/fair-sharing", "--until", "5m", "-o", "wide").stdout
    assert "insufficient unused quota for cpu in flavor default-flavor, 1 more needed" in wide


def test_summary_pending_workloads_and_jobs_come_first(batchyard: Batchyard) -> None:
    printed = batchyard("simulate", "examples/fair-sharing", "--until", "5m").stdout
    parts = ["# summary\n", "# pending Workloads\n", " COMPLETIONS ", "# Workloads by ClusterQueue\n", " COHORT "]
    places = [printed.index(part) for part in parts]
    assert places == sorted(places)
    assert places[0] == 0


def test_missing_run_times_are_reported_unless_set(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 3)
    remark = "batchyard: 3 of 3 Jobs have no run time; 60s assumed: set --default-runtime, --runtimes or the annotation"
    assert remark in batchyard("simulate", path).stderr
    for option in ("--default-runtime", "--runtime"):
        done = batchyard("simulate", path, option, "2m")
        assert "no run time" not in done.stderr
        assert "the last after 2m." in done.stdout
        assert ("--runtime is the old name" in done.stderr) == (option == "--runtime")


def test_run_times_of_file_apply_and_unused_rows_are_reported(batchyard: Batchyard, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("train-0,5m\nother,1m\n")
    done = batchyard("simulate", manifests(tmp_path, 2), "--runtimes", tmp_path / "times.csv")
    assert f"runtimes: {tmp_path}/times.csv:2: 'other' is the first match of no job" in done.stderr
    assert "1 of 2 Jobs have no run time" in done.stderr
    assert "the last after 5m." in done.stdout


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a,soon\n", "times.csv:1:3: 'soon' is not a run time; use 90s"),
        (b"\xff", "times.csv: the file is not text: byte 0 is not UTF-8; save the file as UTF-8"),
        (None, "times.csv: cannot be read: No such file or directory; choose another file with --runtimes"),
    ],
)
def test_invalid_run_times_are_reported(
    batchyard: Batchyard, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / "times.csv").write_bytes(content)
    done = batchyard("simulate", manifests(tmp_path, 1), "--runtimes", tmp_path / "times.csv")
    assert (done.returncode, done.stdout) == (1, "")
    assert expected in done.stderr


def test_unknown_queue_is_error_with_nearest_name(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 3, "jbos")
    done = batchyard("simulate", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "LocalQueue jbos in namespace team does not exist: the job waits forever; did you mean jobs?" in done.stderr
    assert done.stderr.count("did you mean") == 1
    assert "batchyard: 3 objects name a queue that does not exist; nothing was run" in done.stderr
    lenient = batchyard("simulate", path, "--lenient", "--until", "1m")
    assert lenient.returncode == 0
    assert "3 pending" in lenient.stdout


def test_queue_that_is_created_later_is_known(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 1, "later")
    queue = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\nspec: {clusterQueue: team-queue}\n"
    metadata = "metadata: {name: later, namespace: team, annotations: {batchyard.dev/submit-at: 5m}}\n"
    path.write_text(f"{path.read_text('utf-8')}---\n{queue}{metadata}")
    done = batchyard("simulate", path)
    assert (done.returncode, "All" in done.stdout or "The only Workload finished" in done.stdout) == (0, True)


def test_unknown_cluster_queue_is_error(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 1)
    path.write_text(path.read_text("utf-8").replace("clusterQueue: team-queue", "clusterQueue: team-queu"))
    done = batchyard("simulate", path)
    assert done.returncode == 1
    assert "ClusterQueue team-queu does not exist" in done.stderr
    assert "did you mean team-queue?" in done.stderr


def test_worst_lint_findings_come_first(batchyard: Batchyard, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text((QUEUES + JOB % (0, "jobs", "")).replace("cpu: 1}", "cpu: 64}"), "utf-8")
    lines = batchyard("simulate", path).stderr.splitlines()
    assert lines[0].startswith("lint: 1 error")
    assert f"`batchyard lint {path}` lists all" in lines[0]
    assert lines[1].startswith(f"lint: {path}:")
    assert ": error: Job/team/train-0: " in lines[1]


def test_run_is_compared_with_report_and_with_json(batchyard: Batchyard, tmp_path: Path) -> None:
    report, document = tmp_path / "run.html", tmp_path / "run.json"
    path = manifests(tmp_path, 10)
    document.write_text(batchyard("simulate", path, "-o", "json", "--report", report).stdout)
    options = ("--default-runtime", "2m", "--compare-with")
    compared = [batchyard("simulate", path, *options, each) for each in (report, document)]
    for done, file in zip(compared, (report, document), strict=True):
        table = done.stdout.partition(f"# compared with {file}\n")[2]
        assert "mean wait" in table.partition("\n\n")[0]
    assert compared[0].stdout.replace(str(report), str(document)) == compared[1].stdout


def test_file_without_result_is_rejected(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("simulate", PREEMPTION, "--compare-with", tmp_path / "none.html")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be read: No such file or directory; check the path in --compare-with" in done.stderr


def test_summary_names_jobs_and_pods_without_priority_class(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 4)
    text = path.read_text("utf-8").replace("      restartPolicy", "      priorityClassName: high\n      restartPolicy")
    unqueued = JOB.replace("restartPolicy", "priorityClassName: low\n      restartPolicy") % (9, "jobs", "")
    pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: bare, namespace: team}\n"
    pod += "spec: {priorityClassName: low, containers: [{name: c, image: i}]}\n"
    path.write_text(text + unqueued.replace("kueue.x-k8s.io/queue-name", "other") + pod, "utf-8")
    done = batchyard("simulate", path)
    assert done.stdout.startswith(
        "# summary\nThe run had no Workloads.\n4 jobs (team/train-0, team/train-1, team/train-2, ...) have no "
        "Workload, because PriorityClass high does not exist: add it to the files.\nThe API server rejected pods of "
        "1 Job (team/train-9) and 1 pod (team/bare): no PriorityClass with name low was found.\n"
    )


def test_missing_priority_class_is_named_before_the_run(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 1)
    text = path.read_text("utf-8").replace("      restartPolicy", "      priorityClassName: high\n      restartPolicy")
    path.write_text(text, "utf-8")
    problem = "warning: Job/team/train-0: the PriorityClass high is not in these files"
    assert problem in batchyard("simulate", path).stderr
    assert "fix: add the PriorityClass to the files" in batchyard("lint", path).stdout


def test_undefined_namespace_is_created_with_a_note(batchyard: Batchyard, tmp_path: Path) -> None:
    path = manifests(tmp_path, 1, metadata=", annotations: {batchyard.dev/runtime: 5s}")
    path.write_text(path.read_text("utf-8").replace("namespace: team", "namespace: other"), "utf-8")
    done = batchyard("simulate", path)
    note = (
        "the files do not define Namespace other: the run creates it; for `kubectl apply`, run `kubectl create namesp"
    )
    assert note in done.stderr
    assert "The only Workload finished" in done.stdout
    assert "warning unknown-namespace" in batchyard("lint", path).stdout
    path.write_text(
        path.read_text("utf-8") + "---\n{apiVersion: v1, kind: Namespace, metadata: {name: other}}\n", "utf-8"
    )
    assert "do not define" not in batchyard("simulate", path).stderr
