"""Node auto-provisioning: the pool created for pods that fit no pool."""

from collections.abc import Sequence
from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner, shorten_machine_type
from batchyard.autoscaler.scale_up import ScaleUp, units_of
from batchyard.cloud.cluster_objects import UnsatisfiableRequirements
from unit.autoscaler.scaling_make_core import A, B, C, cluster, node_counts, planner, views

GKE = "cloud.google.com"
LIMITED = {"cpu": 1000, "memory": 4000, "nvidia-l4": 16, "nvidia-tesla-a100": 16, "tpu-v5-lite-podslice": 16}
SHAPE = "should consist of alphanumerics and '-', start with a letter and end with an alphanumeric"
LIMITS = [{"resource": resource, "max": most} for resource, most in LIMITED.items()]


def pool_planner(taken: Sequence[str] = (), **spec: Any) -> ScaleUp:
    whole = {"autoscaling": {"autoProvisioning": {"limits": LIMITS}}, **spec}
    return planner([], new_pools=NodeAutoProvisioner(cluster(**whole), LIMITED, taken), **whole)


def created_pools(*names: str, scale_up: ScaleUp | None = None, **fields: Any) -> list[Obj]:
    """The pools created for pods."""
    maker = scale_up or pool_planner()
    for unit in units_of(views(*names, **fields)):
        maker.plan(unit)
    return maker.pools


def gpu(kind: str = "nvidia-l4", **labels: str) -> dict[str, str]:
    return {f"{GKE}/gke-accelerator": kind, **labels}


def test_new_pool_uses_cheapest_machine_that_fits() -> None:
    (pool,) = created_pools("a", cpu="3")
    assert pool["spec"]["machineType"] == "e2-standard-4"
    assert pool["metadata"]["name"].startswith("nap-e2-standard-4-")
    assert pool["spec"]["autoscaling"] == {"min": 0, "max": 1000, "locationPolicy": "BALANCED"}
    assert "zones" not in pool["spec"]


def test_new_pool_prefers_several_small_machines_if_cheaper() -> None:
    scale_up = pool_planner()
    (pool,) = created_pools("a", "b", "c", cpu="3", scale_up=scale_up)
    assert (pool["spec"]["machineType"], node_counts(scale_up)) == ("e2-standard-4", {pool["metadata"]["name"]: 3})


def test_new_gpu_pool_has_no_more_gpus_than_requested() -> None:
    (pool,) = created_pools("a", gpu=1, cpu="5", nodeSelector=gpu())
    assert pool["spec"]["machineType"] == "g2-standard-8"
    assert pool["metadata"]["name"].startswith("nap-g2-standard-8-gpu1-")


def test_new_pool_attaches_gpus_to_general_purpose_machine() -> None:
    limited = {**LIMITED, "nvidia-tesla-t4": 8}
    maker = NodeAutoProvisioner(cluster(), limited, ())
    (pool,) = created_pools("a", gpu=1, nodeSelector=gpu("nvidia-tesla-t4"), scale_up=planner([], new_pools=maker))
    assert pool["spec"]["accelerator"] == {"type": "nvidia-tesla-t4", "count": 1}
    assert pool["spec"]["machineType"] == "n1-standard-2"


def test_new_spot_pool_has_taint_and_any_location_policy() -> None:
    tolerations = [{"key": f"{GKE}/gke-spot", "operator": "Exists"}]
    (pool,) = created_pools("a", gpu=1, nodeSelector=gpu(**{f"{GKE}/gke-spot": "true"}), tolerations=tolerations)
    assert pool["spec"]["taints"] == [{"key": f"{GKE}/gke-spot", "value": "true", "effect": "NoSchedule"}]
    assert pool["spec"]["autoscaling"]["locationPolicy"] == "ANY"
    assert pool["metadata"]["name"].startswith("nap-g2-standard-4-spot-gpu1-")


def test_new_pool_uses_spot_for_pods_that_tolerate_its_taint() -> None:
    tolerations = [{"key": f"{GKE}/gke-spot", "value": "true", "effect": "NoSchedule"}]
    (pool,) = created_pools("a", cpu="3", tolerations=tolerations)
    assert (pool["spec"]["machineType"], pool["spec"]["provisioning"]) == ("e2-standard-4", "spot")
    (pool,) = created_pools("a", cpu="3", tolerations=[{"operator": "Exists"}])
    assert pool["spec"]["provisioning"] == "standard"


