"""Nodes as GKE creates them."""

from typing import Any

import make
from batchyard.api.views.node import node_view
from batchyard.cloud.catalog.nodes import awaits_drivers, node_template, registered_node, with_ready_condition
from batchyard.nodes import conditions
from unit.cloud.catalog.cloud_make import ZONE, autoscaled, cluster, instance, node_pool

GKE = "cloud.google.com/"


def labels(pool: dict[str, Any], begin: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the labels of a pool's nodes, those of GKE without their prefix."""
    result = node_template(pool, ZONE, begin or cluster())["metadata"]["labels"]
    return {name.removeprefix(GKE): value for name, value in result.items()}


def taints(pool: dict[str, Any]) -> list[str]:
    """Return the taints of a pool's nodes."""
    return [f"{t['key']}={t['value']}:{t['effect']}" for t in node_template(pool, ZONE, cluster())["spec"]["taints"]]


def test_node_has_labels_of_pool_machine_and_zone() -> None:
    result = labels(node_pool("ondemand-np", labels={"resource-type": "ondemand"}))
    expected = {
        "gke-nodepool": "ondemand-np",
        "machine-family": "g2",
        "gke-provisioning": "standard",
        "gke-accelerator": "nvidia-l4",
        "gke-max-pods-per-node": "110",
        "gke-cpu-scaling-level": "24",
        "gke-memory-gb-scaling-level": "98",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "g2-standard-24",
        "topology.kubernetes.io/region": "us-central1",
        "topology.kubernetes.io/zone": ZONE,
        "topology.gke.io/zone": ZONE,
        "resource-type": "ondemand",
    }
    assert {name: result.get(name) for name in expected} == expected
    assert not {"gke-spot", "gke-accelerator-count", "gke-placement-group", "reservation-name"} & set(result)


def test_provisioning_terms_become_node_labels() -> None:
    spot = labels(node_pool(provisioning="spot", placementGroup="team-a-0-compact"))
    assert (spot["gke-spot"], spot["gke-provisioning"], spot["gke-placement-group"]) == (
        "true",
        "spot",
        "team-a-0-compact",
    )
    flex = labels(node_pool(provisioning="flex-start", maxRunDuration="24h"))
    assert (flex["gke-flex-start"], flex["gke-provisioning"], flex["gke-max-run-duration-seconds"]) == (
        "true",
        "flex-start",
        "86400",
    )
    queued = labels(node_pool(provisioning="queued"))
    assert (queued["gke-queued"], queued["gke-provisioning"]) == ("true", "standard")
    reserved = labels(node_pool(reservation="machine-reservation"))
    assert (reserved["reservation-name"], reserved["reservation-affinity"]) == ("machine-reservation", "specific")


def test_tpu_node_has_count_and_topology_labels() -> None:
    multi = labels(node_pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4"))
    assert (multi["gke-tpu-accelerator"], multi["gke-tpu-topology"], multi["gke-accelerator-count"]) == (
        "tpu-v5-lite-podslice",
        "2x4",
        "4",
    )
    assert "gke-accelerator" not in multi
    assert labels(node_pool(machine="ct6e-standard-4t"))["gke-tpu-topology"] == "2x2"


def test_system_labels_override_pool_labels() -> None:
    assert labels(node_pool("a", labels={f"{GKE}gke-nodepool": "b"}))["gke-nodepool"] == "a"


def test_accelerator_and_queued_pools_are_tainted() -> None:
    assert taints(node_pool(machine="e2-medium")) == []
    assert taints(node_pool(taints=[{"key": "spot", "value": "true", "effect": "NoSchedule"}])) == [
        "spot=true:NoSchedule",
        "nvidia.com/gpu=present:NoSchedule",
    ]
    assert taints(node_pool(machine="ct5lp-hightpu-4t")) == ["google.com/tpu=present:NoSchedule"]
    t4 = {"type": "nvidia-tesla-t4", "count": 1}
    assert taints(node_pool(machine="n1-standard-2", accelerator=t4, provisioning="queued")) == [
        "nvidia.com/gpu=present:NoSchedule",
        "cloud.google.com/gke-queued=true:NoSchedule",
    ]


def test_pool_taint_overrides_accelerator_taint() -> None:
    own = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    assert taints(node_pool(taints=[own])) == ["nvidia.com/gpu=true:NoSchedule"]


def test_node_template_is_ready_and_allocatable() -> None:
    view = node_view(node_template(node_pool(maxPodsPerNode=32), ZONE, cluster()))
    assert view.ready
    assert (view.allocatable["cpu"], view.allocatable["nvidia.com/gpu"], view.allocatable["pods"]) == (23_870, 2, 32)


def test_kubelet_registers_unready_node() -> None:
    pool = autoscaled("t4", "n1-standard-2")
    request = instance("gke-batch-t4-1", pool)
    node = registered_node({**request, "spec": {**request["spec"], "resizeRequest": "rr-1"}}, pool, cluster(), make.NOW)
    view = node_view(node)
    assert (view.name, view.ready, view.labels["kubernetes.io/hostname"]) == ("gke-batch-t4-1", False, "gke-batch-t4-1")
    assert view.labels["autoscaling.gke.io/provisioning-request"] == "rr-1"
    assert ("node.kubernetes.io/not-ready", "NoSchedule") in [(taint.key, taint.effect) for taint in view.taints]
    assert node["spec"]["providerID"] == f"gce://batch/{ZONE}/gke-batch-t4-1"
    assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.")
    assert {address["type"] for address in node["status"]["addresses"]} == {"InternalIP", "Hostname"}


def test_machines_have_distinct_identities() -> None:
    one, other = (registered_node(instance(name), autoscaled(), cluster(), make.NOW) for name in ("a", "b"))
    systems = [node["status"]["nodeInfo"] for node in (one, other)]
    for identity in ("machineID", "systemUUID", "bootID"):
        assert systems[0][identity] != systems[1][identity]


def test_registered_node_becomes_ready() -> None:
    node = registered_node(instance("a"), autoscaled(), cluster(), make.NOW)
    assert awaits_drivers(node)
    ready = with_ready_condition(node, make.at(60))
    assert node_view(ready).ready
    assert not awaits_drivers(ready)
    assert not awaits_drivers(conditions.with_shutdown(ready, make.at(90)))
    assert [c["type"] for c in ready["status"]["conditions"]] == [
        "Ready",
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
    ]


def located_nodes(count: int, machine: str = "a3-highgpu-8g", taken: tuple[int, ...] = ()) -> list[dict[str, str]]:
    """Return the labels of nodes that register in a compact pool, where nodes are on the hosts `taken`."""
    pool = node_pool("near", machine, placementGroup="g")
    nodes: list[dict[str, Any]] = []
    for host in taken:
        metadata = {"name": f"old-{host}", "labels": {f"{GKE}gce-topology-host": f"g-{ZONE}-h{host}"}}
        nodes.append({"metadata": metadata})
    for number in range(count):
        nodes.append(registered_node(instance(f"new-{number}", pool), pool, cluster(), 0, nodes))
    return [node["metadata"]["labels"] for node in nodes[len(taken) :]]


def test_nodes_of_a_placement_group_fill_sub_blocks_and_blocks_in_order() -> None:
    nodes = located_nodes(65)
    places = [(each[f"{GKE}gce-topology-block"], each[f"{GKE}gce-topology-subblock"]) for each in nodes]
    group = f"g-{ZONE}"
    assert places[0] == places[15] == (f"{group}-b0", f"{group}-s0")
    assert places[16] == (f"{group}-b0", f"{group}-s1")
    assert places[64] == (f"{group}-b1", f"{group}-s4")
    assert len({each[f"{GKE}gce-topology-host"] for each in nodes}) == 65


def test_new_node_takes_the_first_free_host() -> None:
    (labels_of_node,) = located_nodes(1, taken=(0, 1, 3))
    assert labels_of_node[f"{GKE}gce-topology-host"] == f"g-{ZONE}-h2"


def test_sub_blocks_of_gb200_are_nvlink_domains() -> None:
    nodes = located_nodes(19, machine="a4x-highgpu-4g")
    cliques = [each["nvidia.com/gpu.clique"] for each in nodes]
    assert cliques == [f"g-{ZONE}.0"] * 18 + [f"g-{ZONE}.1"]


def test_nodes_without_placement_group_or_reservation_have_no_location() -> None:
    pool = node_pool("far", "a3-highgpu-8g")
    found = registered_node(instance("n", pool), pool, cluster(), 0)["metadata"]["labels"]
    assert not [name for name in found if "gce-topology" in name]
