"""Terraform's variables and builds of a platform.yaml. tests/terraform applies them."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

import batchyard.provision.terraform
from batchyard.provision.loading import InvalidPlatformError, PlatformSource, read_platform
from batchyard.provision.model import PlatformEngine, PlatformModel
from batchyard.provision.terraform import pools
from batchyard.provision.terraform.files import terraform_files
from batchyard.provision.terraform.pools import future_reservations, node_pools, reservations

HEAD = """\
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {name: yard}
spec:
"""
REST = """\
  cluster: {region: us-central1, zones: [us-central1-a, us-central1-b]}
  teams: [{name: red}]
"""


def platform(google: str = "{project: my-project}", rest: str = REST) -> PlatformModel:
    return read_platform(PlatformSource("p.yaml", f"{HEAD}  google: {google}\n  flavors: [{{name: any}}]\n{rest}"))


def variables(of: PlatformModel, path: str = "terraform/terraform.tfvars") -> dict[str, Any]:
    """Return the variables of a file, strings without their quotes."""
    return {
        name: unquoted(value)
        for name, value in hcl2.loads(terraform_files(of)[path]).items()
        if not name.startswith("__")
    }


def unquoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {unquoted(name): unquoted(each) for name, each in value.items() if not name.startswith("__")}
    if isinstance(value, list):
        return [unquoted(each) for each in value]
    return value.strip('"') if isinstance(value, str) else value


def cluster(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "yard"}, "spec": {"zones": ["us-central1-a", "us-central1-b"], **spec}}


def pool(**row: Any) -> dict[str, Any]:
    """Return the Terraform variables of a pool."""
    created = node_pools(cluster(nodePools=[{"name": "np", "machineType": "e2-medium", **row}]))
    result: Any = created["np"]
    return dict(result)


# --- pools ---


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        ({"nodeCount": 2}, {"node_count": 2}),
        ({"zones": ["us-central1-b"]}, {"zones": ["us-central1-b"]}),
        ({"zones": ["us-central1-a", "us-central1-b"]}, {}),
        ({"autoscaling": {"min": 1, "max": 3}}, {"autoscaling": {"min": 1, "max": 3}}),
        (
            {"provisioning": "spot", "autoscaling": {"totalMax": 3}},
            {"provisioning": "spot", "autoscaling": {"total_max": 3, "location_policy": "ANY"}},
        ),
        (
            {"provisioning": "spot", "autoscaling": {"totalMax": 3, "locationPolicy": "BALANCED"}},
            {"provisioning": "spot", "autoscaling": {"total_max": 3}},
        ),
        (
            {"provisioning": "flex-start", "maxRunDuration": "2h", "autoscaling": {"totalMax": 3}},
            {
                "provisioning": "flex-start",
                "max_run_duration": "7200s",
                "autoscaling": {"total_max": 3, "location_policy": "ANY"},
            },
        ),
        ({"maxPodsPerNode": 32}, {"max_pods_per_node": 32}),
        ({"maxPodsPerNode": 110}, {}),
        ({"placementGroup": "near"}, {"compact": True, "zones": ["us-central1-a"]}),
        (
            {"taints": [{"key": "own", "effect": "NoExecute"}]},
            {"taints": [{"key": "own", "value": "", "effect": "NO_EXECUTE"}]},
        ),
    ],
)
def test_pool_contains_only_values_that_differ_from_defaults(row: dict[str, Any], reported: dict[str, Any]) -> None:
    assert pool(**row) == {"machine_type": "e2-medium", **reported}


@pytest.mark.parametrize(
    ("machine", "topology", "reported"),
    [
        ("ct5lp-hightpu-4t", "2x4", {"tpu_topology": "2x4", "zones": ["us-central1-a"]}),
        ("ct5lp-hightpu-4t", "2x2", {}),
        ("ct6e-standard-4t", "2x2", {"disk_type": "hyperdisk-balanced"}),
    ],
)
def test_only_multi_host_slice_has_topology(machine: str, topology: str, reported: dict[str, Any]) -> None:
    assert pool(machineType=machine, tpuTopology=topology) == {"machine_type": machine, **reported}


def test_attached_and_builtin_gpus_are_named() -> None:
    attached = pool(machineType="n1-standard-2", accelerator={"type": "nvidia-tesla-t4", "count": 1})
    assert attached["accelerator"] == {"type": "nvidia-tesla-t4", "count": 1}
    with_it = pool(machineType="a3-highgpu-8g")
    assert (with_it["accelerator"], with_it["local_ssds"]) == ({"type": "nvidia-h100-80gb", "count": 8}, 16)


def test_only_immediate_gpu_reservations_are_created() -> None:
    rows = [
        {"name": "own", "machineType": "a2-highgpu-1g", "zone": "us-central1-a", "count": 2},
        {"name": "booked", "machineType": "a2-highgpu-1g", "zone": "us-central1-a", "count": 2, "start": "1h"},
        {"name": "chips", "machineType": "ct5lp-hightpu-4t", "zone": "us-central1-a", "count": 2},
    ]
    assert reservations(cluster(reservations=rows)) == {
        "own": {
            "machine_type": "a2-highgpu-1g",
            "zone": "us-central1-a",
            "count": 2,
            "accelerator": {"type": "nvidia-tesla-a100", "count": 1},
        }
    }


def reservation_row(**row: Any) -> dict[str, Any]:
    """Return a reservation named booked."""
    return {"name": "booked", "machineType": "a2-highgpu-1g", "zone": "us-central1-a", "count": 2, **row}


@pytest.mark.parametrize(
    "window",
    [
        {"start": "2026-12-01T20:00:00Z", "duration": "48h"},
        {"start": "2026-12-01T20:00:00Z", "end": "2026-12-03T20:00:00Z"},
        {"start": "2026-12-01T21:00:00+01:00", "end": "2026-12-03T22:00:00+02:00"},
    ],
)
def test_dated_reservation_becomes_future_reservation(window: dict[str, str]) -> None:
    created = cluster(reservations=[reservation_row(**window)])
    row = {
        "machine_type": "a2-highgpu-1g",
        "zone": "us-central1-a",
        "count": 2,
        "accelerator": {"type": "nvidia-tesla-a100", "count": 1},
        "start_time": "2026-12-01T20:00:00Z",
        "end_time": "2026-12-03T20:00:00Z",
    }
    assert future_reservations(created) == {"booked": row}
    assert future_reservations(created, ["booked"]) == {"booked": {**row, "planning_status": "SUBMITTED"}}
    assert reservations(created) == {}


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"start": "2026-12-01T20:00:00Z"},
        {"start": "1h", "duration": "48h"},
        {"duration": "48h"},
        {"machineType": "ct5lp-hightpu-4t", "start": "2026-12-01T20:00:00Z", "duration": "48h"},
    ],
)
def test_reservation_without_dates_or_with_tpus_is_no_future_reservation(row: dict[str, str]) -> None:
    assert future_reservations(cluster(reservations=[reservation_row(**row)])) == {}


BOOKED = REST.replace(
    "us-central1-b]}",
    "us-central1-b], reservations: [{name: december, machineType: a3-highgpu-8g, zone: us-central1-a, "
    'count: 4, start: "2026-12-01T20:00:00Z", duration: 168h}]}',
)


def test_only_named_future_reservations_are_submitted() -> None:
    draft = variables(platform(rest=BOOKED))["future_reservations"]["december"]
    assert (draft["end_time"], "planning_status" in draft) == ("2026-12-08T20:00:00Z", False)
    request = variables(platform("{project: my-project, submitReservations: [december]}", BOOKED))
    assert request["future_reservations"]["december"]["planning_status"] == "SUBMITTED"
    assert "future_reservations" not in variables(platform())


def test_submission_of_unknown_reservation_is_rejected() -> None:
    reported = re.escape(
        'spec.google.submitReservations[0]: "november" is not a future reservation that Terraform creates'
    )
    with pytest.raises(InvalidPlatformError, match=reported):
        platform("{project: my-project, submitReservations: [november]}", BOOKED)


# --- the other variables ---


def test_platform_without_google_has_no_terraform() -> None:
    assert terraform_files(replace(platform(), google=None)) == {}


def test_each_terraform_file_is_rendered() -> None:
    (folder,) = map(Path, batchyard.provision.terraform.__path__)
    created = terraform_files(platform())
    for place, rendered in (("root", ""), ("modules", "modules/"), ("cloud_build", "build/")):
        for path in (folder / place).rglob("*.*"):
            assert created[f"terraform/{rendered}{path.relative_to(folder / place)}"] == path.read_text("utf-8")


def test_state_bucket_defaults_to_platform_bucket() -> None:
    usual = terraform_files(platform())
    assert 'bucket = "my-project-yard-state"\n    prefix = "yard"' in usual["terraform/backend.tf"]
    assert 'prefix = "yard-build"' in usual["terraform/build/backend.tf"]
    named = terraform_files(platform("{project: my-project, state: {bucket: ours, prefix: here}}"))
    assert 'bucket = "ours"\n    prefix = "here"' in named["terraform/backend.tf"]


def test_missing_project_is_left_to_terraform() -> None:
    assert "project" not in variables(platform("{}"))


def test_google_settings_become_variables() -> None:
    reported = variables(
        platform(
            "{project: my-project, releaseChannel: RAPID, deletionProtection: false, gpuDriver: disabled, "
            "labels: {cost-centre: a1}, "
            "network: {privateEndpoint: true, authorized: [{name: office, cidr: 192.168.3.0/24}]}}"
        )
    )
    assert (reported["release_channel"], reported["deletion_protection"]) == ("RAPID", False)
    assert reported["gpu_driver"] == "INSTALLATION_DISABLED"
    assert reported["labels"] == {"platform": "yard", "cost-centre": "a1"}
    assert reported["network"]["private_endpoint"] is True
    assert reported["network"]["authorized"] == [{"name": "office", "cidr": "192.168.3.0/24"}]


@pytest.mark.parametrize(
    ("groups", "reported"),
    [("[a@one.example]", "gke-security-groups@one.example"), ("[a@one.example, b@two.example]", None), ("[a]", None)],
)
def test_security_group_derives_from_single_domain(groups: str, reported: str | None) -> None:
    rest = REST.replace("[{name: red}]", f"[{{name: red, members: {{groups: {groups}}}}}]")
    assert variables(platform(rest=rest)).get("security_group") == reported


def test_roles_and_buckets_of_team_are_granted_in_platform_and_build() -> None:
    account = "{googleName: red-pods, roles: [roles/bigquery.dataViewer], buckets: [red-data]}"
    yard = platform(rest=REST.replace("[{name: red}]", f"[{{name: red, serviceAccount: {account}}}]"))
    granted = {"roles": ["roles/bigquery.dataViewer"], "buckets": ["red-data"]}
    who = {"namespace": "red", "service_account": "red-ksa", "account": "red-pods"}
    assert variables(yard)["teams"] == {"red": {**who, **granted}}
    assert variables(yard, "terraform/build/terraform.tfvars")["teams"] == {"red": granted}


# --- builds ---


def scripts(of: PlatformModel) -> dict[str, str]:
    """Return the scripts of both builds by step, as Cloud Build runs them."""
    result = {}
    for name in ("create", "destroy"):
        for step in yaml.safe_load(terraform_files(of)[f"build/{name}.yaml"])["steps"]:
            result[f"{name} {step['id']}"] = step["args"][-1].replace("$$", "$")
    return result


def test_builds_run_in_order_as_build_account() -> None:
    build = yaml.safe_load(terraform_files(platform())["build/create.yaml"])
    assert (
        build["serviceAccount"] == "projects/my-project/serviceAccounts/yard-build@my-project.iam.gserviceaccount.com"
    )
    assert list(scripts(platform())) == [
        "create terraform",
        "create image-batchyard",
        "create manifests",
        "destroy consent",
        "destroy terraform",
    ]


def test_build_scripts_have_valid_shell_syntax() -> None:
    for script in scripts(platform()).values():
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(("name", "code"), [("yard", 0), ("", 1), ("other", 1)])
def test_build_destroys_only_named_platform(name: str, code: int) -> None:
    script = scripts(platform())["destroy consent"]
    done = subprocess.run(["sh", "-ceu", script], env={"_NAME": name}, capture_output=True, check=False)
    assert done.returncode == code


def test_build_waits_for_kueue_deployments() -> None:
    script = scripts(replace(platform(), engine=PlatformEngine.KUEUE))["create manifests"]
    assert script.index("deployment/jobset-controller-manager") < script.index("deployment/kueue-controller-manager")
    assert script.index("deployment/kueue-controller-manager") < script.index("--kustomize=manifests\n")


def test_build_waits_only_for_active_queues() -> None:
    flavors = "flavors: [{name: any, resources: {cpu: {nominalQuota: 1}}}]"
    held = f"  queues: [{{name: held, stopPolicy: Hold, {flavors}}}"
    script = scripts(platform(rest=f"{REST}{held}, {{name: going, {flavors}}}]\n"))["create manifests"]
    assert [line.split()[-1] for line in script.splitlines() if "condition=Active" in line] == ["going"]
    assert "condition=Active" not in scripts(platform(rest=f"{REST}{held}]\n"))["create manifests"]


def test_builds_can_be_disabled() -> None:
    assert [path for path in terraform_files(platform("{project: my-project, build: false}")) if "build" in path] == []


# --- HCL ---


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"a": 1, "long": True}, "a    = 1\nlong = true\n"),
        ({"a": ["x"], "b": {}}, 'a = ["x"]\nb = {}\n'),
        ({"a": {"b.c/d": "e"}}, 'a = { "b.c/d" = "e" }\n'),
        ({"a": 'say "${x}" \\ %{y}\n'}, 'a = "say \\"$${x}\\" \\\\ %%{y}\\n"\n'),
        ({"a": {"b": {"c": 1}}, "long": 2}, "a = {\n  b = { c = 1 }\n}\nlong = 2\n"),
        ({"a": [{"b": 1}]}, "a = [\n  { b = 1 },\n]\n"),
    ],
)
def test_hcl_values_are_written_like_terraform_fmt(values: dict[str, Any], text: str) -> None:
    assert pools.format_assignments(values) == text


IMAGES = """{project: my-project, images: [
  {name: "gpu:v1", copyFrom: "registry.example/gpu:v7"},
  {name: "mnist:v1", buildFrom: "https://git.example/a.git#main:mnist", repository: more, location: us}]}"""


def test_build_creates_job_images_before_manifests() -> None:
    result = scripts(platform(IMAGES))
    names = [name for name in result if name.startswith("create")]
    assert names == [
        f"create {name}" for name in ("terraform", "image-batchyard", "image-gpu", "image-mnist", "manifests")
    ]
    copied = "us-central1-docker.pkg.dev/my-project/yard/gpu:v1"
    assert f'"$engine" tag registry.example/gpu:v7 {copied}' in result["create image-gpu"]
    built = "us-docker.pkg.dev/my-project/more/mnist:v1"
    assert f"--tag {built} 'https://git.example/a.git#main:mnist'" in result["create image-mnist"]
    assert variables(platform(IMAGES))["more_repositories"] == {"more": "us"}


def test_kept_repository_is_excluded_from_destroy() -> None:
    script = scripts(platform("{project: my-project, keepRepository: true}"))["destroy terraform"]
    assert "-target=module.node_pools" in script.splitlines()[-1]
    assert "registry" not in script
    assert "-target" not in scripts(platform())["destroy terraform"].splitlines()[-1]


@pytest.mark.parametrize(
    ("image", "path"),
    [
        ('{name: "Gpu:v1", copyFrom: "a/b:c"}', "images[0].name"),
        ('{name: gpu, copyFrom: "a/b:c"}', "images[0].name"),
        ('{name: "gpu:v1"}', "images[0]"),
        ('{name: "gpu:v1", copyFrom: "a/b:c", buildFrom: "https://h/a.git"}', "images[0]"),
        ('{name: "gpu:v1", copyFrom: "a/b:c; rm -r x"}', "images[0].copyFrom"),
        ("""{name: "gpu:v1", buildFrom: "https://h/a.git'; x"}""", "images[0].buildFrom"),
        ('{name: "gpu:v1", buildFrom: "git@h:a"}', "images[0].buildFrom"),
        ('{name: "gpu:v1", copyFrom: "a/b:c", location: us}', "images[0].location"),
        ('{name: "gpu:v1", copyFrom: "a/b:c", repository: "$(x)"}', "images[0].repository"),
    ],
)
def test_invalid_image_is_rejected(image: str, path: str) -> None:
    with pytest.raises(InvalidPlatformError, match=re.escape(f"spec.google.{path}: ")):
        platform(f"{{project: my-project, images: [{image}]}}")
