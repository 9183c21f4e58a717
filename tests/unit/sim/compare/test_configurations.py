"""The comparison of two configurations: curves, fairness, intervals, waits; and inputs that cannot be compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchyard.base.instant import SECOND
from batchyard.sim.compare.comparison import (
    ComparisonSettings,
    ConfigurationComparison,
    average_over_seeds,
    compare_configurations,
    document_of,
    headline,
)
from batchyard.sim.compare.inputs import ComparedConfiguration, read_pair
from batchyard.sim.compare.page import comparison_page
from batchyard.sim.compare.runs import trace_as_jobs
from batchyard.sim.compare.sections import format_change
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.summary.fairness import jain_index
from batchyard.sim.summary.figure import Figure, Unit, format_figure
from batchyard.sim.time_series import Curve
from batchyard.sim.traces import parse_load
from racks import rack_nodes, rack_queues, rack_workload
from unit.sim.forks_make import queue, workload

Obj = dict[str, Any]
LOAD = [workload("one", 30), workload("two", 30), workload("three", 30)]


def compared(a: Sequence[Obj], b: Sequence[Obj], load: Sequence[Obj] = (), seeds: int = 1) -> ConfigurationComparison:
    return compare_configurations(
        ("a", "b"),
        read_pair(ComparedConfiguration("a", a), ComparedConfiguration("b", b), load),
        ComparisonSettings(seeds=seeds),
    )


def figures(found: ConfigurationComparison, section: str = "overall", row: int = 0) -> tuple[Obj, Obj]:
    row_document = document_of(found)["figures"][section][row]
    return row_document["a"], row_document["b"]


def test_curve_has_mean_peak_and_means_per_part() -> None:
    curve = Curve(0)
    curve.add(4, 10)
    curve.add(-2, 20)
    assert curve.mean_and_peak(40) == (2.0, 4)
    assert list(curve.means(40, 4)) == [0, 4, 2, 2]
    assert list(curve.means(20, 1)) == [2.0]


def test_curves_are_summed() -> None:
    one, other = Curve(0), Curve(0)
    one.add(1, 0)
    other.add(2, 5)
    assert list(Curve.sum_of([one, other], 0).means(10, 2)) == [1, 3]


def test_jain_index_is_one_for_equal_shares() -> None:
    assert jain_index([2.0, 2.0]) == 1
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain_index([1.0, 3.0]) == 0.8
    assert (jain_index([]), jain_index([0.0])) == (None, None)


def test_repeat_figure_has_student_confidence_interval() -> None:
    figure = Figure("f", "f", Unit.COUNT)
    result = average_over_seeds(figure, [(1, 2), (1, 3), (1, 4)])  # differences 1, 2, 3: deviation 1
    assert result is not None
    assert (result.means, result.difference, result.is_certain) == ((1, 3), 2, False)
    assert result.margin == pytest.approx(4.303 / 3**0.5)
    assert average_over_seeds(figure, [(1, 2), (None, 3)]) is None


def test_comparison_reports_waits_of_both_configurations() -> None:
    a, b = figures(compared(queue(1), queue(2), LOAD))  # 0, 30, 60 against 0, 0, 30
    assert (a["meanWait"], a["maxWait"], a["makespan"]) == (30, 60, 90)
    assert (b["meanWait"], b["maxWait"], b["makespan"]) == (10, 30, 60)


def test_page_starts_with_conclusion() -> None:
    page = comparison_page(compared(queue(1), queue(2), LOAD))
    assert "<h1>b is better in mean wait, p90 wait and makespan</h1>" in page
    assert "<h1>b is worse in mean wait, p90 wait and makespan</h1>" in comparison_page(
        compared(queue(2), queue(1), LOAD)
    )
    assert "<h1>b and a have equal main figures</h1>" in comparison_page(compared(queue(1), queue(1), LOAD))


def test_mean_quota_use_is_relative_to_run_time() -> None:
    a, b = figures(compared(queue(1), queue(2), LOAD), "quotaByFlavor")
    assert (a["nominal"], a["meanUse"], b["nominal"], b["meanUse"]) == (1, 1, 2, 0.75)


def test_workload_never_admitted_waits_until_later_end() -> None:
    large = [workload("one", 30), workload("large", 30, cpus=2)]
    result = compared(queue(1), queue(2), large)
    a, b = figures(result)
    assert (a["neverAdmitted"], a["pending"], b["neverAdmitted"]) == (1, 1, 0)
    assert a["maxWait"] == result.run_seconds == 60
    assert "never admitted" in comparison_page(result)


def test_largest_changes_are_listed_first() -> None:
    result = compared(queue(1), queue(2), LOAD)
    assert sorted(change.longer_by for change in result.changes.shorter) == [-30, -30]
    assert (result.changes.longer, result.changes.equal_count) == ([], 1)
    assert result.headline.startswith("b against a: the mean wait goes from 30s to 10s, 20s less (67%)")
    assert result.headline.endswith(". 2 Workloads wait less, 0 longer, 1 as long.")


def test_headline_counts_one_workload_in_the_singular() -> None:
    result = compared(queue(1), queue(2), LOAD[:2])
    assert result.headline.endswith(". 1 Workload waits less, 0 longer, 1 as long.")


def test_equal_configurations_make_no_difference() -> None:
    result = compared([*queue(1), *LOAD], [*queue(1), *LOAD])
    assert headline(result.names, result.sections, result.changes) == "a and b make no difference to this load."


@pytest.mark.parametrize(
    ("a", "b", "stated"),
    [
        ([workload("x", 30)], [], "Workload team/x at 0s is in a, but not in b"),
        ([], [workload("x", 30)], "Workload team/x at 0s is in b, but not in a"),
        (
            [workload("x", 30)],
            [workload("x", 40)],
            "metadata.annotations.batchyard.dev/runtime: this field of Workload team/x at 0s differs",
        ),
        ([], [], "it contains no Job, JobSet, Pod or Workload; pass a load for both with --trace"),
    ],
)
def test_different_workloads_are_rejected(a: list[Obj], b: list[Obj], stated: str) -> None:
    with pytest.raises(InvalidScenario, match=stated):
        compared([*queue(1), *a], [*queue(2), *b])


def test_workloads_beside_separate_load_are_rejected() -> None:
    with pytest.raises(InvalidScenario, match="move this object to the load of --trace, or omit --trace"):
        compared([*queue(1), *LOAD], queue(1), LOAD)


def test_different_horizons_are_rejected() -> None:
    settings = {"apiVersion": "sim.batchyard.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "s"}}
    ends = {**settings, "spec": {"horizon": "1m"}}
    with pytest.raises(InvalidScenario, match="the scenarios have different horizons; set --until"):
        compared([*queue(1), ends], queue(1), LOAD)
    pair = read_pair(
        ComparedConfiguration("a", [*queue(1), ends]), ComparedConfiguration("b", queue(1)), LOAD, 10 * SECOND
    )
    assert compare_configurations(("a", "b"), pair, ComparisonSettings(until=10 * SECOND)).run_seconds == 10


def test_seeds_without_randomness_give_same_figures() -> None:
    result = compared(queue(1), queue(2), LOAD, seeds=2)
    assert {each.figure.name: each.difference for each in result.repeats}["meanWait"] == -20
    assert not any(each.margin for each in result.repeats)


def test_configuration_names_are_escaped_in_page() -> None:
    result = compare_configurations(
        ("<a>", "<script>"),
        read_pair(ComparedConfiguration("<a>", queue(1)), ComparedConfiguration("b", queue(2)), LOAD),
    )
    assert "<script>" not in comparison_page(result)
    assert "&lt;script&gt;" in comparison_page(result)


def test_figures_are_formatted_with_units() -> None:
    assert [format_figure(Unit.SECONDS, each) for each in (0, 9.96, 75, 3600, 7384.4)] == [
        "0s",
        "10s",
        "1m15s",
        "1h",
        "2h3m4s",
    ]
    assert format_figure(Unit.COUNT, None) == "-"
    assert format_change(Figure("f", "f", Unit.SHARE), (0.5, 0.25)) == "-25.0 pp"


def traced(folder: Path) -> Path:
    """A trace of one node and of one pod that was created after 5 s and ran for 9 s."""
    names = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time"
    pod = "p,1000,0,0,0,,LS,Succeeded,5,15,6"
    (folder / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,8000,1024,0,\n", "utf-8")
    (folder / "pods.csv").write_text(f"{names},scheduled_time\n{pod}\n", "utf-8")
    return folder


def test_trace_pods_queue_by_quality_of_service(tmp_path: Path) -> None:
    sides = []
    for cpus in (1, 2):
        *others, local = queue(cpus)
        sides.append(
            ComparedConfiguration(str(cpus), [*others, {**local, "metadata": {"name": "ls", "namespace": "trace"}}])
        )
    pair = read_pair(sides[0], sides[1], trace_as_jobs(traced(tmp_path), parse_load("1"), sides))
    a, _ = figures(compare_configurations(("a", "b"), pair))
    assert (a["workloads"], a["finished"], a["meanWait"], a["makespan"]) == (1, 1, 0, 14)


def test_trace_requires_local_queue_in_both_configurations(tmp_path: Path) -> None:
    sides = [ComparedConfiguration("a", queue(1)), ComparedConfiguration("b", queue(1))]
    with pytest.raises(InvalidScenario, match="the configurations have no LocalQueue trace/default"):
        trace_as_jobs(traced(tmp_path), parse_load("1"), sides)


# Topologies.


def rack_figures(load: str, levels: str = "") -> dict[str, tuple[Obj, Obj]]:
    """The figures of topologies by row, in a comparison of the levels block, rack and host with other levels."""
    nodes = rack_nodes(*(f"b1r{rack}h{host}" for rack in (1, 2) for host in (1, 2)))
    a, b = rack_queues() + nodes, (rack_queues().replace("{nodeLabel: block}, ", levels)) + nodes
    found = compare_configurations(
        ("a", "b"), read_pair(ComparedConfiguration("a", [a]), ComparedConfiguration("b", [b]), [load])
    )
    rows = document_of(found)["figures"].get("topology", ())
    return {row["name"]: (row["a"], row["b"]) for row in rows}


def test_spread_and_distance_are_given_by_level() -> None:
    load = rack_workload("one", 8, "{required: rack}") + rack_workload("two", 2, at=2)
    a, _ = zip(*rack_figures(load).values(), strict=True)
    names = ("placements", "domains", "oneDomain", "distance")
    # 4 and 4 pods on two hosts: 16 of 28 pairs are apart. 2 pods on one host: none is.
    assert [[row.get(name) for name in names] for row in a] == [
        [2, 1, 1, 0],
        [2, 1, 1, 0],
        [2, 1.5, 0.5, pytest.approx(16 / 28 / 2)],
        [2, None, None, pytest.approx(16 / 28 / 2)],
    ]


def test_fragmentation_is_free_room_that_no_domain_can_use_for_the_usual_request() -> None:
    load = rack_workload("one", 3) + rack_workload("two", 3) + rack_workload("three", 3)
    rows = rack_figures(load)
    # Three of four hosts have room for 1 pod, and one for 4: of 7 pods, a host can use 3. One rack has room for 2, the
    # other for 5, so racks can use 3, and the block can use 6.
    found = {name: a["fragmentation"] for name, (a, _) in rows.items() if "fragmentation" in a}
    assert found == {
        "tas: block": pytest.approx(1 / 7, abs=1e-3),
        "tas: rack": pytest.approx(4 / 7, abs=1e-3),
        "tas: kubernetes.io/hostname": pytest.approx(4 / 7, abs=1e-3),
    }


def test_levels_of_both_configurations_are_rows() -> None:
    rows = rack_figures(rack_workload("one", 3))
    assert [name for name, (_, b) in rows.items() if "placements" in b] == [
        "tas: rack",
        "tas: kubernetes.io/hostname",
        "tas: all levels",
    ]


def test_comparison_without_topologies_has_no_figures_of_them() -> None:
    assert "topology" not in document_of(compared(queue(1), queue(2), LOAD))["figures"]
