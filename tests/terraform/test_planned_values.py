"""The values that the real Terraform plans for the examples."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from terraform.terraform_folder import needs_terraform

pytestmark = needs_terraform

Plan = Mapping[str, Mapping[str, Any]]
ZONES = {"us-central1-a", "us-central1-b", "us-central1-c"}


def pool(plan: Plan, name: str) -> Mapping[str, Any]:
    """A planned node pool."""
    return plan[f'module.node_pools.google_container_node_pool.this["{name}"]']


def node(plan: Plan, name: str) -> Mapping[str, Any]:
    """The node configuration of a node pool."""
    config: Mapping[str, Any] = pool(plan, name)["node_config"][0]
    return config


def only_resource(plan: Plan, kind: str) -> Mapping[str, Any]:
    """The only resource of a kind."""
    (result,) = [values for address, values in plan.items() if f".{kind}." in address]
    return result


def test_node_pools_match_table_of_reference_architecture(refarch_plan: Plan) -> None:
    reported = {
        name: (
            node(refarch_plan, name)["machine_type"],
            [(gpu["type"], gpu["count"]) for gpu in node(refarch_plan, name)["guest_accelerator"]],
            node(refarch_plan, name)["spot"],
            pool(refarch_plan, name).get("node_count"),
            set(pool(refarch_plan, name)["node_locations"]),
            [(row["total_min_node_count"], row["total_max_node_count"], row["location_policy"])
             for row in pool(refarch_plan, name)["autoscaling"]],
        )
        for name in ("default-pool", "reserved-np", "ondemand-np", "spot-np")
    }  # fmt: skip
    two_gpus = [("nvidia-l4", 2)]
    assert reported == {
        "default-pool": ("e2-medium", [], False, 2, ZONES, []),
        "reserved-np": ("g2-standard-24", two_gpus, False, 4, {"us-central1-a"}, []),
        "ondemand-np": ("g2-standard-24", two_gpus, False, None, ZONES, [(0, 24, "ANY")]),
        "spot-np": ("g2-standard-24", two_gpus, True, None, ZONES, [(0, 36, "ANY")]),
    }


@pytest.mark.parametrize(
    ("name", "taint", "resource_type"),
    [("reserved-np", "reserved", "reservation"), ("ondemand-np", "ondemand", "ondemand"), ("spot-np", "spot", "spot")],
)
def test_node_pools_have_taints_and_labels_of_table(
    refarch_plan: Plan, name: str, taint: str, resource_type: str
) -> None:
    config = node(refarch_plan, name)
    assert config["taint"] == [{"key": taint, "value": "true", "effect": "NO_SCHEDULE"}]
    assert config["labels"] == {"resource-type": resource_type}


def test_reserved_pool_uses_only_its_reservation(refarch_plan: Plan) -> None:
    (affinity,) = node(refarch_plan, "reserved-np")["reservation_affinity"]
    assert affinity == {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["machine-reservation"],
    }
    reservation = only_resource(refarch_plan, "google_compute_reservation")
    assert (reservation["zone"], reservation["specific_reservation_required"]) == ("us-central1-a", True)
    (specific,) = reservation["specific_reservation"]
    (machine,) = specific["instance_properties"]
    assert (specific["count"], machine["machine_type"]) == (4, "g2-standard-24")


def test_node_auto_provisioning_has_limits_of_reference_architecture(refarch_plan: Plan) -> None:
    (autoscaling,) = only_resource(refarch_plan, "google_container_cluster")["cluster_autoscaling"]
    limits = [(row["resource_type"], row["minimum"], row["maximum"]) for row in autoscaling["resource_limits"]]
    assert (autoscaling["enabled"], autoscaling["autoscaling_profile"]) == (True, "OPTIMIZE_UTILIZATION")
    assert limits == [
        ("cpu", 4, 1000),
        ("memory", 16, 4000),
        ("nvidia-l4", 0, 300),
        ("nvidia-tesla-t4", 0, 300),
        ("nvidia-tesla-a100", 0, 100),
        ("nvidia-a100-80gb", 0, 100),
        ("nvidia-tesla-v100", 0, 100),
        ("nvidia-tesla-p100", 0, 100),
        ("nvidia-tesla-p4", 0, 100),
    ]


def test_cluster_is_regional_and_private_with_isolated_teams(refarch_plan: Plan) -> None:
    cluster = only_resource(refarch_plan, "google_container_cluster")
    assert (cluster["location"], set(cluster["node_locations"])) == ("us-central1", ZONES)
    assert cluster["private_cluster_config"][0]["enable_private_nodes"] is True
    assert cluster["workload_identity_config"][0]["workload_pool"] == "my-project.svc.id.goog"
    assert cluster["datapath_provider"] == "ADVANCED_DATAPATH"
    assert only_resource(refarch_plan, "google_compute_router_nat")["nat_ip_allocate_option"] == "AUTO_ONLY"


def test_csi_drivers_for_filestore_disks_and_buckets_are_enabled(refarch_plan: Plan) -> None:
    (addons,) = only_resource(refarch_plan, "google_container_cluster")["addons_config"]
    drivers = ("gcp_filestore_csi_driver_config", "gce_persistent_disk_csi_driver_config", "gcs_fuse_csi_driver_config")
    assert [addons[driver][0]["enabled"] for driver in drivers] == [True, True, True]


def test_team_service_account_has_workload_identity_and_configured_roles(refarch_plan: Plan) -> None:
    bound = refarch_plan['module.teams.google_service_account_iam_member.workload_identity["team-a"]']
    assert bound["member"] == "serviceAccount:my-project.svc.id.goog[team-a/team-a-ksa]"
    assert bound["role"] == "roles/iam.workloadIdentityUser"
    roles = [values["role"] for address, values in refarch_plan.items() if "google_project_iam_member" in address]
    of_teams = ["roles/logging.logWriter", "roles/monitoring.metricWriter", "roles/storage.objectUser"]
    assert sorted(roles) == ["roles/container.defaultNodeServiceAccount", *sorted(of_teams * 4)]


def test_dashboard_counts_gpus_and_shows_heat_maps_of_cluster(refarch_plan: Plan) -> None:
    dashboard = json.loads(only_resource(refarch_plan, "google_monitoring_dashboard")["dashboard_json"])
    widgets = [tile["widget"] for tile in dashboard["mosaicLayout"]["tiles"]]
    charts = [widget["xyChart"]["dataSets"] for widget in widgets if "xyChart" in widget]
    tables = [widget["timeSeriesTable"]["dataSets"] for widget in widgets if "timeSeriesTable" in widget]
    queries = [json.dumps(row["timeSeriesQuery"]) for rows in (*charts, *tables) for row in rows]
    assert [row["plotType"] for rows in charts for row in rows].count("HEATMAP") == 2
    assert all("gke-batch-refarch" in query for query in queries if "kubernetes_io" in query)
    assert any("count by (model)" in query for query in queries)
    per_gpu = [query for query in queries if "accelerator_id" in query]
    assert (len(per_gpu), sum("[24h]" in query for query in per_gpu)) == (6, 3)
    assert sum("gpu_processes" in query for query in queries) == 2


def test_tiles_of_dashboard_do_not_overlap(refarch_plan: Plan) -> None:
    dashboard = json.loads(only_resource(refarch_plan, "google_monitoring_dashboard")["dashboard_json"])
    cells = [
        (tile["xPos"] + right, tile["yPos"] + down)
        for tile in dashboard["mosaicLayout"]["tiles"]
        for right in range(tile["width"])
        for down in range(tile["height"])
    ]
    assert len(cells) == len(set(cells))
    assert max(right for right, _ in cells) < dashboard["mosaicLayout"]["columns"]


@pytest.mark.parametrize("name", ["nodepool1", "nodepool2", "nodepool3"])
def test_tpu_slice_is_node_pool_with_its_topology(multislice_plan: Plan, name: str) -> None:
    (placement,) = pool(multislice_plan, name)["placement_policy"]
    assert (placement["type"], placement["tpu_topology"]) == ("COMPACT", "2x4")
    assert pool(multislice_plan, name)["node_count"] == 2
    assert pool(multislice_plan, name)["node_locations"] == ["us-west4-a"]
    assert node(multislice_plan, name)["machine_type"] == "ct5lp-hightpu-4t"
    assert node(multislice_plan, name)["guest_accelerator"] == []


@pytest.mark.parametrize(
    ("name", "machine", "gpu", "zone"),
    [
        ("dws-t4-nodepool", "n1-standard-2", ("nvidia-tesla-t4", 1), "us-central1-c"),
        ("dws-a100-nodepool", "a2-highgpu-1g", ("nvidia-tesla-a100", 1), "us-central1-a"),
        ("dws-h100-nodepool", "a3-highgpu-8g", ("nvidia-h100-80gb", 8), "us-central1-c"),
    ],
)
def test_queued_pool_is_initially_empty_and_uses_queued_provisioning(
    dws_plan: Plan, name: str, machine: str, gpu: tuple[str, int], zone: str
) -> None:
    queued, config = pool(dws_plan, name), node(dws_plan, name)
    assert queued["queued_provisioning"] == [{"enabled": True}]
    assert (queued["initial_node_count"], queued["node_locations"]) == (0, [zone])
    (bounds,) = queued["autoscaling"]
    assert (bounds["total_min_node_count"], bounds["total_max_node_count"], bounds["location_policy"]) == (0, 1, "ANY")
    assert config["reservation_affinity"][0]["consume_reservation_type"] == "NO_RESERVATION"
    assert (config["machine_type"], config["flex_start"], config["spot"]) == (machine, True, False)
    assert [(row["type"], row["count"]) for row in config["guest_accelerator"]] == [gpu]
    assert queued["upgrade_settings"] == []
    assert queued["management"][0]["auto_repair"] is False
