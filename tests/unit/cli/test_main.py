"""The command line as a process: exit codes and output streams."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import make
from batchyard.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FIRST_STEPS = "examples/first-steps"
LIVELOCK = "tests/unit/sim/livelock.yaml"
QUEUE = (ROOT / FIRST_STEPS / "platform.yaml").read_text("utf-8")

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]


def test_tables_go_to_stdout_and_summary_to_stderr(batchyard: Batchyard) -> None:
    done = batchyard("simulate", FIRST_STEPS)
    assert done.returncode == 0
    assert done.stdout.startswith("# summary\nAll 3 Workloads finished, the last after 1m1s.\n")
    assert "The most used quota (default-flavor cpu) was 98% in use.\n" in done.stdout
    assert "team        train-c   Complete   2/2           30s        59s\n" in done.stdout
    assert "\nNAME         COHORT   STRATEGY" in done.stdout
    summary = "batchyard: 1m1s of virtual time; Workloads: 3 finished, 0 admitted, 0 pending; 0 preemptions\n"
    assert done.stderr == summary


def test_event_log_on_stdout_replaces_tables(batchyard: Batchyard) -> None:
    done = batchyard("simulate", FIRST_STEPS, "--events", "-")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == '{"time":0,"event":"Created","workload":"team/job-train-a-bafec"}'
    assert lines[-1] == '{"time":61,"event":"Final","pending":[],"admitted":[]}'
    assert [json.loads(line)["time"] for line in lines] == sorted(json.loads(line)["time"] for line in lines)


def test_event_log_is_written_to_file_beside_output(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("simulate", FIRST_STEPS, "--events", tmp_path / "log", "--until", "90s", "-o", "json")
    last = json.loads((tmp_path / "log").read_text("utf-8").splitlines()[-1])
    assert (last["event"], last["time"]) == ("Final", 90)
    kinds = [item["kind"] for item in json.loads(done.stdout)["items"]]
    assert kinds == ["ClusterQueue", "LocalQueue", *["Workload"] * 3, *["Job"] * 3]


def test_wide_output_adds_columns_like_kubectl(batchyard: Batchyard) -> None:
    assert "CONTAINERS   IMAGES" in batchyard("simulate", FIRST_STEPS, "-o", "wide").stdout


def test_manifests_are_read_from_stdin(batchyard: Batchyard) -> None:
    done = batchyard("simulate", "-", stdin=QUEUE)
    assert (done.returncode, "team-queue" in done.stdout) == (0, True)


def test_empty_input_prints_no_resources_found(batchyard: Batchyard) -> None:
    assert batchyard("simulate", "-", stdin="# nothing\n").stdout == "No resources found\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"\x7fELF\xff", "the file is not text: byte 4 is not UTF-8", id="binary"),
        pytest.param(b"a: b: c\n", ":1: mapping values are not allowed", id="bad YAML"),
        pytest.param(b'{"kind": "Job"', ":1: did not find expected", id="bad JSON"),
        pytest.param(b"- 1\n", ":1: a list is not an object", id="no object"),
        pytest.param(b"kind: Jobb\napiVersion: batch/v1\n", "did you mean Job (batch/v1)?", id="unknown kind"),
        pytest.param(QUEUE.replace("nominalQuota: 4", "nominalQuota: x").encode(), "nominalQuota", id="bad quantity"),
    ],
)
def test_invalid_manifest_is_reported_with_its_place(
    batchyard: Batchyard, tmp_path: Path, content: bytes, expected: str
) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    done = batchyard("simulate", tmp_path, FIRST_STEPS)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{tmp_path}/bad.yaml")
    assert expected in done.stderr
    assert done.stderr.endswith("nothing was run\n")
    assert "Traceback" not in done.stderr


def test_all_errors_are_reported_together(batchyard: Batchyard, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_text("kind: A\n---\nkind: B\n")
    done = batchyard("simulate", "none.yaml", tmp_path / "empty", tmp_path / "bad.yaml")
    assert done.returncode == 1
    places = [line.partition(": ")[0].rpartition("/")[2] for line in done.stderr.splitlines()[:3]]
    assert places == ["none.yaml", "empty", "bad.yaml:1 A"]
    assert "bad.yaml:3 B: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simulate"], "nothing to simulate"),
        (["simulate", FIRST_STEPS, "--until", "soon"], "'soon' is not a duration; write it as 90s, 1h30m or 0.5s"),
        (["simulate", FIRST_STEPS, "--until", "999999999h"], "more than ten years"),
        (["simulate", FIRST_STEPS, "--output", "xml"], "'xml'"),
        (["simulate", FIRST_STEPS, "--seed", "x"], "not a whole number"),
        (["simulate", FIRST_STEPS, "--events", "-", "-o", "json"], "remove --output"),
        (["simulate", FIRST_STEPS, "--nodes", "c.yaml"], "No such option"),
        (["guide", "--step", "next"], "'next'"),
        (["fly"], "No such command 'fly'"),
        (["--fly"], "No such option"),
    ],
)
def test_wrong_usage_exits_with_2(batchyard: Batchyard, arguments: list[str], expected: str) -> None:
    done = batchyard(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_unwritable_event_log_is_reported(batchyard: Batchyard) -> None:
    done = batchyard("simulate", FIRST_STEPS, "--events", "none/log")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("none/log: cannot write the event log: No such file or directory")


def test_help_lists_commands_and_exit_codes(batchyard: Batchyard) -> None:
    done = batchyard("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("simulate", "guide", "Exit codes: 0 success"))


def test_version_matches_package(batchyard: Batchyard) -> None:
    assert batchyard("--version").stdout == "batchyard 0.2.0\n"


@pytest.mark.parametrize("path", ["examples/preemption", "examples/fair-sharing", LIVELOCK])
def test_output_is_independent_of_hash_seed(batchyard: Batchyard, path: str, tmp_path: Path) -> None:
    arguments = ("simulate", path, "--until", "200s", "--output", "json", "--events")
    runs = [batchyard(*arguments, tmp_path / seed, PYTHONHASHSEED=seed) for seed in "01"]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stderr == runs[1].stderr
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_loop_is_reported_and_run_continues(batchyard: Batchyard) -> None:
    done = batchyard("simulate", LIVELOCK)
    assert done.returncode == 0
    assert "in the cohort of pair preempt each other endlessly: team/elastic preempts team/rigid" in done.stderr
    assert "the run continued after the loops" in done.stderr


def test_loop_stops_run_with_exit_code_1_on_request(batchyard: Batchyard) -> None:
    done = batchyard("simulate", LIVELOCK, "--on-loop", "stop", "--events", "-")
    assert done.returncode == 1
    assert "the run stopped at the loop" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "Final"


def test_closed_stdout_ends_run_without_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "batchyard", "simulate", FIRST_STEPS]
    for option in ([], ["--events", "-"]):
        done = subprocess.run([*command, *option], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, b"Traceback" in done.stderr) == (141, False), done.stderr
    os.close(writing)


def interrupted_run(tmp_path: Path, *options: str) -> tuple[int, str, str]:
    """Start a long run, interrupt it once its event log has begun, and return its exit code, output and remarks."""
    pods = make.pod_set(count=4, template=make.pod_template({"cpu": 1}, restartPolicy="Never"))
    work = {
        "spec": {"queueName": "jobs", "podSets": [pods]},
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
    }
    metadata = {"namespace": "team", "annotations": {"batchyard.dev/runtime": "1s"}}
    many = [json.dumps({**work, "metadata": {**metadata, "name": f"w{number}"}}) for number in range(6000)]
    (tmp_path / "many.yaml").write_text("\n".join([f"{QUEUE}---", *many]))
    log = tmp_path / "log"
    os.mkfifo(log)
    command = [sys.executable, "-m", "batchyard", "simulate", str(tmp_path / "many.yaml"), "--events", str(log)]
    with subprocess.Popen(
        [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        with log.open("rb") as events:
            events.readline()
            running.send_signal(signal.SIGINT)
            events.read()
        printed, reported = running.communicate(timeout=60)
    return running.returncode, printed, reported


def test_interrupted_run_prints_results_so_far(tmp_path: Path) -> None:
    code, printed, reported = interrupted_run(tmp_path)
    assert code == main.INTERRUPTED_EXIT_CODE
    assert "Interrupted after" in printed.partition("# summary\n")[2]
    assert "batchyard: interrupted: the results are those up to the interrupt\n" in reported
    assert "Traceback" not in reported


def test_interrupted_run_prints_document_so_far(tmp_path: Path) -> None:
    code, printed, _ = interrupted_run(tmp_path, "--output", "json")
    summary = json.loads(printed)["summary"]
    assert (code, summary["ending"]) == (main.INTERRUPTED_EXIT_CODE, "interrupted")
    assert summary["overall"]["finished"] < 6000


def test_internal_error_is_reported_without_traceback() -> None:
    code = (
        "import sys, batchyard.cli.app as a, batchyard.cli.main as m\n"
        "def fail(): raise KeyError('lost')\n"
        "a.app = fail\n"
        "m.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("batchyard: internal error (a bug in batchyard): KeyError: 'lost'")
    assert "Traceback" not in done.stderr
