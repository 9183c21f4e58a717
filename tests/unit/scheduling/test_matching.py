"""Flavors that match pods: taints, node selectors, node affinity."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.api.views.node import flavor_view
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.cluster_queue import FlavorMismatches
from yard import SchedulerBench, flavors_of, group, queue, workload

SPOT_TAINT = {"key": "spot", "value": "true", "effect": "NoSchedule"}


def bench_with(*flavors: Obj) -> SchedulerBench:
    """One ClusterQueue with these flavors, 4 cpu each."""
    amounts = {flavor["metadata"]["name"]: {"cpu": 4} for flavor in flavors}
    return SchedulerBench(queue("cq", groups=[group(**amounts)]), *flavors)


def pod(name: str = "main", **spec: Any) -> Obj:
    """A pod set of one pod with this pod spec."""
    return {"name": name, "count": 1, "template": make.pod_template({"cpu": "1"}, None, **spec)}


def outcome(bench: SchedulerBench, *pod_sets: Obj) -> str:
    return bench.decide(workload(pod_sets=pod_sets))[0]


def affinity(*terms: list[tuple[str, str, list[str]]]) -> Obj:
    """Required node affinity: terms of (key, operator, values)."""
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in term]} for term in terms
        ]
    }
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def no_match(*facts: str) -> str:
    return f"wl waits (NoMatchingFlavor): couldn't assign flavors to pod set main: {', '.join(facts)}"


def test_flavor_with_untolerated_taint_is_skipped() -> None:
    bench = bench_with(make.flavor("tainted", nodeTaints=[SPOT_TAINT]), make.flavor("plain"))
    assert outcome(bench, pod()) == "wl: main 1 cpu=plain"


def test_message_formats_taint_like_kueue() -> None:
    bench = bench_with(make.flavor("tainted", nodeTaints=[SPOT_TAINT]))
    assert outcome(bench, pod()) == no_match("untolerated taint {spot true NoSchedule <nil>} in flavor tainted")


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_no_schedule_and_no_execute_taints_reject_pods(effect: str) -> None:
    bench = bench_with(make.flavor("tainted", nodeTaints=[{**SPOT_TAINT, "effect": effect}]))
    assert outcome(bench, pod()).startswith("wl waits")


def test_prefer_no_schedule_taint_is_ignored() -> None:
    bench = bench_with(make.flavor("tainted", nodeTaints=[{**SPOT_TAINT, "effect": "PreferNoSchedule"}]))
    assert outcome(bench, pod()) == "wl: main 1 cpu=tainted"


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        pytest.param({"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}, True, id="exact"),
        pytest.param({"key": "spot", "value": "true"}, True, id="Equal is the default, any effect"),
        pytest.param({"key": "spot", "operator": "Exists"}, True, id="any value"),
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param({"key": "spot", "value": "false"}, False, id="another value"),
        pytest.param({"key": "other", "operator": "Exists"}, False, id="another key"),
        pytest.param({"key": "spot", "operator": "Exists", "effect": "NoExecute"}, False, id="another effect"),
    ],
)
def test_toleration_covers_matching_taint(toleration: Obj, *, is_tolerated: bool) -> None:
    bench = bench_with(make.flavor("tainted", nodeTaints=[SPOT_TAINT]))
    assert outcome(bench, pod(tolerations=[toleration])).startswith("wl: ") is is_tolerated


def test_tolerations_of_flavor_cover_its_taints() -> None:
    own = make.flavor("tainted", nodeTaints=[SPOT_TAINT], tolerations=[{"key": "spot", "operator": "Exists"}])
    assert outcome(bench_with(own), pod()) == "wl: main 1 cpu=tainted"


def test_every_taint_must_be_tolerated() -> None:
    second = {"key": "gpu", "value": "", "effect": "NoSchedule"}
    bench = bench_with(make.flavor("tainted", nodeTaints=[SPOT_TAINT, second]))
    tolerant = pod(tolerations=[{"key": "spot", "operator": "Exists"}])
    assert outcome(bench, tolerant) == no_match("untolerated taint {gpu  NoSchedule <nil>} in flavor tainted")


def test_node_selector_selects_flavor() -> None:
    bench = bench_with(make.flavor("a", labels={"zone": "a"}), make.flavor("b", labels={"zone": "b"}))
    assert outcome(bench, pod(nodeSelector={"zone": "b"})) == "wl: main 1 cpu=b"
    assert outcome(bench, pod(nodeSelector={"zone": "c"})) == no_match(
        "flavor a doesn't match node affinity", "flavor b doesn't match node affinity"
    )


def test_selector_keys_unknown_to_flavor_are_ignored() -> None:
    bench = bench_with(make.flavor("plain"), make.flavor("b", labels={"zone": "b"}))
    assert outcome(bench, pod(nodeSelector={"zone": "b"})) == "wl: main 1 cpu=plain"
    assert outcome(bench, pod(nodeSelector={"kernel": "new"})) == "wl: main 1 cpu=plain"


@pytest.mark.parametrize(
    ("terms", "flavor"),
    [
        pytest.param([[("zone", "In", ["b", "c"])]], "b", id="In"),
        pytest.param([[("zone", "NotIn", ["a"])]], "b", id="NotIn"),
        pytest.param([[("zone", "DoesNotExist", [])]], "", id="DoesNotExist"),
        pytest.param([[("zone", "Exists", [])]], "a", id="Exists"),
        pytest.param([[("size", "Gt", ["4"])]], "b", id="Gt"),
        pytest.param([[("size", "Lt", ["4"])]], "a", id="Lt"),
        pytest.param([[("zone", "In", ["c"])], [("size", "In", ["8"])]], "b", id="terms are alternatives"),
        pytest.param([[("zone", "In", ["a"]), ("size", "In", ["8"])]], "", id="expressions all hold"),
        pytest.param([[("zone", "In", ["b"]), ("rack", "In", ["7"])]], "b", id="foreign keys are left out"),
        pytest.param([[("zone", "In", ["c"])], [("rack", "In", ["7"])]], "a", id="a term of foreign keys holds"),
    ],
)
def test_required_node_affinity_selects_flavor(terms: list[Any], flavor: str) -> None:
    bench = bench_with(
        make.flavor("a", labels={"zone": "a", "size": "2"}), make.flavor("b", labels={"zone": "b", "size": "8"})
    )
    expected = f"wl: main 1 cpu={flavor}" if flavor else "wl waits (NoMatchingFlavor)"
    assert outcome(bench, pod(affinity=affinity(*terms))).startswith(expected)


def test_flavor_must_match_selector_and_affinity() -> None:
    bench = bench_with(make.flavor("a", labels={"zone": "a", "size": "2"}), make.flavor("b", labels={"zone": "a"}))
    both = pod(nodeSelector={"zone": "a"}, affinity=affinity([("size", "NotIn", ["2"])]))
    assert outcome(bench, both) == "wl: main 1 cpu=b"


def test_preferred_node_affinity_is_ignored() -> None:
    bench = bench_with(make.flavor("a", labels={"zone": "a"}), make.flavor("b", labels={"zone": "b"}))
    preference = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": preference}]}
    assert outcome(bench, pod(affinity={"nodeAffinity": preferred})) == "wl: main 1 cpu=a"


def test_all_pod_sets_of_group_must_match_flavor() -> None:
    bench = bench_with(make.flavor("a", labels={"zone": "a"}), make.flavor("b", labels={"zone": "b"}))
    together = {"topologyRequest": {"podSetGroupName": "together"}}
    sets = [{**pod("leader"), **together}, {**pod("worker", nodeSelector={"zone": "b"}), **together}]
    assert outcome(bench, *sets) == "wl: leader 1 cpu=b; worker 1 cpu=b"


def test_removed_flavor_is_reported_as_not_found() -> None:
    bench = bench_with(make.flavor("a"), make.flavor("b"))
    bench.snapshot.remove_flavor("a")
    assert outcome(bench, pod()) == "wl: main 1 cpu=b"
    bench.snapshot.remove_flavor("b")
    assert outcome(bench, pod()) == no_match("flavor a not found", "flavor b not found")


def test_changed_flavor_is_matched_again() -> None:
    bench = bench_with(make.flavor("a"))
    asks = pod(nodeSelector={"zone": "b"})
    assert outcome(bench, asks) == "wl: main 1 cpu=a"
    bench.put(make.flavor("a", labels={"zone": "a"}))
    assert outcome(bench, asks) == no_match("flavor a doesn't match node affinity")


def test_message_reports_mismatch_and_missing_quota() -> None:
    bench = bench_with(make.flavor("tainted", nodeTaints=[SPOT_TAINT]), make.flavor("plain"))
    bench.hold("x", 4, flavor="plain")
    assert outcome(bench, pod()) == (
        "wl waits (WaitingForQuota): couldn't assign flavors to pod set main: insufficient unused quota for cpu in"
        " flavor plain, 1 more needed, untolerated taint {spot true NoSchedule <nil>} in flavor tainted"
    )


def test_admission_reports_skipped_flavors() -> None:
    bench = bench_with(make.flavor("tainted", nodeTaints=[SPOT_TAINT]), make.flavor("plain"))
    decision = bench.admission(workload(pod_sets=[pod()]))
    assert flavors_of(decision) == "main 1 cpu=plain"
    (attempt,) = decision.assignment.pod_sets[0].attempts
    assert (attempt.flavor, attempt.no_fit_reason) == ("tainted", "NoMatchingFlavor")


def test_mismatch_cache_is_bounded() -> None:
    mismatches = FlavorMismatches({"spot": flavor_view(make.flavor("spot", labels={"n": "1"}))})
    selecting = [workload(pod_sets=[pod(nodeSelector={"n": str(number)})]) for number in range(4097)]
    templates = [workload_view(obj).pod_sets[0].template for obj in selecting]
    texts = [mismatches.mismatches_for(template, ("spot",)) for template in templates]
    assert len(mismatches._cache) <= 4096
    assert [number for number, (text,) in enumerate(texts) if not text] == [1]
    assert mismatches.mismatches_for(templates[0], ("spot",)) == texts[0]
