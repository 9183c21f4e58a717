"""Conversion of topology domains to slices and back."""

import pytest

from batchyard.api.kueue_conversion import compress_domains, expand_slices
from batchyard.api.well_known import HOSTNAME

RACKS = ["block", "rack"]
HOSTS = ["block", HOSTNAME]


def domains(*values: str, count: int = 1) -> list[dict[str, object]]:
    """Return domains of values such as `b1/r1`, with `count` Pods each."""
    return [{"values": value.split("/"), "count": count} for value in values]


def test_empty_domains_produce_no_slices() -> None:
    assert compress_domains(RACKS, []) == []


def test_common_value_is_written_once_as_universal() -> None:
    assert compress_domains(RACKS, domains("b1/r1", "b1/r1", count=3)) == [
        {"domainCount": 2, "podCounts": {"universal": 3}, "valuesPerLevel": [{"universal": "b1"}, {"universal": "r1"}]}
    ]


def test_different_values_are_written_individually() -> None:
    given = [{"values": ["b1", "r1-x"], "count": 1}, {"values": ["b2", "r2-x"], "count": 2}]
    assert compress_domains(RACKS, given) == [
        {
            "domainCount": 2,
            "podCounts": {"individual": [1, 2]},
            "valuesPerLevel": [
                {"individual": {"prefix": "b", "roots": ["1", "2"]}},
                {"individual": {"prefix": "r", "suffix": "-x", "roots": ["1", "2"]}},
            ],
        }
    ]


@pytest.mark.parametrize(
    ("values", "individual"),
    [
        pytest.param(["a/ababa", "a/aba"], {"suffix": "aba", "roots": ["ab", ""]}, id="overlapping prefix and suffix"),
        pytest.param(["a/a", "a/aa"], {"suffix": "a", "roots": ["", "a"]}, id="one contains the other"),
        pytest.param(["a/x", "a/y"], {"roots": ["x", "y"]}, id="nothing in common"),
    ],
)
def test_common_prefix_and_suffix_do_not_overlap(values: list[str], individual: dict[str, object]) -> None:
    (part,) = compress_domains(RACKS, domains(*values))
    assert part["valuesPerLevel"][1] == {"individual": individual}


def hosts(*pools: tuple[str, int]) -> list[dict[str, object]]:
    """Return hosts of pools, given pairs of pool and number of hosts."""
    return domains(*(f"b/{pool}-{i}" for pool, count in pools for i in range(count)))


def test_hosts_of_different_pools_get_separate_slices_if_shorter() -> None:
    given = hosts(("gke-cluster-name-pool-with-a-long-name-aaaa", 30), ("other-cluster-pool-with-a-long-name-bbbb", 30))
    slices = compress_domains(HOSTS, given)
    assert [part["domainCount"] for part in slices] == [30, 30]
    assert slices[1]["valuesPerLevel"][1]["individual"]["prefix"] == "other-cluster-pool-with-a-long-name-bbbb-"
    assert expand_slices(slices) == given


def test_few_hosts_of_different_pools_share_slice() -> None:
    assert [part["domainCount"] for part in compress_domains(HOSTS, hosts(("a", 2), ("b", 2)))] == [4]


def test_only_hostname_level_is_split_by_name_prefix() -> None:
    given = hosts(("gke-cluster-name-pool-with-a-long-name-aaaa", 30), ("other-cluster-pool-with-a-long-name-bbbb", 30))
    assert len(compress_domains(RACKS, given)) == 1


def test_too_many_slices_fall_back_to_shorter_prefix() -> None:
    given = domains(*(f"b/{'pool' * 20}-{i // 2}-{i % 2}-{'x' * 40}" for i in range(2_004)))
    slices = compress_domains(HOSTS, given)
    assert [part["domainCount"] for part in slices] == [2_004]
    assert expand_slices(slices) == given


def test_slice_has_at_most_100000_domains() -> None:
    given = domains(*(f"b/h{i}" for i in range(100_001)))
    assert [part["domainCount"] for part in compress_domains(RACKS, given)] == [100_000, 1]


def test_slices_are_expanded_in_order() -> None:
    slices = [
        {"domainCount": 1, "podCounts": {"universal": 3}, "valuesPerLevel": [{"universal": "z"}]},
        {
            "domainCount": 2,
            "podCounts": {"individual": [1, 2]},
            "valuesPerLevel": [{"individual": {"roots": ["b", "a"]}}],
        },
    ]
    assert [(d["values"], d["count"]) for d in expand_slices(slices)] == [(["z"], 3), (["b"], 1), (["a"], 2)]
