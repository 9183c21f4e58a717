"""What pools say, and the Instances they make."""

import pytest

from batchyard.api.well_known import INSTANCE_FINALIZER, NODE_POOL
from batchyard.base.instant import HOUR, SECOND
from batchyard.cloud.catalog.instances import in_phase, name_prefix, new_instance, phase_of, since
from batchyard.cloud.catalog.machine_types import builtin_catalog
from batchyard.cloud.catalog.prices import (
    chips_in,
    has_its_accelerator,
    hosts_of_slice,
    is_autoscaled,
    machine_of,
    repair_time,
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
def test_a_slice_needs_the_machines_its_topology_has_chips_for(machine: str, topology: str, hosts: int) -> None:
    assert hosts_of_slice(node_pool(machine=machine, tpuTopology=topology), CATALOG) == hosts


def test_a_pool_without_topology_is_no_slice() -> None:
    assert hosts_of_slice(node_pool(machine="ct5lp-hightpu-4t"), CATALOG) == 1
    assert chips_in("2x2x4") == 16


def test_a_pool_is_in_its_own_zones_or_in_those_of_the_cluster() -> None:
    assert zones_of(node_pool(), cluster()) == [ZONE]
    everywhere = node_pool(zones=None)
    assert zones_of(everywhere, cluster()) == ["us-central1-a", "us-central1-b", "us-central1-c"]


def test_accelerators_are_added_where_the_family_takes_them() -> None:
    t4 = {"type": "nvidia-tesla-t4", "count": 1}
    machine = machine_of(node_pool(machine="n1-standard-2", accelerator=t4), CATALOG)
    assert machine.accelerator is not None
    assert machine.accelerator.resource == "nvidia.com/gpu"
    assert has_its_accelerator(node_pool(machine="n1-standard-2", accelerator=t4), CATALOG)
    assert not has_its_accelerator(node_pool(machine="e2-standard-2", accelerator=t4), CATALOG)


def test_accelerators_a_machine_has_anyway_may_be_named() -> None:
    a100 = {"type": "nvidia-tesla-a100", "count": 1}
    pool = node_pool(machine="a2-highgpu-1g", accelerator=a100)
    assert has_its_accelerator(pool, CATALOG)
    assert machine_of(pool, CATALOG) is CATALOG.machine("a2-highgpu-1g")
    assert not has_its_accelerator(node_pool(machine="a2-highgpu-2g", accelerator=a100), CATALOG)


def test_a_pool_is_autoscaled_where_it_says_so() -> None:
    assert is_autoscaled(autoscaled())
    assert not is_autoscaled(node_pool(nodeCount=3))


def test_an_instance_says_what_its_pool_says() -> None:
    pool = autoscaled("spot-np", provisioning="spot", maxRunDuration="24h")
    made = new_instance(pool, ZONE, cluster("gke-batch-refarch"))
    assert made["metadata"]["finalizers"] == [INSTANCE_FINALIZER]
    assert made["metadata"]["labels"] == {NODE_POOL: "spot-np"}
    assert made["metadata"]["generateName"].startswith("gke-gke-batch-refarch-spot-np-")
    assert made["spec"] == {
        "pool": "spot-np",
        "zone": ZONE,
        "machineType": "g2-standard-24",
        "provisioning": "spot",
        "maxRunDuration": "24h",
    }


def test_an_instance_of_a_resize_request_runs_as_long_as_that_says() -> None:
    request = resize_request("rr", maxRunDuration="2h")
    made = new_instance(
        autoscaled(provisioning="queued", maxRunDuration="24h"), ZONE, cluster(), resize_request=request
    )
    assert (made["spec"]["resizeRequest"], made["spec"]["maxRunDuration"]) == ("rr", "2h")


def test_machines_of_the_dynamic_scheduler_run_a_week_at_the_longest() -> None:
    def longest(**spec: str) -> str | None:
        found: str | None = new_instance(autoscaled(**spec), ZONE, cluster())["spec"].get("maxRunDuration")
        return found

    assert (longest(provisioning="queued"), longest(provisioning="flex-start")) == ("168h", "168h")
    assert longest(provisioning="flex-start", maxRunDuration="2h") == "2h"
    assert (longest(), longest(provisioning="spot")) == (None, None)


def test_names_differ_by_zone_and_long_ones_are_cut() -> None:
    first, second = name_prefix("batch", "pool", "z-a"), name_prefix("batch", "pool", "z-b")
    assert first != second
    assert first.startswith("gke-batch-pool-")
    long = name_prefix("gke-batch-refarch", "team-a-0-compact", "z-a")
    assert long.startswith("gke-gke-batch-refarc-team-a-0-compact-")
    assert len(long) == len("gke-gke-batch-refarc-team-a-0-compact-4391522a-")


def test_a_new_phase_begins_now_and_ends_an_error() -> None:
    failed = in_phase(instance("a"), "Failed", NOW, error={"code": "X", "message": "y"})
    again = in_phase(failed, "Provisioning", at(5), stopAt=stamp(60))
    assert again["status"] == {"phase": "Provisioning", "since": stamp(5), "stopAt": stamp(60)}
    assert (phase_of(instance("a")), since(instance("a")), since(again)) == ("", NOW, at(5))


def test_times_are_those_said_nearest_to_the_machine() -> None:
    spread = {"min": "1s", "typical": "2s", "max": "3s"}
    machine = CATALOG.machine("a2-highgpu-1g")
    others = {"min": "7s", "typical": "8s", "max": "9s"}
    assert step_duration("drivers", machine, cluster(), CATALOG).typical == 90 * SECOND
    by_cluster = cluster(times={"drivers": spread})
    assert step_duration("drivers", machine, by_cluster, CATALOG) == (SECOND, 2 * SECOND, 3 * SECOND)
    by_family = cluster(times={"drivers": spread, "byMachine": {"a2": {"drivers": others}}})
    assert step_duration("drivers", machine, by_family, CATALOG).shortest == 7 * SECOND
    by_type = cluster(times={"byMachine": {"a2": {"repair": "1h"}, "a2-highgpu-1g": {"repair": "2h"}}})
    assert repair_time(machine, by_type, CATALOG) == 2 * HOUR