def test_new_pool_grows_in_selected_zones() -> None:
    scale_up = pool_planner()
    zones = {name: {"topology.kubernetes.io/zone": zone} for name, zone in (("b", B), ("c", C))}
    pods = [pod for name, zone in zones.items() for pod in views(name, cpu="3", nodeSelector=zone)]
    (unit,) = units_of(pods)
    assert scale_up.plan(unit)
    assert len(scale_up.pools) == 1
    assert [(group.name.zone, count) for group, count in scale_up.increases.items()] == [(B, 1), (C, 1)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"nodeSelector": {"team": "a"}}, "no toleration for a taint with the key of label team"),
        ({"gpu": 1, "nodeSelector": gpu("h9")}, 'GPU type "h9" doesn\'t have a limit defined'),
        ({"nodeSelector": {f"{GKE}/machine-family": "z9"}}, "no node pool can be created for it"),
        ({"nodeSelector": {f"{GKE}/reservation-name": "r"}}, 'reservation "r" not found'),
        ({"nodeSelector": {f"{GKE}/gke-max-run-duration-seconds": "1h"}}, "MaxRunDuration is not a valid int64."),
        (
            {"nodeSelector": {f"{GKE}/gke-max-run-duration-seconds": "29"}},
            "MaxRunDuration is not within the allowed range (30 seconds - 120 days). Got 29 seconds.",
        ),
        (
            {"nodeSelector": {f"{GKE}/gke-placement-group": "Group_1"}},
            f'placement group name "Group_1" is invalid, {SHAPE}',
        ),
        (
            {"nodeSelector": {f"{GKE}/gke-placement-group": "g" * 41}},
            'placement group name "' + "g" * 41 + '" is invalid, should be at most 40 characters long',
        ),
        ({"nodeSelector": {f"{GKE}/gke-tpu-topology": "big"}}, 'TPU topology "big" not supported'),
        (
            {
                "requests": {"google.com/tpu": "4"},
                "nodeSelector": {
                    f"{GKE}/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                    f"{GKE}/gke-tpu-topology": "1x1",
                },
            },
            "no node pool can be created for it",
        ),
        ({"cpu": "40"}, "18 Insufficient cpu"),
        ({"nodeSelector": {f"{GKE}/gke-spot": "true"}}, f"18 node(s) had untolerated taint {{{GKE}/gke-spot: true}}"),
    ],
)
def test_rejected_new_pool_reports_reason(fields: dict[str, Any], why: str) -> None:
    scale_up = pool_planner()
    assert created_pools("a", scale_up=scale_up, **fields) == []
    assert scale_up.refusal_by_pod["uid-a"] == why


def test_placement_group_pool_has_group_name_and_single_zone() -> None:
    group = {f"{GKE}/gke-placement-group": "team-a-0-compact"}
    capacity = [{"machineType": "a2-highgpu-1g", "zone": A, "count": 1}]
    scale_up = pool_planner(capacity=capacity)
    (pool,) = created_pools(
        "a", "b", gpu=1, nodeSelector=gpu("nvidia-tesla-a100", **group), gang="g", scale_up=scale_up
    )
    assert (pool["metadata"]["name"], pool["spec"]["placementGroup"]) == ("team-a-0-compact", "team-a-0-compact")
    assert (pool["spec"]["zones"], pool["spec"]["autoscaling"]["max"]) == ([B], 150)


def test_placement_group_pool_uses_smallest_machine_that_fits() -> None:
    selector = {f"{GKE}/gke-placement-group": "g", f"{GKE}/machine-family": "n2"}
    (pool,) = created_pools("a", cpu="3", nodeSelector=selector)
    assert (pool["metadata"]["name"], pool["spec"]["machineType"]) == ("g", "n2-standard-4")


def test_reservation_selects_machine_type_and_zone() -> None:
    reserved = {"name": "r", "machineType": "n2-standard-8", "zone": C, "count": 4}
    (pool,) = created_pools(
        "a", nodeSelector={f"{GKE}/reservation-name": "r"}, scale_up=pool_planner(reservations=[reserved])
    )
    assert (pool["spec"]["machineType"], pool["spec"]["zones"]) == ("n2-standard-8", [C])


def test_new_pool_waits_while_its_name_is_in_use() -> None:
    group = {f"{GKE}/gke-placement-group": "g"}
    fields: dict[str, Any] = {"gpu": 1, "nodeSelector": gpu("nvidia-tesla-a100", **group)}
    assert len(created_pools("a", **fields)) == 1
    assert created_pools("a", scale_up=pool_planner(taken=["g"]), **fields) == []


