"""The daily commands on a running platform, and the defaults that `submit` derives from the platform."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

ROOT = Path(__file__).parents[2]
QUEUES = (ROOT / "examples" / "training" / "platform.yaml").read_text("utf-8")
GPU_QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: a100}
spec:
  nodeLabels: {cloud.google.com/gke-accelerator: nvidia-tesla-a100}
  nodeTaints: [{key: spot, value: "true", effect: NoSchedule}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: gpus}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: a100
      resources: [{name: cpu, nominalQuota: 8}, {name: nvidia.com/gpu, nominalQuota: 8}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: gpus, namespace: default}
spec: {clusterQueue: gpus}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: second, namespace: team-b}
spec: {clusterQueue: cq-team-b}
"""
LONG = ("--annotation", "batchyard.dev/runtime=36000s")
_ENDS_WITHIN = 120
#: How often a program's output is read in vain: it draws about one frame a second.
_READS_MAX = 300


class Yard(NamedTuple):
    """A platform with jobs of team-a: `first` runs with two pods, `next` waits before `large`."""

    running: UpProcess

    def run(self, *arguments: str, user: str = "") -> "subprocess.CompletedProcess[str]":
        """The finished command, as the owner or as another user."""
        folder = self.running.kubeconfig.parent
        cluster = (
            ["--kubeconfig", str(folder / "users" / f"{user}.kubeconfig")] if user else ["--data-dir", str(folder)]
        )
        command = [sys.executable, "-m", "batchyard", arguments[0], *cluster, *arguments[1:]]
        piped = subprocess.PIPE
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=piped, stderr=piped, text=True, timeout=_ENDS_WITHIN, check=False
        )

    def output(self, *arguments: str) -> str:
        """What the command prints, which succeeds."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, *arguments: str, user: str = "") -> str:
        """What the command reports, which fails."""
        done = self.run(*arguments, user=user)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr

    def job(self, name: str) -> Any:
        """The row of a job of team-a."""
        items = json.loads(self.output("jobs", "-n", "team-a", "-o", "json"))["items"]
        return next(item for item in items if item["name"] == name)

    def submit(self, name: str, *options: str, namespace: str = "team-a") -> None:
        """Submit a job that runs for hours."""
        self.output("submit", "--detach", "-n", namespace, "--name", name, *LONG, *options, "--", "true")

    def wait_for(self, condition: str, name: str) -> None:
        """Wait for a field of a job of team-a."""
        self.running.kubectl("wait", f"--for={condition}", name, "-n", "team-a", "--timeout=60s")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with UpProcess(tmp_path_factory.mktemp("platform"), "--speed", "10x", "--sync", "process") as started:
        started.kubectl("apply", "-f", "-", sent=QUEUES)
        started.kubectl("apply", "-f", "-", sent=GPU_QUEUES)
        yard = Yard(started)
        yard.submit("first", "--completions", "2", "--cpu", "500m")
        yard.wait_for("jsonpath={.status.ready}=2", "job/first")
        yard.submit("next", "--cpu", "2", "--priority", "low-priority")
        yard.submit("large", "--cpu", "2")
        yield yard


def test_jobs_lists_state_pods_and_reason(yard: Yard) -> None:
    header, *rows = yard.output("jobs", "-n", "team-a").splitlines()
    assert header.split() == ["JOB", "QUEUE", "STATE", "SINCE", "PODS", "NODES", "REASON"]
    first = next(row.split() for row in rows if row.startswith("job/first"))
    assert (first[2], first[4]) == ("Running", "2/2")
    assert yard.job("large")["state"] == "Pending"
    assert "couldn't assign flavors" in yard.job("next")["reason"]
    assert "team-a      job/first" in yard.output("jobs", "-A")
    assert yard.output("jobs") == "No resources found\n"


def test_queue_shows_place_and_jobs_before(yard: Yard) -> None:
    text = yard.output("queue", "large", "-n", "team-a")
    assert text.startswith(
        "job/large has position 2 of 2 in ClusterQueue cq-team-a, and position 2 in LocalQueue lq-team-a of namespace "
    )
    assert re.search(r"\nstart: (likely in|not within a day) ", text)
    assert text.splitlines()[-1].split()[:6] == ["1", "job/next", "team-a", "lq-team-a", "100", "2"]
    answer = json.loads(yard.output("queue", "job/next", "-n", "team-a", "--no-eta", "-o", "json"))
    assert (answer["placeInClusterQueue"], answer["ahead"], "forecast" in answer) == (1, [], False)
    assert "does not wait: it has been Running" in yard.output("queue", "first", "-n", "team-a")


def test_queue_without_name_lists_pending_jobs(yard: Yard) -> None:
    rows = yard.output("queue", "-A").splitlines()[1:]
    assert [row.split()[:5] for row in rows] == [
        ["team-a", "lq-team-a", "1", "1", "job/next"],
        ["team-a", "lq-team-a", "2", "2", "job/large"],
    ]
    assert yard.output("queue", "-n", "team-b") == "no pending jobs\n"


def test_queue_reports_what_a_team_member_may_not_see(yard: Yard) -> None:
    folder = yard.running.kubeconfig.parent
    yard.running.kubectl("create", "rolebinding", "anna", "--clusterrole=view", "--user=anna", "--namespace=team-a")
    create_user = [sys.executable, "-m", "batchyard", "user", "anna", "-n", "team-a", "--data-dir", str(folder)]
    subprocess.run(create_user, check=True, capture_output=True)
    done = yard.run("queue", "large", "--no-eta", user="anna")
    assert done.stdout.startswith("job/large has position 2 in ClusterQueue cq-team-a, and position 2 in LocalQueue"), (
        done.stderr
    )
    assert "note: no permission to get clusterqueues/cq-team-a/pendingworkloads" in done.stdout
    assert "no permission to list workloads.kueue.x-k8s.io in all namespaces" in yard.error("jobs", "-A", user="anna")
    assert "ask an administrator for permission to delete Jobs there" in yard.error(
        "cancel", "large", "--yes", user="anna"
    )


def test_team_member_sees_ages_by_the_time_of_the_platform(yard: Yard) -> None:
    folder = yard.running.kubeconfig.parent
    yard.running.kubectl("create", "rolebinding", "ben", "--clusterrole=view", "--user=ben", "--namespace=team-a")
    create_user = [sys.executable, "-m", "batchyard", "user", "ben", "-n", "team-a", "--data-dir", str(folder)]
    subprocess.run(create_user, check=True, capture_output=True)
    (first,) = [row for row in yard.run("jobs", user="ben").stdout.splitlines() if row.startswith("job/first")]
    assert re.fullmatch(r"(\d+[smhd])+", first.split()[3]), first


def test_logs_have_prefixes_and_can_be_selected(yard: Yard) -> None:
    lines = yard.output("logs", "first", "-n", "team-a").splitlines()
    assert [re.sub(r"-\w+\] .*Z ", "] ", line)[:20] for line in lines] == [
        "[first-0] started: a",
        "[first-1] started: a",
    ]
    one = yard.output("logs", "job/first", "-n", "team-a", "--index", "1", "--tail", "1").splitlines()
    assert [line.split()[1] for line in one] == ["started:"]
    assert "no pod with index 7; it has 0, 1" in yard.error("logs", "first", "-n", "team-a", "--index", "7")
    assert "has no pods; it is Pending" in yard.error("logs", "large", "-n", "team-a")


def test_logs_follow_ends_with_job(yard: Yard) -> None:
    short = ("--annotation", "batchyard.dev/runtime=40s", "--cpu", "500m", "--name", "short", "--detach")
    yard.output("submit", "-n", "team-b", "--queue", "lq-team-b", *short, "--", "true")
    assert [line.split()[1] for line in yard.output("logs", "short", "-n", "team-b", "-f").splitlines()] == [
        "started:",
        "finished:",
    ]


def test_missing_job_is_found_elsewhere_or_by_similar_name(yard: Yard) -> None:
    message = "batchyard: job first not found in namespace default; found in team-a: use -n team-a\n"
    assert yard.error("queue", "first") == message
    assert "; similar names: first" in yard.error("logs", "frist", "-n", "team-a")
    assert "similar names: high-priority" in yard.error("priority", "next", "hihg-priority", "-n", "team-a")


def test_priority_changes_place_but_not_of_running_job_without_class(yard: Yard) -> None:
    done = yard.output("priority", "large", "high-priority", "-n", "team-a")
    assert "WorkloadPriorityClass high-priority, priority 1000 (before: priority 0)" in done
    yard.wait_for("jsonpath={.spec.priority}=1000", f"workload/{yard.job('large')['workload']}")
    assert yard.output("queue", "-n", "team-a").splitlines()[1].split()[3] == "job/large"
    assert "first run `batchyard suspend job/first -n team-a`" in yard.error(
        "priority", "first", "low-priority", "-n", "team-a"
    )


def test_suspend_stops_job_and_resume_queues_it_again(yard: Yard) -> None:
    yard.submit("paused", "--cpu", "500m", "--queue", "lq-team-b", namespace="team-b")
    team = ("-n", "team-b")
    assert "job/paused in namespace team-b suspended: " in yard.output("suspend", "paused", *team)
    yard.running.kubectl("wait", "--for=jsonpath={.spec.suspend}=true", "job/paused", *team, "--timeout=60s")
    assert "is already suspended" in yard.output("suspend", "job/paused", *team)
    assert "resumed: it is queued again" in yard.output("resume", "paused", *team)
    yard.running.kubectl("wait", "--for=jsonpath={.spec.suspend}=false", "job/paused", *team, "--timeout=60s")
    assert "cancelled; it had been " in yard.output("cancel", "paused", *team, "--yes")


def test_cancel_asks_and_deletes_with_pods(yard: Yard) -> None:
    yard.submit("one")
    yard.submit("two")
    assert "no terminal to ask for confirmation: use --yes" in yard.error("cancel", "one", "two", "-n", "team-a")
    assert "job missing not found" in yard.error("cancel", "one", "missing", "-n", "team-a", "--yes")
    done = yard.output("cancel", "one", "two", "-n", "team-a", "--yes").splitlines()
    assert [line.partition(" in ")[0] for line in done] == ["job/one", "job/two"]
    assert "not found" in yard.running.kubectl("get", "job", "one", "-n", "team-a", fails=True)


def test_top_prints_one_frame_for_scripts(yard: Yard) -> None:
    text = yard.output("top", "--once")
    assert [line for line in text.splitlines() if line.isalpha()] == ["Queues", "Waiting", "Running", "Nodes", "none"]
    assert re.search(r"cq-team-a +this-machine +cpu +#{10} 1/1 ", text)
    assert "top needs a terminal: use --once" in yard.error("top")


class Screen:
    """A terminal of a fixed size with a running program, and the frames that the program draws."""

    def __init__(self, descriptor: int, height: int) -> None:
        self._descriptor = descriptor
        self._height = height
        self._received = b""

    def press(self, keys: str) -> None:
        """Send keys to the program."""
        os.write(self._descriptor, keys.encode())

    def wait_for(self, text: str) -> list[str]:
        """Wait until a whole frame contains the text; return its lines."""
        for _ in range(_READS_MAX):
            frames = [re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", each) for each in self._received.split(b"\x1b[H")[-3:]]
            for frame in frames:
                lines = frame.decode("utf-8", "ignore").splitlines()
                if len(lines) == self._height and all(word in "\n".join(lines) for word in (text, "quit")):
                    self._received = b""
                    return lines
            ready, _, _ = select.select([self._descriptor], [], [], _ENDS_WITHIN)
            assert ready, f"no {text!r} in: {frames[-1].decode('utf-8', 'replace')}"
            self._received += os.read(self._descriptor, 65536)
        raise AssertionError(f"no {text!r} in: {frames[-1].decode('utf-8', 'replace')}")


@contextmanager
def top_on_screen(yard: Yard, width: int, height: int) -> Iterator[tuple[Screen, "subprocess.Popen[bytes]"]]:
    """A running `batchyard top` on a pseudo-terminal."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    folder = str(yard.running.kubeconfig.parent)
    command = [sys.executable, "-m", "batchyard", "top", "--data-dir", folder]
    # The test runner sets the size of its own terminal, which would hide that of the pseudo-terminal.
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    environment["TERM"] = "xterm-256color"
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment) as process:
        os.close(inner)
        try:
            yield Screen(outer, height), process
        finally:
            process.kill()
            os.close(outer)


