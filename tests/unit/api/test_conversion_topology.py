"""Domains in slices and back."""

import pytest

from batchyard.api.conversion import compressed, expanded
from batchyard.api.well_known import HOSTNAME

RACKS = ["block", "rack"]
HOSTS = ["block", HOSTNAME]


def domains(*values: str, count: int = 1) -> list[dict[str, object]]:
    """Domains of values such as `b1/r1`, with one pod each."""
    return [{"values": value.split("/"), "count": count} for value in values]


def test_no_domains_make_no_slices() -> None:
    assert compressed(RACKS, []) == []


def test_what_all_domains_share_is_written_once() -> None:
    assert compressed(RACKS, domains("b1/r1", "b1/r1", count=3)) == [
        {
            "domainCount": 2,
            "podCounts": {"universal": 3},
            "valuesPerLevel": [{"universal": "b1"}, {"universal": "r1"}],
        }
    ]


def test_what_differs_is_written_for_each() -> None:
    given = [{"values": ["b1", "r1-x"], "count": 1}, {"values": ["b2", "r2-x"], "count": 2}]
    assert compressed(RACKS, given) == [
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
        pytest.param(["a/ababa", "a/aba"], {"suffix": "aba", "roots": ["ab", ""]}, id="characters of both ends"),
        pytest.param(["a/a", "a/aa"], {"suffix": "a", "roots": ["", "a"]}, id="one within the other"),
        pytest.param(["a/x", "a/y"], {"roots": ["x", "y"]}, id="nothing in common"),
    ],
)
def test_prefix_and_suffix_do_not_overlap(values: list[str], individual: dict[str, object]) -> None:
    (part,) = compressed(RACKS, domains(*values))
    assert part["valuesPerLevel"][1] == {"individual": individual}


def hosts(*pools: tuple[str, int]) -> list[dict[str, object]]:
    """Hosts of pools, as many as told of each."""
    return domains(*(f"b/{pool}-{i}" for pool, count in pools for i in range(count)))


def test_hosts_of_different_pools_get_slices_of_their_own_where_that_is_shorter() -> None:
    given = hosts(("gke-cluster-name-pool-with-a-long-name-aaaa", 30), ("other-cluster-pool-with-a-long-name-bbbb", 30))
    slices = compressed(HOSTS, given)
    assert [part["domainCount"] for part in slices] == [30, 30]
    assert slices[1]["valuesPerLevel"][1]["individual"]["prefix"] == "other-cluster-pool-with-a-long-name-bbbb-"
    assert expanded(slices) == given


def test_few_hosts_of_different_pools_share_a_slice() -> None:
    assert [part["domainCount"] for part in compressed(HOSTS, hosts(("a", 2), ("b", 2)))] == [4]


def test_only_hosts_are_cut_by_their_names() -> None:
    given = hosts(("gke-cluster-name-pool-with-a-long-name-aaaa", 30), ("other-cluster-pool-with-a-long-name-bbbb", 30))
    assert len(compressed(RACKS, given)) == 1


def test_shorter_prefixes_are_taken_where_slices_would_be_too_many() -> None:
    given = domains(*(f"b/{'pool' * 20}-{i // 2}-{i % 2}-{'x' * 40}" for i in range(2_004)))
    slices = compressed(HOSTS, given)
    assert [part["domainCount"] for part in slices] == [2_004]
    assert expanded(slices) == given


def test_a_slice_has_at_most_100000_domains() -> None:
    given = domains(*(f"b/h{i}" for i in range(100_001)))
    assert [part["domainCount"] for part in compressed(RACKS, given)] == [100_000, 1]


def test_slices_are_read_in_their_order() -> None:
    slices = [
        {"domainCount": 1, "podCounts": {"universal": 3}, "valuesPerLevel": [{"universal": "z"}]},
        {
            "domainCount": 2,
            "podCounts": {"individual": [1, 2]},
            "valuesPerLevel": [{"individual": {"roots": ["b", "a"]}}],
        },
    ]
    assert [(d["values"], d["count"]) for d in expanded(slices)] == [(["z"], 3), (["b"], 1), (["a"], 2)]
