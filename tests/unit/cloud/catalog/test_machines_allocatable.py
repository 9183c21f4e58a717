"""Allocatable resources of machines, compared with real nodes of GKE."""

import pytest

from batchyard.api.meta import amount, format_amount
from batchyard.cloud.catalog.machine_types import MachineType, builtin_catalog
from batchyard.cloud.catalog.nodes import (
    allocatable,
    capacity,
    interpolate_reserved_amount,
    reserved_cpu_milli,
    reserved_memory_mib,
)

CATALOG = builtin_catalog()


def machine(name: str) -> MachineType:
    """Return a machine of the catalog."""
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
def test_allocatable_cpu_matches_gke_documentation(name: str, cpu: str) -> None:
    assert allocatable(machine(name), CATALOG.node_system)["cpu"] == amount("cpu", cpu)


def test_kubelet_reserves_memory_by_brackets() -> None:
    kept = [reserved_memory_mib(mib) for mib in (0, 512, 1000, 4096, 8192, 16_384, 131_072)]
    assert kept == [0, 255, 255, 1019, 1819, 2623, 9381]


def test_allocatable_disk_matches_real_nodes() -> None:
    has, left = (
        capacity(machine("e2-medium"), CATALOG.node_system),
        allocatable(machine("e2-medium"), CATALOG.node_system),
    )
    assert format_amount("ephemeral-storage", has["ephemeral-storage"]) == "98831908Ki"
    assert left["ephemeral-storage"] == pytest.approx(47_060_071_478, abs=200)


def test_memory_of_e2_medium_matches_real_nodes() -> None:
    has, left = (
        capacity(machine("e2-medium"), CATALOG.node_system),
        allocatable(machine("e2-medium"), CATALOG.node_system),
    )
    assert format_amount("memory", has["memory"]) == "4019188Ki"
    assert format_amount("memory", left["memory"]) == "2873332Ki"


def test_accelerators_and_pods_are_fully_allocatable() -> None:
    left = allocatable(machine("g2-standard-24"), CATALOG.node_system)
    assert (left["nvidia.com/gpu"], left["pods"]) == (2, 110)


def test_pod_of_whole_machine_size_never_fits() -> None:
    for name in CATALOG.machines:
        left = allocatable(machine(name), CATALOG.node_system)
        assert 0 < left["cpu"] < machine(name).cpu_milli
        assert 0 < left["memory"] < machine(name).memory_bytes


def test_more_pods_reserve_more_cpu() -> None:
    assert reserved_cpu_milli(machine("n1-standard-4"), 256) == reserved_cpu_milli(machine("n1-standard-4")) + 400


def test_ephemeral_storage_uses_local_ssds_when_present() -> None:
    has, left = (
        capacity(machine("a3-highgpu-8g"), CATALOG.node_system),
        allocatable(machine("a3-highgpu-8g"), CATALOG.node_system),
    )
    assert has["ephemeral-storage"] == 16 * (375 << 30) - 52_837_800 * 1024
    assert left["ephemeral-storage"] == has["ephemeral-storage"] - (100 << 30) - has["ephemeral-storage"] // 10


def test_unknown_machine_has_no_allocatable_resources() -> None:
    left = allocatable(machine("x9-tiny-1"), CATALOG.node_system)
    assert (left["cpu"], left["memory"]) == (0, 0)


def test_interpolation_is_linear_and_extrapolates() -> None:
    rows = ((0, 0), (10, 4), (20, 6))
    assert [interpolate_reserved_amount(rows, there) for there in (0, 5, 10, 15, 20, 30)] == [0, 2, 4, 5, 6, 8]
