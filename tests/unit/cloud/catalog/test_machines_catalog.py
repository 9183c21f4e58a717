"""The catalog of machines, and the overrides of a Cluster."""

import pytest

from batchyard.base.instant import SECOND
from batchyard.cloud.catalog.machine_types import builtin_catalog, catalog_of
from batchyard.cloud.catalog.pool_properties import (
    hourly_price,
    pool_price,
    repair_time,
    step_duration,
    with_typical_times,
)
from unit.cloud.catalog.cloud_make import cluster, node_pool

SLOW = {"min": "1m", "typical": "2m", "max": "3m"}


@pytest.mark.parametrize(
    ("name", "cpus", "gib", "accelerator"),
    [
        ("e2-medium", 2, 4, None),
        ("n1-standard-16", 16, 60, None),
        ("g2-standard-24", 24, 96, ("nvidia-l4", 2, "nvidia.com/gpu")),
        ("g2-standard-96", 96, 384, ("nvidia-l4", 8, "nvidia.com/gpu")),
        ("a2-ultragpu-1g", 12, 170, ("nvidia-a100-80gb", 1, "nvidia.com/gpu")),
        ("a3-highgpu-8g", 208, 1872, ("nvidia-h100-80gb", 8, "nvidia.com/gpu")),
        ("ct5lp-hightpu-4t", 112, 192, ("tpu-v5-lite-podslice", 4, "google.com/tpu")),
        ("ct6e-standard-8t", 180, 1440, ("tpu-v6e-slice", 8, "google.com/tpu")),
    ],
)
def test_catalog_contains_machines_of_examples(
    name: str, cpus: int, gib: int, accelerator: tuple[str, int, str] | None
) -> None:
    machine = builtin_catalog().machine(name)
    assert (machine.cpu_milli, machine.memory_bytes) == (cpus * 1000, gib << 30)
    result = machine.accelerator
    assert (result and (result.type, result.count, result.resource)) == accelerator


def test_each_machine_has_prices_and_family() -> None:
    catalog = builtin_catalog()
    for machine in catalog.machines.values():
        assert machine.family in catalog.families
        assert 0 < machine.prices.spot < machine.prices.on_demand
        assert machine.prices.reserved < machine.prices.on_demand


@pytest.mark.parametrize(
    ("name", "gib", "dollars"),
    [("n2-standard-32", 128, "1.5539"), ("c3-highcpu-88", 176, "3.7928"), ("n2d-highmem-96", 768, "5.4711")],
)
def test_predefined_shapes_derive_memory_and_price_from_cpus(name: str, gib: int, dollars: str) -> None:
    machine = builtin_catalog().machine(name)
    assert (machine.cpu_milli, machine.memory_bytes) == (int(name.rpartition("-")[2]) * 1000, gib << 30)
    assert machine.prices.on_demand / 1_000_000 == pytest.approx(float(dollars), rel=0.001)


def test_unknown_machine_has_no_resources_and_prices() -> None:
    machine = builtin_catalog().machine("x9-tiny-1")
    assert (machine.cpu_milli, machine.memory_bytes, sum(machine.prices)) == (0, 0, 0)


def test_prices_depend_on_provisioning() -> None:
    machine = builtin_catalog().machine("g2-standard-24")
    ways = ("standard", "spot", "flex-start", "queued")
    assert [hourly_price(machine, way) for way in ways] == [2_110_000, 630_000, 1_266_000, 1_266_000]
    assert hourly_price(machine, "standard", reserved=True) == 1_329_300


def test_attached_accelerators_are_charged() -> None:
    pool = node_pool("t4", "n1-standard-2", accelerator={"type": "nvidia-tesla-t4", "count": 2}, provisioning="spot")
    assert pool_price(pool, cluster()) == 20_000 + 2 * 110_000


def test_cluster_prices_override_catalog_prices() -> None:
    begin = cluster(prices={"g2-standard-24": {"onDemand": "3", "spot": 0.5}})
    assert pool_price(node_pool(), begin) == 3_000_000
    assert pool_price(node_pool(provisioning="spot"), begin) == 500_000
    assert pool_price(node_pool(reservation="r"), begin) == 1_890_000
    assert pool_price(node_pool(machine="g2-standard-4"), begin) == 760_000


def test_cluster_adds_machines() -> None:
    row = {"cpu": "96", "memory": "768Gi", "accelerator": {"type": "V100M32", "count": 8}, "family": "own"}
    begin = cluster(catalog={"gpu-box": row}, prices={"gpu-box": {"onDemand": "10"}})
    machine = catalog_of(begin).machine("gpu-box")
    assert (machine.cpu_milli, machine.family, machine.prices.on_demand) == (96_000, "own", 10_000_000)
    assert machine.accelerator is not None
    assert (machine.accelerator.type, machine.accelerator.resource) == ("V100M32", "nvidia.com/gpu")


def test_redefined_machine_keeps_its_prices() -> None:
    begin = cluster(catalog={"g2-standard-24": {"cpu": "20", "memory": "80Gi"}})
    machine = catalog_of(begin).machine("g2-standard-24")
    assert (machine.cpu_milli, machine.prices.on_demand) == (20_000, 2_110_000)


def test_redefined_machine_may_change_its_prices() -> None:
    row = {"cpu": "20", "memory": "80Gi", "onDemand": "3"}
    prices = catalog_of(cluster(catalog={"g2-standard-24": row})).machine("g2-standard-24").prices
    assert (prices.on_demand, prices.reserved, prices.spot) == (3_000_000, 1_890_000, 630_000)


def test_cluster_overrides_accelerator_prices() -> None:
    pool = node_pool("t4", "n1-standard-2", accelerator={"type": "nvidia-tesla-t4", "count": 2})
    assert pool_price(pool, cluster(prices={"nvidia-tesla-t4": {"onDemand": "1"}})) == 95_000 + 2 * 1_000_000


def test_cluster_without_changes_shares_builtin_catalog() -> None:
    assert catalog_of(cluster()) is builtin_catalog()


def test_typical_times_fix_each_duration_to_typical_value() -> None:
    calm = with_typical_times(cluster(times={"byMachine": {"a3": {"boot": SLOW, "repair": "1h"}}, "podStart": SLOW}))
    catalog = catalog_of(calm)
    for name, step, seconds in (
        ("g2-standard-24", "drivers", 75),
        ("a2-highgpu-1g", "drivers", 90),
        ("a3-highgpu-8g", "boot", 120),
        ("unheard-of", "boot", 40),
        ("", "podStart", 120),
    ):
        assert set(step_duration(step, catalog.machine(name), calm, catalog)) == {seconds * SECOND}
    assert repair_time(catalog.machine("a3-highgpu-8g"), calm, catalog) == 3600 * SECOND
