"""The real Terraform over the life cycle of a platform, with a stub provider: order, types and empty plans."""

from pathlib import Path

import pytest
import yaml

from batchyard.provision.terraform.files import terraform_files
from terraform.terraform_folder import TerraformFolder, example, needs_terraform, render_platform, workplace

pytestmark = needs_terraform

WRONG_PLACE = """\
project         = "My Project"
zones           = ["europe-west4-a"]
release_channel = "NIGHTLY"
network = { nodes = "10.0.0.0/20", pods = "many", services = "10.8.0.0/20", control_plane = "172.16.0.0/24" }
auto_provisioning = [{ resource = "cpu", max = 10 }]
"""
WRONG_POOLS = """\
node_pools = {
  spot = { machine_type = "g2-standard-24", provisioning = "spot", reservation = "machine-reservation" }
  dws  = { machine_type = "g2-standard-24", provisioning = "queued" }
  tpu  = { machine_type = "ct5lp-hightpu-4t", tpu_topology = "2x4" }
  full = { machine_type = "e2-medium", taints = [{ key = "full", value = "", effect = "NoSchedule" }] }
}
reservations = { one = { machine_type = "e2-medium", zone = "us-central1-a", count = 1 } }
future_reservations = {
  one = {
    machine_type = "e2-medium", zone = "us-central1-a", count = 0
    start_time = "1h", end_time = "2h", planning_status = "SENT"
  }
}
teams = { a = { namespace = "a", service_account = "a", account = "wi-team-a", roles = ["roles/owner"] } }
"""
WRONG = [
    (
        WRONG_PLACE,
        [
            "Use a project id of 6 to 30",
            "only zones of the region",
            "The channel must be RAPID, REGULAR, STABLE or EXTENDED.",
            "Write each range as an IPv4 CIDR",
            "The control plane's range must be a /28.",
            "Node auto-provisioning requires limits of cpu and memory.",
        ],
    ),
    (
        WRONG_POOLS,
        [
            "Only a pool with standard provisioning can have a reservation.",
            "A queued pool requires autoscaling",
            "A pool with compact placement or a TPU topology must have exactly one zone",
            "The effect of a taint must be NO_SCHEDULE",
            "neither owner nor editor",
            "A future reservation must have at least one machine.",
            "The planning status of a future reservation must be DRAFT or SUBMITTED.",
            "A future reservation must start before it ends",
            "Give each future reservation a name that no other reservation has.",
        ],
    ),
]


@pytest.mark.parametrize("name", ["refarch", "multislice", "dws", "hotswap"])
def test_rendered_files_are_formatted_like_terraform_fmt(name: str, tmp_path: Path) -> None:
    place = TerraformFolder(render_platform(example(name), tmp_path), "{}")
    assert place.must("fmt", "-check", "-recursive", "-diff") == ""


def test_terraform_fmt_check_rejects_bad_formatting(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text('locals {\n  a = 1\n  bc = "two"\n}\n', "utf-8")
    assert TerraformFolder(tmp_path, "{}").run("fmt", "-check").returncode != 0


def test_terraform_validates_configuration_and_rejects_wrong_argument(refarch: TerraformFolder) -> None:
    assert "Success" in refarch.must("validate", "-no-color")
    planted = refarch.folder / "modules" / "network" / "planted.tf"
    planted.write_text('resource "google_compute_network" "planted" {\n  nmae = "x"\n}\n', "utf-8")
    refused = refarch.run("validate", "-no-color")
    planted.unlink()
    assert refused.returncode != 0
    assert 'An argument named "nmae" is not expected here' in refused.stderr


def script(name: str) -> str:
    """The Terraform script of a build."""
    steps = {
        step["id"]: step for step in yaml.safe_load(terraform_files(example("refarch"))[f"build/{name}.yaml"])["steps"]
    }
    text: str = steps["terraform"]["args"][-1]
    return text.replace("$$", "$")


def test_plan_after_create_build_is_empty_and_destroy_build_removes_all(refarch: TerraformFolder) -> None:
    refarch.run_script(script("create"))
    assert "No changes." in refarch.must("plan", "-input=false", "-no-color", "-detailed-exitcode")
    reported = refarch.run_script(script("destroy"))
    pools = reported.rindex("google_container_node_pool.this")
    assert pools < reported.index("google_container_cluster.this: Destroying")
    assert refarch.must("state", "list") == ""


@pytest.mark.parametrize(("wrong", "errors"), WRONG)
def test_invalid_variables_are_rejected_with_messages(refarch: TerraformFolder, wrong: str, errors: list[str]) -> None:
    (refarch.folder / "wrong.tfvars").write_text(wrong, "utf-8")
    refused = refarch.run("plan", "-input=false", "-no-color", "-var-file=wrong.tfvars")
    stated = " ".join(refused.stderr.replace("│", " ").split())
    assert refused.returncode == 1
    assert [error for error in errors if error not in stated] == []


def test_build_service_account_is_planned_separately(tmp_path: Path) -> None:
    with workplace(example("refarch"), tmp_path, "terraform/build") as opened:
        plan = opened.planned()
    assert plan["google_service_account.build"]["account_id"] == "gke-batch-refarch-build"
    (condition,) = plan["google_project_iam_member.grants"]["condition"]
    granted = "'roles/logging.logWriter', 'roles/monitoring.metricWriter', 'roles/storage.objectUser'"
    assert condition["expression"].endswith(f".hasOnly(['roles/container.defaultNodeServiceAccount', {granted}])")
