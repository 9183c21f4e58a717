"""`batchyard platform create`, `status` and `destroy` on GKE, against stand-ins of the tools."""

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from batchyard.cli.options import ProgressFormat
from batchyard.cli.platform import drive
from batchyard.cli.platform.journal import FolderLock
from batchyard.cli.platform.step_runner import StepRunnerSettings
from batchyard.cli.platform.target import ClusterOptions
from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.render import render
from batchyard.provision.steps.cluster import ClusterConnection
from cloud_commands import PLATFORM, CloudProject, run_in_process

pytestmark = pytest.mark.slow

NO_CLUSTER = ClusterOptions("", "")
#: The effects of a complete create, in this order.
CREATED = [
    *(
        f"api {name}.googleapis.com"
        for name in ("cloudresourcemanager", "serviceusage", "cloudbilling", "iam", "storage")
    ),
    "bucket",
    "versions",
    "made network",
    "made cluster",
    "made pools",
    "pushed us-central1-docker.pkg.dev/project-1/small/trainer:v1",
    "applied manifests/00-engine",
    "applied manifests/20-teams",
    "applied manifests/30-flavors.yaml",
    "applied manifests/60-queues.yaml",
]
DESTROYED = ["stopped", "unmade pools", "unmade cluster", "unmade network"]


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CloudProject:
    return CloudProject(tmp_path, monkeypatch)


@cache
def small_work(project: str = "project-1") -> drive.RenderedPlatform:
    """Render the small platform in a project, once."""
    platform = read_platform(PlatformSource("platform.yaml", PLATFORM), project)
    work = drive.RenderedPlatform(platform, render(platform), Path())
    work.creation_steps(ClusterConnection("kubeconfig"))  # forked processes reuse the read manifests
    return work


def work_in(cloud: CloudProject, project: str = "project-1") -> drive.RenderedPlatform:
    """Return the rendered platform with this cloud's folder."""
    return replace(small_work(project), folder=cloud.out)


def request_of(
    cloud: CloudProject, is_confirmed: bool = True, skipped: frozenset[str] = frozenset()
) -> drive.PlatformRequest:
    settings = StepRunnerSettings(pace=0, skipped_steps=skipped)
    return drive.PlatformRequest(
        str(cloud.file), cloud.out, "", NO_CLUSTER, is_confirmed=is_confirmed, settings=settings
    )


def create_platform(cloud: CloudProject, project: str = "project-1", **options: object) -> int:
    """Run create in a new process; return its exit code."""
    request = request_of(cloud, **options)  # type: ignore[arg-type]
    return run_in_process(lambda: drive.run_create(work_in(cloud, project), request), cloud.reported)


def destroy_platform(cloud: CloudProject, is_unprotecting: bool = True, **options: object) -> int:
    """Run destroy in a new process; return its exit code."""
    request = request_of(cloud, **options)  # type: ignore[arg-type]
    return run_in_process(
        lambda: drive.run_destroy(work_in(cloud), request, is_unprotecting=is_unprotecting), cloud.reported
    )


def kill_at_each_call(cloud: CloudProject, work: Callable[[CloudProject], int]) -> int:
    """Kill the process at its first call, the next process at its second, and so on, until one completes."""
    for call in range(1, 500):
        cloud.inject_fault(call, "kill")
        if work(cloud) == 0:
            return call - 1
    raise AssertionError("no process completed: " + cloud.reported.read_text("utf-8"))


def test_create_makes_everything_in_order(cloud: CloudProject) -> None:
    assert create_platform(cloud) == 0
    assert cloud.effects == CREATED


def test_second_create_changes_nothing(cloud: CloudProject) -> None:
    create_platform(cloud)
    world = cloud.world()
    assert create_platform(cloud) == 0
    assert (cloud.effects, cloud.world()) == (CREATED, world)


def test_create_killed_at_any_call_completes_after_retries(cloud: CloudProject) -> None:
    assert kill_at_each_call(cloud, create_platform) > len(CREATED)
    assert Counter(cloud.effects) == Counter(CREATED)


