"""Kinds of pools, networks and teams beyond the examples, planned by the real Terraform."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.provision.loading import PlatformSource, read_platform
from terraform.terraform_folder import needs_terraform, workplace

pytestmark = needs_terraform

YARD = """\
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {name: yard}
spec:
  google:
    project: my-project
    submitReservations: [january]
    gpuDriver: disabled
    managedPrometheus: false
    dashboards: false
    network:
      privateEndpoint: true
      authorized: [{name: office, cidr: 203.0.113.0/24}, {name: home, cidr: 198.51.100.7/32}]
  cluster:
    region: us-central1
    zones: [us-central1-a, us-central1-b]
    reservations:
      - name: december
        machineType: a3-highgpu-8g
        zone: us-central1-a
        count: 4
        start: "2026-12-01T20:00:00Z"
        duration: 168h
      - name: january
        machineType: e2-standard-4
        zone: us-central1-b
        count: 2
        start: "2027-01-01T01:00:00+01:00"
        end: "2027-01-03T00:00:00Z"
    nodePools:
      - name: booked
        machineType: a3-highgpu-8g
        zones: [us-central1-a]
        reservation: december
        autoscaling: {totalMax: 4}
      - {name: by-zone, machineType: e2-standard-4, nodeCount: 1, autoscaling: {min: 1, max: 3}}
      - name: near
        machineType: a2-highgpu-1g
        zones: [us-central1-b]
        placementGroup: near
        autoscaling: {totalMax: 4}
      - name: flex
        machineType: g2-standard-4
        provisioning: flex-start
        maxRunDuration: 12h
        autoscaling: {totalMax: 4}
      - name: slice
        machineType: ct6e-standard-4t
        zones: [us-central1-a]
        tpuTopology: 4x4
        autoscaling: {totalMin: 0, totalMax: 4}
      - {name: one-host, machineType: ct5lp-hightpu-4t, zones: [us-central1-a], tpuTopology: 2x2, nodeCount: 1}
      - name: small
        machineType: e2-medium
        nodeCount: 1
        maxPodsPerNode: 32
        taints: [{key: own, effect: PreferNoSchedule}]
  flavors: [{name: any}]
  teams:
    - name: red
      members: {groups: [red@one.example]}
      serviceAccount: {roles: [roles/bigquery.dataViewer, roles/bigquery.jobUser], buckets: [red-data]}
    - name: blue
      members: {groups: [blue@other.example]}
"""

Plan = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of the platform."""
    with workplace(read_platform(PlatformSource("yard.yaml", YARD)), tmp_path_factory.mktemp("yard")) as opened:
        return opened.planned()


def pool(plan: Plan, name: str) -> Mapping[str, Any]:
    return plan[f'module.node_pools.google_container_node_pool.this["{name}"]']


def cluster(plan: Plan) -> Mapping[str, Any]:
    return plan["module.cluster.google_container_cluster.this"]


def test_autoscaling_bounds_apply_per_zone(plan: Plan) -> None:
    (bounds,) = pool(plan, "by-zone")["autoscaling"]
    assert (bounds["min_node_count"], bounds["max_node_count"]) == (1, 3)
    assert (bounds.get("total_min_node_count"), bounds.get("total_max_node_count")) == (None, None)
    assert pool(plan, "by-zone")["initial_node_count"] == 1


def test_placement_group_is_compact_without_topology(plan: Plan) -> None:
    (placement,) = pool(plan, "near")["placement_policy"]
    assert (placement["type"], placement["tpu_topology"]) == ("COMPACT", None)
    assert pool(plan, "near")["node_locations"] == ["us-central1-b"]


def test_flex_start_pool_has_run_duration_and_no_queued_provisioning(plan: Plan) -> None:
    (config,) = pool(plan, "flex")["node_config"]
    assert (config["flex_start"], config["max_run_duration"]) == (True, "43200s")
    assert pool(plan, "flex")["queued_provisioning"] == []


def test_autoscaled_tpu_slice_is_initially_empty_with_supported_disk_type(plan: Plan) -> None:
    assert pool(plan, "slice")["initial_node_count"] == 0
    assert pool(plan, "slice")["placement_policy"][0]["tpu_topology"] == "4x4"
    assert pool(plan, "slice")["node_config"][0]["disk_type"] == "hyperdisk-balanced"


def test_single_host_tpu_slice_has_no_placement_policy(plan: Plan) -> None:
    assert pool(plan, "one-host")["placement_policy"] == []


def test_node_pool_has_its_max_pods_and_taints(plan: Plan) -> None:
    assert pool(plan, "small")["max_pods_per_node"] == 32
    taint = {"key": "own", "value": "", "effect": "PREFER_NO_SCHEDULE"}
    assert pool(plan, "small")["node_config"][0]["taint"] == [taint]


