"""What of a machine is left for pods, against what real nodes of GKE say."""

import pytest

from batchyard.api.meta import amount, format_amount
from batchyard.cloud.catalog.machine_types import MachineType, builtin_catalog
from batchyard.cloud.catalog.nodes import allocatable, capacity, interpolated, kept_cpu_milli, kept_memory_mib

CATALOG = builtin_catalog()


def machine(name: str) -> MachineType:
    """A machine of the catalogue."""
    return CATALOG.machine(name)


@pytest.mark.parametrize(
    ("name", "cpu"),
    [
        ("e2-small", "940m"),
        ("e2-medium", "940m"),
        ("n1-standard-1", "940m"),
        ("e2-standard-2", "1930m"),
        ("e2-standard-4", "3920m"),
        ("n1-standard-8", "7910m"),
        ("g2-standard-24", "23870m"),
        ("ct5lp-hightpu-4t", "111650m"),
    ],
)
def test_the_cpu_left_is_what_gke_documents(name: str, cpu: str) -> None:
    assert allocatable(machine(name), CATALOG.systems)["cpu"] == amount("cpu", cpu)


def test_kubelets_keep_memory_by_brackets() -> None:
    kept = [kept_memory_mib(mib) for mib in (0, 512, 1000, 4096, 8192, 16_384, 131_072)]
    assert kept == [0, 255, 255, 1019, 1819, 2623, 9381]


def test_the_disk_left_is_that_of_real_nodes() -> None:
    has, left = capacity(machine("e2-medium"), CATALOG.systems), allocatable(machine("e2-medium"), CATALOG.systems)
    assert format_amount("ephemeral-storage", has["ephemeral-storage"]) == "98831908Ki"
    assert left["ephemeral-storage"] == pytest.approx(47_060_071_478, abs=200)


def test_the_memory_of_an_e2_medium_is_that_of_real_nodes() -> None:
    has, left = capacity(machine("e2-medium"), CATALOG.systems), allocatable(machine("e2-medium"), CATALOG.systems)
    assert format_amount("memory", has["memory"]) == "4019188Ki"
    assert format_amount("memory", left["memory"]) == "2873332Ki"


def test_accelerators_and_pods_are_left_whole() -> None:
    left = allocatable(machine("g2-standard-24"), CATALOG.systems)
    assert (left["nvidia.com/gpu"], left["pods"]) == (2, 110)


def test_a_pod_of_the_whole_machine_never_fits() -> None:
    for name in CATALOG.machines:
        left = allocatable(machine(name), CATALOG.systems)
        assert 0 < left["cpu"] < machine(name).cpu_milli
        assert 0 < left["memory"] < machine(name).memory_bytes


def test_many_pods_need_more_of_the_cpu() -> None:
    assert kept_cpu_milli(machine("n1-standard-4"), 256) == kept_cpu_milli(machine("n1-standard-4")) + 400


def test_files_are_on_local_ssds_where_a_machine_brings_some() -> None:
    has, left = (
        capacity(machine("a3-highgpu-8g"), CATALOG.systems),
        allocatable(machine("a3-highgpu-8g"), CATALOG.systems),
    )
    assert has["ephemeral-storage"] == 16 * (375 << 30) - 52_837_800 * 1024
    assert left["ephemeral-storage"] == has["ephemeral-storage"] - (100 << 30) - has["ephemeral-storage"] // 10


def test_a_machine_without_anything_has_nothing_left() -> None:
    left = allocatable(machine("x9-tiny-1"), CATALOG.systems)
    assert (left["cpu"], left["memory"]) == (0, 0)


def test_between_two_rows_it_goes_in_proportion_and_beyond_them_on() -> None:
    rows = ((0, 0), (10, 4), (20, 6))
    assert [interpolated(rows, there) for there in (0, 5, 10, 15, 20, 30)] == [0, 2, 4, 5, 6, 8]
