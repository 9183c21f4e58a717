"""Bounds of the number of machines, their costs, and the required quotas of Google Cloud."""

import pytest

from batchyard.package_data import read_folder
from batchyard.provision.google import describe_google_resources
from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.provision.system_pods import MachineSupply, machine_supplies, required_quotas

EXAMPLES = read_folder("examples/platforms", ".yaml")
HEAD = """\
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {name: small}
spec:
  google: {project: my-project}
  teams: [{name: red}]
"""


def example(name: str) -> PlatformModel:
    return read_platform(PlatformSource(name, EXAMPLES[f"{name}.yaml"]))


def pools(*rows: str, more: str = "  flavors: [{name: any}]\n") -> PlatformModel:
    """Return a platform with these pools in two zones."""
    cluster = "".join(f"      - {row}\n" for row in rows)
    zones = "zones: [us-central1-a, us-central1-b]"
    return read_platform(PlatformSource("p", f"{HEAD}{more}  cluster:\n    {zones}\n    nodePools:\n{cluster}"))


def supply(row: str) -> MachineSupply:
    (only,) = machine_supplies(pools(row))
    return only


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [
        pytest.param("nodeCount: 3", 6, 6, id="fixed, in each zone"),
        pytest.param("autoscaling: {min: 1, max: 4}", 2, 8, id="bounds of a zone"),
        pytest.param("autoscaling: {totalMin: 1, totalMax: 5}", 1, 5, id="bounds of all zones"),
        pytest.param("nodeCount: 1, autoscaling: {min: 0, max: 4}", 0, 8, id="initial nodes are removed when idle"),
    ],
)
def test_pool_supply_follows_from_its_size(size: str, least: int, most: int) -> None:
    result = supply(f"{{name: np, machineType: e2-medium, {size}}}")
    assert (result.minimum, result.maximum) == (least, most)


def test_idle_and_full_costs_follow_from_bounds() -> None:
    result = supply("{name: np, machineType: e2-medium, autoscaling: {totalMin: 1, totalMax: 10}}")
    assert (result.price, result.idle_price, result.full_price) == (33_510, 33_510, 335_100)


def test_reserved_machines_cost_less_than_on_demand() -> None:
    by_name = {each.name: each for each in machine_supplies(example("refarch"))}
    assert by_name["spot-np"].price < by_name["reserved-np"].price < by_name["ondemand-np"].price


def test_auto_provisioned_machines_derive_from_flavor_quota() -> None:
    created = machine_supplies(example("refarch"))[-1]
    assert (created.name, created.machine.name) == ("auto-provisioned-nvidia-tesla-a100", "a2-highgpu-1g")
    assert (created.minimum, created.maximum, created.provisioning) == (0, 8, "spot")


def test_auto_provisioning_limit_bounds_supply() -> None:
    text = EXAMPLES["refarch.yaml"].replace(
        "{resource: nvidia-tesla-a100, max: 100}", "{resource: nvidia-tesla-a100, max: 3}"
    )
    assert machine_supplies(read_platform(PlatformSource("p", text)))[-1].maximum == 3


def needed_quotas(platform: PlatformModel) -> dict[str, int]:
    return {row.metric: row.needed_amount for row in required_quotas(platform)}


def test_gpu_quotas_are_counted_by_provisioning() -> None:
    result = needed_quotas(example("refarch"))
    assert (result["NVIDIA_L4_GPUS"], result["PREEMPTIBLE_NVIDIA_L4_GPUS"]) == (4 * 2 + 24 * 2, 36 * 2)
    assert result["PREEMPTIBLE_NVIDIA_H100_GPUS"] == 8
    assert result["GPUS_ALL_REGIONS"] == 56 + 72 + 2 + 8 + 8


def test_cpu_quotas_are_counted_by_family() -> None:
    result = needed_quotas(
        pools("{name: a, machineType: e2-medium, nodeCount: 1}", "{name: b, machineType: n2-standard-4, nodeCount: 1}")
    )
    assert (result["CPUS"], result["N2_CPUS"]) == (4, 8)


