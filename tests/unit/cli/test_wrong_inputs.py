"""Messages of the commands about wrong inputs: each names the place, the cause and the remedy."""

from pathlib import Path

import pytest

from unit.cli.conftest import Batchyard

FIRST_STEPS = "examples/first-steps"
QUEUES = f"{FIRST_STEPS}/platform.yaml"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--by", "user"), "Invalid value for '--by': 'user' is not one of 'queue', 'team', 'priority', 'flavor'."),
        (("--seed", "abc"), "Invalid value for '--seed': the value is not a whole number; use one such as 1"),
    ],
)
def test_malformed_value_is_reported_in_plain_words(
    batchyard: Batchyard, arguments: tuple[str, ...], text: str
) -> None:
    done = batchyard("simulate", FIRST_STEPS, *arguments)
    assert done.returncode == 2
    assert f"Error: {text}\n" in done.stderr


def test_input_without_jobs_is_reported(batchyard: Batchyard) -> None:
    done = batchyard("simulate", QUEUES)
    assert done.returncode == 0
    assert f"{QUEUES}: no jobs to run; add files with objects of these kinds: Job, JobSet" in done.stderr
    assert "no jobs to run" not in batchyard("simulate", FIRST_STEPS).stderr


@pytest.mark.parametrize(
    ("deleted", "text"),
    [
        ("job/team/train-x", "job train-x not found in namespace team; similar names: train-c, train-b, train-a"),
        ("job/train-a", "job train-a not found in namespace default; found in team (use --delete job/team/train-a)"),
    ],
)
def test_missing_object_to_delete_is_reported_without_a_result(batchyard: Batchyard, deleted: str, text: str) -> None:
    done = batchyard("whatif", FIRST_STEPS, "--delete", deleted)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [f"--delete: {text}", "batchyard: nothing was compared"]


def test_time_after_last_event_is_reported(batchyard: Batchyard) -> None:
    asked = ("why", "job/train-a", "-n", "team", "-f", FIRST_STEPS)
    done = batchyard(*asked, "--at", "10h")
    assert done.returncode == 0
    assert "before --at 10h: its end is explained; set an earlier --at for an earlier state\n" in done.stderr
    assert batchyard(*asked, "--at", "20s").stderr == ""


def test_state_file_without_jobs_is_reported(batchyard: Batchyard) -> None:
    done = batchyard("eta", "job/train-a", "-n", "team", "-f", QUEUES)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{QUEUES}: the file has no job; write the state of a cluster with `batchyard snap")


def test_eta_of_job_in_manifests_names_the_simulation_that_answers(batchyard: Batchyard) -> None:
    done = batchyard("eta", "job/train-a", "-n", "team", "-f", "examples/first-steps/jobs.yaml")
    assert done.returncode == 1
    file = "examples/first-steps/jobs.yaml"
    assert done.stderr == (
        f"batchyard: job team/train-a has no Workload, because {file} holds manifests, not the state of a cluster; "
        f"`batchyard why job/train-a -n team -f {file} --at 10m` simulates them, and explains it at that time\n"
    )


def test_eta_of_unsupported_kind_is_wrong_usage(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("eta", "pod/x", "--data-dir", tmp_path)
    assert done.returncode == 2
    assert "'pod/x' is not supported: use workload/NAME, job/NAME or jobset/NAME" in done.stderr


def test_missing_platform_is_reported_without_options_that_the_command_lacks(
    batchyard: Batchyard, tmp_path: Path
) -> None:
    done = batchyard("snapshot", "--data-dir", tmp_path, tmp_path / "state.json", KUBECONFIG="")
    assert done.returncode == 1
    assert "start a platform with `batchyard up`, set its --data-dir, or select a cluster with" in done.stderr
    assert "--state" not in done.stderr


def test_unreachable_cluster_is_reported_with_its_address(batchyard: Batchyard, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nusers: [{name: u, user: {}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: a, context: {cluster: c, user: u}}]\n"
    )
    remedy = "check that the server runs and that the kubeconfig has its address"
    for command in (("snapshot", tmp_path / "state.json"), ("why", "job/a"), ("jobs",)):
        done = batchyard(*command, "--kubeconfig", kubeconfig)
        assert done.returncode == 1
        assert done.stderr.startswith("batchyard: http://127.0.0.1:1: no response: ")
        assert done.stderr.endswith(f"Connection refused; {remedy}\n")


def test_job_of_one_configuration_is_reported_with_its_line(batchyard: Batchyard, tmp_path: Path) -> None:
    jobs = Path(FIRST_STEPS, "jobs.yaml").read_text("utf-8")
    (tmp_path / "b.yaml").write_text(Path(QUEUES).read_text("utf-8") + "---\n" + jobs.replace("train-b", "train-x"))
    done = batchyard("compare", FIRST_STEPS, tmp_path / "b.yaml")
    assert done.returncode == 1
    line = jobs[: jobs.index("train-b")].count("\n") - 2
    assert done.stderr.startswith(
        f"{FIRST_STEPS}/jobs.yaml:{line}: Job team/train-b at 1s is in first-steps, but not in"
    )


def test_second_definition_of_job_is_reported_with_line_of_first(batchyard: Batchyard, tmp_path: Path) -> None:
    job = Path(FIRST_STEPS, "jobs.yaml").read_text("utf-8").split("---\n")[0]
    path = tmp_path / "jobs.yaml"
    path.write_text(f"{job}---\n{job}")
    done = batchyard("simulate", QUEUES, path)
    assert f"warning: Job/team/train-a: this object is also defined in {path}:2: the version" in done.stderr
