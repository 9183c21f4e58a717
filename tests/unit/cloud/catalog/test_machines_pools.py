"""Settings of pools, and their Instances."""

import pytest

from batchyard.api.well_known import INSTANCE_FINALIZER, NODE_POOL
from batchyard.base.instant import HOUR, SECOND
from batchyard.cloud.catalog.instances import name_prefix, new_instance, phase_of, phase_start, with_phase
from batchyard.cloud.catalog.machine_types import builtin_catalog
from batchyard.cloud.catalog.pool_properties import (
    chip_count_of,
    has_specified_accelerator,
    is_autoscaled,
    machine_of,
    repair_time,
    slice_host_count,
    step_duration,
    zones_of,
)
from make import NOW, at, stamp
from unit.cloud.catalog.cloud_make import ZONE, autoscaled, cluster, instance, node_pool, resize_request

CATALOG = builtin_catalog()


@pytest.mark.parametrize(
    ("machine", "topology", "hosts"),
    [
        ("ct5lp-hightpu-4t", "2x4", 2),
        ("ct5lp-hightpu-4t", "16x16", 64),
        ("ct6e-standard-4t", "4x4", 4),
        ("ct5p-hightpu-4t", "2x2x4", 4),
        ("ct5lp-hightpu-8t", "2x4", 1),
        ("ct5lp-hightpu-1t", "1x1", 1),
        ("g2-standard-24", "2x4", 1),
    ],
)
def test_slice_hosts_follow_from_topology(machine: str, topology: str, hosts: int) -> None:
    assert slice_host_count(node_pool(machine=machine, tpuTopology=topology), CATALOG) == hosts


def test_pool_without_topology_is_no_slice() -> None:
    assert slice_host_count(node_pool(machine="ct5lp-hightpu-4t"), CATALOG) == 1
    assert chip_count_of("2x2x4") == 16


def test_pool_zones_default_to_cluster_zones() -> None:
    assert zones_of(node_pool(), cluster()) == [ZONE]
    everywhere = node_pool(zones=None)
    assert zones_of(everywhere, cluster()) == ["us-central1-a", "us-central1-b", "us-central1-c"]


def test_accelerators_attach_only_to_supported_families() -> None:
    t4 = {"type": "nvidia-tesla-t4", "count": 1}
    machine = machine_of(node_pool(machine="n1-standard-2", accelerator=t4), CATALOG)
    assert machine.accelerator is not None
    assert machine.accelerator.resource == "nvidia.com/gpu"
    assert has_specified_accelerator(node_pool(machine="n1-standard-2", accelerator=t4), CATALOG)
    assert not has_specified_accelerator(node_pool(machine="e2-standard-2", accelerator=t4), CATALOG)


def test_builtin_accelerators_may_be_named() -> None:
    a100 = {"type": "nvidia-tesla-a100", "count": 1}
    pool = node_pool(machine="a2-highgpu-1g", accelerator=a100)
    assert has_specified_accelerator(pool, CATALOG)
    assert machine_of(pool, CATALOG) is CATALOG.machine("a2-highgpu-1g")
    assert not has_specified_accelerator(node_pool(machine="a2-highgpu-2g", accelerator=a100), CATALOG)


def test_pool_is_autoscaled_only_with_autoscaling() -> None:
    assert is_autoscaled(autoscaled())
    assert not is_autoscaled(node_pool(nodeCount=3))


def test_instance_copies_settings_of_pool() -> None:
    pool = autoscaled("spot-np", provisioning="spot", maxRunDuration="24h")
    created = new_instance(pool, ZONE, cluster("gke-batch-refarch"))
    assert created["metadata"]["finalizers"] == [INSTANCE_FINALIZER]
    assert created["metadata"]["labels"] == {NODE_POOL: "spot-np"}
    assert created["metadata"]["generateName"].startswith("gke-gke-batch-refarch-spot-np-")
    assert created["spec"] == {
        "pool": "spot-np",
        "zone": ZONE,
        "machineType": "g2-standard-24",
        "provisioning": "spot",
        "maxRunDuration": "24h",
    }


def test_instance_of_resize_request_takes_its_run_duration() -> None:
    request = resize_request("rr", maxRunDuration="2h")
    created = new_instance(
        autoscaled(provisioning="queued", maxRunDuration="24h"), ZONE, cluster(), resize_request=request
    )
    assert (created["spec"]["resizeRequest"], created["spec"]["maxRunDuration"]) == ("rr", "2h")


def test_queued_and_flex_start_machines_run_at_most_one_week() -> None:
    def longest(**spec: str) -> str | None:
        result: str | None = new_instance(autoscaled(**spec), ZONE, cluster())["spec"].get("maxRunDuration")
        return result

    assert (longest(provisioning="queued"), longest(provisioning="flex-start")) == ("168h", "168h")
    assert longest(provisioning="flex-start", maxRunDuration="2h") == "2h"
    assert (longest(), longest(provisioning="spot")) == (None, None)


def test_name_prefixes_differ_by_zone_and_are_truncated() -> None:
    first, second = name_prefix("batch", "pool", "z-a"), name_prefix("batch", "pool", "z-b")
    assert first != second
    assert first.startswith("gke-batch-pool-")
    long = name_prefix("gke-batch-refarch", "team-a-0-compact", "z-a")
    assert long.startswith("gke-gke-batch-refarc-team-a-0-compact-")
    assert len(long) == len("gke-gke-batch-refarc-team-a-0-compact-4391522a-")


def test_new_phase_sets_since_and_clears_error() -> None:
    failed = with_phase(instance("a"), "Failed", NOW, error={"code": "X", "message": "y"})
    again = with_phase(failed, "Provisioning", at(5), stopAt=stamp(60))
    assert again["status"] == {"phase": "Provisioning", "since": stamp(5), "stopAt": stamp(60)}
    assert (phase_of(instance("a")), phase_start(instance("a")), phase_start(again)) == ("", NOW, at(5))


def test_most_specific_step_times_apply() -> None:
    spread = {"min": "1s", "typical": "2s", "max": "3s"}
    machine = CATALOG.machine("a2-highgpu-1g")
    others = {"min": "7s", "typical": "8s", "max": "9s"}
    assert step_duration("drivers", machine, cluster(), CATALOG).typical == 90 * SECOND
    by_cluster = cluster(times={"drivers": spread})
    assert step_duration("drivers", machine, by_cluster, CATALOG) == (SECOND, 2 * SECOND, 3 * SECOND)
    by_family = cluster(times={"drivers": spread, "byMachine": {"a2": {"drivers": others}}})
    assert step_duration("drivers", machine, by_family, CATALOG).minimum == 7 * SECOND
    by_type = cluster(times={"byMachine": {"a2": {"repair": "1h"}, "a2-highgpu-1g": {"repair": "2h"}}})
    assert repair_time(machine, by_type, CATALOG) == 2 * HOUR
