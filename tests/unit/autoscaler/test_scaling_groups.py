"""Node groups: their templates, provision times and room to grow."""

import pytest

import make
from batchyard.autoscaler.expander import FULL, IN_BACKOFF, Backoff
from batchyard.autoscaler.node_groups import ClusterLimits, ResourceLimit, settings_of
from batchyard.base.instant import HOUR, MINUTE
from unit.autoscaler.scaling_make_core import A, B, C, cluster, fleet, groups, pool


def test_pool_has_group_in_each_zone() -> None:
    result = groups(pool(zones=[A, B]))
    assert [group.name.zone for group in result] == [A, B]
    assert [group.id.startswith("gke-batch-pool-") and group.id.endswith("-grp") for group in result] == [True, True]


def test_template_node_has_hostname_label() -> None:
    node = groups(pool(zones=[A]))[0].new_node("n")
    assert (node.name, node.labels["kubernetes.io/hostname"], node.ready) == ("n", "n", True)


def test_tpu_slice_is_single_group_of_all_hosts() -> None:
    (group,) = groups(pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", zones=[A], bounds={"max": 2}))
    assert (group.hosts, group.size.maximum) == (2, 2)


@pytest.mark.parametrize(
    ("machine", "provisioning", "expected"),
    [
        ("e2-standard-4", "standard", 15 * MINUTE),
        ("g2-standard-4", "flex-start", 30 * MINUTE),
        ("g2-standard-4", "queued", 365 * 24 * HOUR),
        ("ct5lp-hightpu-4t", "standard", 10 * HOUR),
    ],
)
def test_provision_time_by_machine_and_provisioning(machine: str, provisioning: str, expected: int) -> None:
    group = groups(pool(machine=machine, provisioning=provisioning))[0]
    assert group.provision_time(settings_of(cluster())) == expected


def test_room_respects_zone_and_total_maximum() -> None:
    result = groups(pool(bounds={"max": 4, "totalMax": 5}))
    assert [fleet(result, {A: 1, B: 2}).count_addable_within_size(group) for group in result] == [2, 2, 2]
    assert [fleet(result, {A: 4}).count_addable_within_size(group) for group in result] == [0, 1, 1]


def test_compact_placement_limits_group_size() -> None:
    assert groups(pool(machine="a3-highgpu-8g", most=1000, placementGroup="g", zones=[A]))[0].size.maximum == 96


def test_slice_grows_only_from_zero_hosts() -> None:
    result = groups(pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", zones=[A], bounds={"max": 2}))
    assert fleet(result).count_addable_within_size(result[0]) == 2
    assert fleet(result, {A: 2}).count_addable_within_size(result[0]) == 0
    assert fleet(result, leaving={A: 1}).count_addable_within_size(result[0]) == 0


def test_group_obstacles_match_upstream_messages() -> None:
    result = groups(pool(most=2, zones=[A]))
    backoff = Backoff(make.at(300), 300, make.NOW, "X")
    limits = ClusterLimits({"cpu": ResourceLimit(0, 3)}, {})
    assert fleet(result, {A: 1}, {f"pool/{A}": backoff}).obstacle(result[0], limits, make.at(299)) == IN_BACKOFF
    assert fleet(result, {A: 2}).obstacle(result[0], limits, make.NOW) == FULL
    assert fleet(result, {A: 1}).obstacle(result[0], limits, make.NOW) == (
        'exceeded quota: "cluster-wide", resources: cpu'
    )
    assert fleet(result, {A: 1}).obstacle(result[0], ClusterLimits({}, {}), make.NOW) == ""


def test_used_resources_count_all_machines() -> None:
    result = groups(pool("l4", "g2-standard-24", zones=[A]), pool("cpu", zones=[A]))
    assert fleet(result, {A: 2}).usage() == {"cpu": 56, "memory": 2 * (96 + 16) << 30, "nvidia-l4": 4}


def test_known_room_respects_capacity_and_quotas() -> None:
    capacity = [{"machineType": "e2-standard-4", "zone": A, "count": 3}]
    quotas = [{"name": "cpus", "limit": 40}]
    result = groups(pool())
    assert [fleet(result, {A: 1}).remaining_known_capacity(g, cluster(capacity=capacity)) for g in result[:2]] == [
        2,
        1 << 30,
    ]
    assert fleet(result, {A: 1, C: 1}).remaining_known_capacity(result[1], cluster(quotas=quotas)) == 8


def test_known_room_respects_reservation() -> None:
    reservations = [{"name": "r", "machineType": "e2-standard-4", "zone": A, "count": 4}]
    result = groups(pool(reservation="r", zones=[A]))
    assert fleet(result, {A: 3}).remaining_known_capacity(result[0], cluster(reservations=reservations)) == 1