def test_destroy_killed_at_any_call_completes_after_retries(cloud: CloudProject) -> None:
    create_platform(cloud)
    assert kill_at_each_call(cloud, destroy_platform) > len(DESTROYED)
    assert Counter(cloud.effects) == Counter([*CREATED, *DESTROYED])
    assert sorted(cloud.world()) == ["apis", "bucket", "stopped", "versions"]


@pytest.mark.parametrize("how", ["fail", "orphan"])
def test_create_resumes_after_failed_or_orphaned_command(
    cloud: CloudProject, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assert create_platform(cloud) == 0
    for call in cloud.failable:
        other = CloudProject(cloud.out / str(call), monkeypatch)
        other.inject_fault(call, how)
        assert create_platform(other) != 0
        other.clear_fault()
        assert create_platform(other) == 0, other.reported.read_text("utf-8")
        assert Counter(other.effects) == Counter(CREATED)


def test_failing_command_is_reported_with_log_and_remedy(cloud: CloudProject) -> None:
    cloud.inject_fault(13, "fail")
    assert create_platform(cloud) == 1
    reported = cloud.reported.read_text("utf-8")
    log = cloud.out / ".batchyard/logs/state-bucket.log"
    assert f"full log: {log}" in reported
    assert "ERROR: planted" in reported
    assert "choose another with spec.google.state.bucket" in reported
    assert "run the same command again to resume" in reported
    assert log.read_text("utf-8").endswith("ERROR: planted\n")


def test_completed_step_is_skipped_and_reported(cloud: CloudProject) -> None:
    cloud.inject_fault(20, "kill")
    create_platform(cloud)
    cloud.reported.unlink()
    assert create_platform(cloud) == 0
    reported = cloud.reported.read_text("utf-8")
    assert "the previous create did not finish" in reported
    assert "state-bucket: already done" in reported


def test_destroy_rejects_protected_cluster_before_any_change(cloud: CloudProject) -> None:
    create_platform(cloud)
    assert destroy_platform(cloud, is_unprotecting=False) == 1
    assert "use --unprotect" in cloud.reported.read_text("utf-8")
    assert cloud.effects == CREATED


def test_destroy_lists_remaining_resources_with_removal_commands(cloud: CloudProject) -> None:
    create_platform(cloud)
    cloud.reported.unlink()
    assert destroy_platform(cloud) == 0
    reported = cloud.reported.read_text("utf-8")
    assert "gcloud storage rm --recursive gs://project-1-small-state/" in reported
    assert "pvc-1\tus-central1-a\n  to remove: gcloud compute disks delete NAME --zone=ZONE" in reported
    assert "reservations" not in reported, "there are none"


def test_create_makes_nothing_billable_without_terminal_or_yes(cloud: CloudProject) -> None:
    assert create_platform(cloud, is_confirmed=False) == 1
    assert "use --yes" in cloud.reported.read_text("utf-8")
    assert "bucket" not in cloud.effects


def test_dry_run_runs_nothing_and_prints_every_command(cloud: CloudProject, capfd: pytest.CaptureFixture[str]) -> None:
    drive.run_create(work_in(cloud), drive.PlatformRequest(str(cloud.file), cloud.out, "", NO_CLUSTER, is_dry_run=True))
    printed = capfd.readouterr().out
    assert cloud.count == 0
    assert "\nterraform -chdir=terraform apply -input=false -no-color -lock-timeout=10m create.tfplan\n" in printed
    assert "\nKUBECONFIG=.batchyard/kubeconfig gcloud container clusters get-credentials small " in printed
    assert "{seen}" not in printed
    assert not (cloud.out / ".batchyard").exists()


def test_progress_is_reported_as_json_lines(cloud: CloudProject) -> None:
    request = drive.PlatformRequest(
        str(cloud.file), cloud.out, "", NO_CLUSTER, is_confirmed=True, progress_format=ProgressFormat.JSON
    )
    printed = cloud.out.parent / "printed"
    assert run_in_process(lambda: drive.run_create(work_in(cloud), request), cloud.reported, printed) == 0
    events = [json.loads(line) for line in printed.read_text("utf-8").splitlines()]
    assert {"event": "done", "step": "state-bucket"}.items() <= next(
        row for row in events if (row["event"], row["step"]) == ("done", "state-bucket")
    ).items()
    assert events[-1]["step"] == "final-check"


def test_missing_tool_is_reported_with_install_link(cloud: CloudProject) -> None:
    (cloud.tools / "gcloud").unlink()
    assert create_platform(cloud) == 1
    reported = cloud.reported.read_text("utf-8")
    assert "gcloud: program not found on the PATH" in reported
    assert "install the gcloud CLI: https://" in reported


def test_secrets_are_not_stored(cloud: CloudProject) -> None:
    create_platform(cloud)
    kept = [path for path in cloud.out.rglob("*") if path.is_file() and "SECRET" in path.read_text("utf-8")]
    assert kept == []
    assert "SECRET" not in cloud.reported.read_text("utf-8")


def test_second_concurrent_create_in_folder_is_rejected(cloud: CloudProject) -> None:
    with FolderLock(cloud.out, print_nothing):
        assert create_platform(cloud) == 1
    assert f"process {os.getpid()} is using this folder" in cloud.reported.read_text("utf-8")
    assert cloud.count == 0


def print_nothing(line: str) -> None:
    """Print nothing."""


def test_folder_belongs_to_one_project_until_destroy(cloud: CloudProject) -> None:
    create_platform(cloud)
    assert create_platform(cloud, project="project-2") == 1
    assert "folder belongs to platform small on project project-1" in cloud.reported.read_text("utf-8")
    destroy_platform(cloud)
    assert create_platform(cloud, project="project-2") == 0


def test_folder_of_existing_resources_belongs_to_their_project(cloud: CloudProject) -> None:
    create_platform(cloud)
    (cloud.out / ".batchyard" / "steps.jsonl").unlink()
    assert create_platform(cloud) == 0
    assert create_platform(cloud, project="project-2") == 1


def test_folder_of_another_platform_is_rejected_before_writing(cloud: CloudProject) -> None:
    create_platform(cloud)
    variables = (cloud.out / "terraform" / "terraform.tfvars").read_text("utf-8")
    assert create_platform(cloud, project="project-2") == 1
    assert (cloud.out / "terraform" / "terraform.tfvars").read_text("utf-8") == variables


def test_folder_without_created_resources_belongs_to_no_project(cloud: CloudProject) -> None:
    (cloud.tools / "terraform").rename(cloud.tools / "off")
    assert create_platform(cloud, project="project-2") == 1
    (cloud.tools / "off").rename(cloud.tools / "terraform")
    assert create_platform(cloud) == 0


def test_step_can_be_skipped(cloud: CloudProject) -> None:
    assert create_platform(cloud, skipped=frozenset({"apply-60-queues", "cluster-queues"})) == 0
    assert "applied manifests/60-queues.yaml" not in cloud.effects


def test_unknown_skipped_step_is_rejected(cloud: CloudProject) -> None:
    assert create_platform(cloud, skipped=frozenset({"aply-60-queues"})) == 1
    assert "unknown step aply-60-queues" in cloud.reported.read_text("utf-8")
    assert cloud.count == 0


def test_status_reports_present_missing_and_unknown_steps(
    cloud: CloudProject, capfd: pytest.CaptureFixture[str]
) -> None:
    cloud.inject_fault(25, "kill")
    create_platform(cloud)
    (cloud.state / "made.cluster").unlink()
    with pytest.raises(SystemExit) as ended:
        drive.run_status(work_in(cloud), request_of(cloud))
    rows = [line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()]
    lines = {what: word for word, what in rows}
    assert ended.value.code == 1
    assert lines["state-bucket"] == "present"
    assert lines["terraform-apply: 1 to add, 0 to change, 0 to destroy"] == "MISSING"
    assert lines["cluster-queues"] == "unknown"


def test_status_of_complete_platform_is_present(cloud: CloudProject, capfd: pytest.CaptureFixture[str]) -> None:
    create_platform(cloud)
    drive.run_status(work_in(cloud), request_of(cloud))
    assert {line.split()[0] for line in capfd.readouterr().out.splitlines()} == {"present"}
    assert cloud.effects == CREATED