def test_top_switches_filters_pauses_and_quits(yard: Yard) -> None:
    with top_on_screen(yard, 80, 24) as (screen, process):
        lines = screen.wait_for("cq-team-b")
        assert (len(lines), max(map(len, lines))) == (24, 80)
        assert lines[1].startswith("[Queues ")
        screen.press("\t")
        screen.wait_for("job/large")
        screen.press("/next\r")
        lines = screen.wait_for("filter: next (Esc")
        assert [line.split()[0] for line in lines[2:-1] if line.strip()] == ["JOB", "job/next"]
        screen.press("\x1b[Cp")
        screen.wait_for("paused")
        screen.press("q")
        assert process.wait(_ENDS_WITHIN) == 0


def test_top_shows_all_sections_on_wide_terminal(yard: Yard) -> None:
    with top_on_screen(yard, 200, 50) as (screen, process):
        lines = screen.wait_for("job/first")
        assert (len(lines), max(map(len, lines))) == (50, 200)
        assert all(any(title in line for line in lines) for title in ("job/large", "cq-team-b", "NODE "))
        screen.press("q")
        assert process.wait(_ENDS_WITHIN) == 0


def test_submit_finds_the_only_queue_and_gpu_model(yard: Yard) -> None:
    taint = "--toleration spot=true:NoSchedule"
    gpus = ("--name", "gpu", "--gpus", "a100:1", *LONG, "--detach")
    assert f"taint spot=true:NoSchedule; add {taint}" in yard.error("submit", *gpus, "--", "true")
    done = yard.run("submit", *gpus, *taint.split(), "--", "true")
    assert "batchyard: queue gpus, the only one in namespace default\n" in done.stderr
    assert "GPU model a100: flavor a100, node label cloud.google.com/gke-accelerator=nvidia-tesla-a100" in done.stderr
    yard.running.kubectl("wait", "--for=jsonpath={.status.ready}=1", "job/gpu", "--timeout=60s")
    several = yard.error("submit", "-n", "team-b", "--", "true")
    assert "namespace team-b has 2 LocalQueues: add --queue with one of lq-team-b, second" in several
    assert "namespace none has no LocalQueue" in yard.error("submit", "-n", "none", "--", "true")