def test_gpu_driver_installation_is_disabled_on_request(plan: Plan) -> None:
    (gpu,) = pool(plan, "near")["node_config"][0]["guest_accelerator"]
    assert gpu["gpu_driver_installation_config"] == [{"gpu_driver_version": "INSTALLATION_DISABLED"}]


def test_private_control_plane_has_authorized_networks(plan: Plan) -> None:
    assert cluster(plan)["private_cluster_config"][0]["enable_private_endpoint"] is True
    (authorized,) = cluster(plan)["master_authorized_networks_config"]
    blocks = {(row["display_name"], row["cidr_block"]) for row in authorized["cidr_blocks"]}
    assert blocks == {("office", "203.0.113.0/24"), ("home", "198.51.100.7/32")}


def test_disabled_features_are_not_planned(plan: Plan) -> None:
    assert cluster(plan)["monitoring_config"][0]["managed_prometheus"] == [
        {"auto_monitoring_config": [], "enabled": False}
    ]
    assert cluster(plan)["cluster_autoscaling"][0]["enabled"] is False
    assert cluster(plan)["cluster_autoscaling"][0]["auto_provisioning_defaults"] == []
    assert cluster(plan)["authenticator_groups_config"] == []
    assert [address for address in plan if "monitoring_dashboard" in address or "compute_reservation." in address] == []


def test_roles_and_buckets_are_granted_only_to_their_team(plan: Plan) -> None:
    roles = [values["role"] for address, values in plan.items() if address.startswith("module.teams.google_project")]
    assert roles == ["roles/bigquery.dataViewer", "roles/bigquery.jobUser"]
    buckets = [values for address, values in plan.items() if "google_storage_bucket_iam_member" in address]
    assert [(row["bucket"], row["role"]) for row in buckets] == [("red-data", "roles/storage.objectUser")]


def future_reservation(plan: Plan, name: str) -> Mapping[str, Any]:
    return plan[f'module.future_reservations.google_compute_future_reservation.this["{name}"]']


def test_calendar_reservation_is_planned_as_draft(plan: Plan) -> None:
    booked = future_reservation(plan, "december")
    assert (booked["planning_status"], booked["deletion_policy"]) == ("DRAFT", "DELETE")
    assert (booked["zone"], booked["reservation_mode"]) == ("us-central1-a", "CALENDAR")
    (window,) = booked["time_window"]
    assert (window["start_time"], window["end_time"]) == ("2026-12-01T20:00:00Z", "2026-12-08T20:00:00Z")
    (sku,) = booked["specific_sku_properties"]
    (machine,) = sku["instance_properties"]
    gpus = [{"accelerator_type": "nvidia-h100-80gb", "accelerator_count": 8}]
    assert (sku["total_count"], machine["machine_type"], machine["guest_accelerators"]) == ("4", "a3-highgpu-8g", gpus)


def test_node_pool_references_future_reservation_by_name(plan: Plan) -> None:
    booked = future_reservation(plan, "december")
    assert (booked["reservation_name"], booked["specific_reservation_required"]) == ("december", True)
    (config,) = pool(plan, "booked")["node_config"]
    assert config["reservation_affinity"][0]["values"] == ["december"]


def test_listed_future_reservation_is_submitted_and_abandoned_on_destroy(plan: Plan) -> None:
    booked = future_reservation(plan, "january")
    assert (booked["planning_status"], booked["deletion_policy"]) == ("SUBMITTED", "ABANDON")
    assert (booked["reservation_mode"], booked["deployment_type"]) == ("DEFAULT", None)
    (window,) = booked["time_window"]
    assert (window["start_time"], window["end_time"]) == ("2027-01-01T00:00:00Z", "2027-01-03T00:00:00Z")


@pytest.fixture(scope="module")
def closed_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan with the engine Kueue and without authorized networks."""
    authorized = next(line for line in YARD.splitlines(keepends=True) if "authorized" in line)
    text = YARD.replace(authorized, "").replace("spec:\n", "spec:\n  engine: kueue\n", 1)
    with workplace(read_platform(PlatformSource("yard.yaml", text)), tmp_path_factory.mktemp("closed")) as opened:
        return opened.planned()


def test_private_control_plane_without_listed_networks_authorizes_none(closed_plan: Plan) -> None:
    (networks,) = cluster(closed_plan)["master_authorized_networks_config"]
    assert not networks.get("cidr_blocks")


def test_firewall_lets_control_plane_reach_webhooks_of_kueue(closed_plan: Plan, plan: Plan) -> None:
    rule = closed_plan["module.network.google_compute_firewall.webhooks[0]"]
    assert [(row["protocol"], row["ports"]) for row in rule["allow"]] == [("tcp", ["9443"])]
    assert (rule["direction"], rule["source_ranges"]) == ("INGRESS", ["172.16.0.0/28"])
    assert [name for name in plan if "firewall" in name] == [], "ours listen where it may"