def test_new_pool_gets_tolerated_labels_and_taints() -> None:
    tolerations = [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]
    (pool,) = created_pools("a", nodeSelector={"team": "a"}, tolerations=tolerations)
    assert pool["spec"]["labels"] == {"team": "a"}
    assert pool["spec"]["taints"] == [{"key": "team", "value": "a", "effect": "NoSchedule"}]


def test_each_multi_host_slice_gets_separate_pool() -> None:
    selector = {f"{GKE}/gke-tpu-accelerator": "tpu-v5-lite-podslice", f"{GKE}/gke-tpu-topology": "2x4"}
    scale_up = pool_planner()
    pools = created_pools(
        "a", "b", "c", requests={"google.com/tpu": "4"}, nodeSelector=selector, gang="g", scale_up=scale_up
    )
    assert [pool["spec"]["autoscaling"]["max"] for pool in pools] == [2, 2]
    assert sorted(node_counts(scale_up).values()) == [2, 2]
    assert all(len(pool["spec"]["zones"]) == 1 for pool in pools)


def test_single_host_slice_gets_ordinary_pool() -> None:
    selector = {f"{GKE}/gke-tpu-accelerator": "tpu-v5-lite-podslice", f"{GKE}/gke-tpu-topology": "2x2"}
    (pool,) = created_pools("a", requests={"google.com/tpu": "4"}, nodeSelector=selector)
    assert "tpuTopology" not in pool["spec"]


def test_accelerator_without_limit_gets_no_pool() -> None:
    pod = views("a", gpu=1, nodeSelector=gpu("nvidia-h100-80gb"))[0]
    result = NodeAutoProvisioner(cluster(), LIMITED, ()).requirements(pod)
    assert result == UnsatisfiableRequirements('GPU type "nvidia-h100-80gb" doesn\'t have a limit defined')
    assert created_pools("a", gpu=1, nodeSelector=gpu("nvidia-h100-80gb")) == []


def test_invalid_max_run_duration_is_rejected() -> None:
    selector = {f"{GKE}/gke-max-run-duration-seconds": "1h"}
    result = NodeAutoProvisioner(cluster(), LIMITED, ()).requirements(views("a", nodeSelector=selector)[0])
    assert result == UnsatisfiableRequirements("MaxRunDuration is not a valid int64.")


def test_new_pool_limits_run_duration_as_its_pods_require() -> None:
    (pool,) = created_pools("a", nodeSelector={f"{GKE}/gke-max-run-duration-seconds": "3600"})
    assert pool["spec"]["maxRunDuration"] == "3600s"


def test_new_pools_respect_resource_limits() -> None:
    scale_up = pool_planner()
    created_pools(*[f"p{n}" for n in range(20)], gpu=1, cpu="3", nodeSelector=gpu(), scale_up=scale_up)
    assert (sum(node_counts(scale_up).values()), len(scale_up.refusal_by_pod)) == (16, 4)


@pytest.mark.parametrize(
    ("label", "value", "machine"),
    [
        ("node.kubernetes.io/instance-type", "n1-standard-8", "n1-standard-8"),
        ("node.kubernetes.io/instance-type", "n2d-standard-32", "n2d-standard-32"),
        (f"{GKE}/machine-family", "n2", "n2-standard-2"),
    ],
)
def test_node_selector_selects_machine_type_or_family(label: str, value: str, machine: str) -> None:
    (pool,) = created_pools("a", cpu="1", nodeSelector={label: value})
    assert pool["spec"]["machineType"] == machine


def test_new_pool_uses_reservation_in_its_zone() -> None:
    reserved = {"name": "r", "machineType": "a2-highgpu-1g", "zone": C, "count": 4}
    selector = gpu("nvidia-tesla-a100", **{f"{GKE}/reservation-name": "r"})
    whole: dict[str, Any] = {"reservations": [reserved], "autoscaling": {"autoProvisioning": {"limits": LIMITS}}}
    maker = NodeAutoProvisioner(cluster(**whole), LIMITED, ())
    scale_up = planner([], new_pools=maker, **whole)
    (pool,) = created_pools("a", gpu=1, nodeSelector=selector, scale_up=scale_up)
    assert (pool["spec"]["reservation"], pool["spec"]["zones"]) == ("r", [C])


@pytest.mark.parametrize(
    ("machine", "name"),
    [("e2-standard-4", "e2-standard-4"), ("ct5lp-hightpu-4t", "ct5lp-hight-4t"), ("a" * 20, "a" * 14)],
)
def test_machine_names_are_shortened_like_gke(machine: str, name: str) -> None:
    assert shorten_machine_type(machine) == name


def test_equal_requirements_produce_equal_pools() -> None:
    assert created_pools("a", cpu="3") == created_pools("b", cpu="3")
