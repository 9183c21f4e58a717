"""The decision ledger of a platform: decisions can be listed, even after `kill -9`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "preemption"
NAMESPACES = "".join(
    f"---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n" for name in ("research", "production")
)


def decisions(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The entries that `batchyard decisions` lists."""
    reported = (sys.executable, "-m", "batchyard", "decisions", "--data-dir", str(folder), "-o", "json", *arguments)
    done = subprocess.run(reported, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory of a platform that was killed after it recorded a preemption."""
    with UpProcess(tmp_path) as platform:
        platform.kubectl("apply", "-f", "-", sent=NAMESPACES)
        platform.kubectl("apply", "-f", str(EXAMPLE / "platform.yaml"))
        *studies, release, deadline = (EXAMPLE / "jobs.yaml").read_text("utf-8").split("\n---\n")
        platform.kubectl("apply", "-f", "-", sent="\n---\n".join(studies))  # they reserve quota before the other Jobs
        study = ("job/study-4", "--namespace", "research", "--timeout=30s")
        platform.kubectl("wait", "--for=jsonpath={.status.active}=2", *study)
        platform.kubectl("apply", "-f", "-", sent=f"{release}\n---\n{deadline}")
        job = ("job/release", "--namespace", "production", "--timeout=30s")
        platform.kubectl("wait", "--for=jsonpath={.status.active}=4", *job)
        before = decisions(tmp_path, "-A")
        platform.kill()
    (tmp_path / "before.json").write_text(json.dumps(before), "utf-8")
    return tmp_path


def test_ledger_keeps_decisions_and_continues_numbering_after_kill(folder: Path) -> None:
    before = json.loads((folder / "before.json").read_text("utf-8"))
    with UpProcess(folder) as platform:
        after = decisions(folder, "-A", "--until", before[-1]["time"])
        assert after == [each for each in before if each["time"] < before[-1]["time"]]
        platform.kubectl("delete", "job", "release", "--namespace", "production")
        platform.kubectl("create", "job", "more", "--image", "busybox")
        numbers = [int(each["metadata"]["name"]) for each in decisions(folder, "-A")]
        assert numbers == sorted(set(numbers))


def test_preemption_decision_names_preemptor_and_rule(folder: Path) -> None:
    with UpProcess(folder):
        preempted = decisions(folder, "-A", "--reason", "Preempted")
        released = decisions(folder, "job/release", "-n", "production", "--reason", "QuotaReserved")
    by = {each["details"]["preemptor"]["workload"] for each in preempted}
    rules = {target["rule"] for each in preempted for target in each["details"]["targets"]}
    (reserved,) = released
    assert f"production/{reserved['regarding']['name']}" in by
    assert "InCohortReclamation" in rules
    spared = {each["why"] for entry in preempted for each in entry["details"]["spared"]}
    assert "the other victims free enough quota" in spared
    assert reserved["details"]["podSets"][0]["flavors"] == {"cpu": "default-flavor"}


def test_log_entry_contains_number_of_decision(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--log-level", "info", "--log-format", "json") as platform:
        platform.kubectl("create", "job", "one", "--image", "busybox")
        lines = (json.loads(line) for line in platform.reported if line.startswith("{"))
        reported = next(line for line in lines if line.get("reason") == "SuccessfulCreate")
        (kept,) = decisions(tmp_path, "job/one", "--reason", "SuccessfulCreate")
    assert kept["metadata"]["name"] == str(reported["decision"])
    assert (kept["time"], kept["message"]) == (reported["at"], reported["message"].partition(": ")[2])