def test_cpus_of_custom_machines_are_counted() -> None:
    catalog = "\n    catalog: {c4-a: {cpu: 4, memory: 8Gi}, n2d-a: {cpu: 2, memory: 8Gi}}"
    text = f"{HEAD}  flavors: [{{name: any}}]\n  cluster:\n    zones: [us-central1-a]{catalog}\n    nodePools:\n"
    rows = ("a, machineType: c4-a", "b, machineType: n2d-a", "c, machineType: c4-a, provisioning: spot")
    text += "".join(f"      - {{name: {row}, nodeCount: 1}}\n" for row in rows)
    result = needed_quotas(read_platform(PlatformSource("p", text)))
    assert (result["CPUS_PER_VM_FAMILY (C4)"], result["N2D_CPUS"], result["PREEMPTIBLE_CPUS"]) == (4, 2, 4)


def test_tpu_chips_are_counted_by_generation() -> None:
    assert needed_quotas(example("multislice"))["TPU_LITE_PODSLICE_V5"] == 24
    assert needed_quotas(example("hotswap"))["TPUS_PER_TPU_FAMILY (CT6E)"] == 64


def test_empty_pool_needs_no_quota() -> None:
    assert needed_quotas(pools("{name: a, machineType: e2-medium, nodeCount: 0}")) == {}


def test_platform_without_google_cloud_has_no_quotas() -> None:
    text = EXAMPLES["multislice.yaml"].replace("  google:\n    project: my-project\n", "")
    assert required_quotas(read_platform(PlatformSource("p", text))) == []


def test_listed_google_resources_match_terraform_variables() -> None:
    platform = example("refarch")
    reported = describe_google_resources(platform)
    variables = render(platform)["terraform/terraform.tfvars"]
    names = [
        *reported["node pool"],
        *reported["reservation"],
        *reported["service account"][1:],
        *reported["repository"],
    ]
    assert [name for name in names if f'"{name}"' not in variables and f"{name} " not in variables] == []
    assert len(reported["node pool"]) == variables.count("machine_type") - len(reported["reservation"])


def test_dated_reservation_is_listed_as_draft_or_submitted() -> None:
    row = "      - {name: machine-reservation, machineType: g2-standard-24, zone: us-central1-a, count: 4}\n"
    booked = row.replace("machine-reservation", "december").replace(
        "}", ', start: "2026-12-01T20:00:00Z", duration: 48h}'
    )
    booked += booked.replace("december", "january").replace("2026-12", "2027-01")
    booked += row.replace("machine-reservation", "elsewhere").replace("}", ", start: 1h}")
    assert row in EXAMPLES["refarch.yaml"]
    text = EXAMPLES["refarch.yaml"].replace(row, row + booked)
    platform = read_platform(
        PlatformSource("p", text.replace("  google:\n", "  google:\n    submitReservations: [january]\n", 1))
    )
    reported = describe_google_resources(platform)
    assert reported["reservation"] == ["machine-reservation"]
    assert reported["future reservation, draft"] == ["december"]
    assert reported["future reservation, submitted"] == ["january"]
    assert reported["booked with Google, not created by Terraform"] == ["elsewhere"]
    variables = render(platform)["terraform/terraform.tfvars"]
    assert ("december" in variables, "elsewhere" in variables) == (True, False)


def test_machines_without_persistent_disks_need_hyperdisk_quota() -> None:
    result = pools(
        "{name: a, machineType: e2-medium, nodeCount: 1}",
        "{name: b, machineType: ct6e-standard-4t, tpuTopology: 2x2, zones: [us-central1-a], nodeCount: 1}",
    )
    disks = {row.metric: row.needed_amount for row in required_quotas(result) if row.metric.endswith("_TOTAL_GB")}
    assert disks == {"SSD_TOTAL_GB": 200, "HDB_TOTAL_GB": 100}
