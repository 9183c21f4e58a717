"""The situations of `examples/why`: the binding limit, the holders, and the smallest change that admits.

Also, `why` has an answer for every object of the examples at any time.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, key_of, with_path
from batchyard.base.instant import parse_duration
from batchyard.cli.commands.why import LINE_WIDTH, document_text_lines
from batchyard.interfaces.client import Update
from batchyard.sim.simulate import read_scenario
from batchyard.sim.world import World

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
KINDS = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)


class WhyCase(NamedTuple):
    """A situation: the Job, the time, and the expected answer."""

    file: str
    namespace: str
    job: str
    at: str
    limit: str
    where: str
    #: The job of the first holder; '' if there is none.
    holder: str
    #: The first change or its beginning; '' if there is none.
    change: str


RAISE = "ClusterQueue {}: raise {} of cpu in flavor {} from {}"
CASES = [
    WhyCase("nominal", "lab", "report", "1m", "nominal", "ClusterQueue lab-queue", "sweep",
         RAISE.format("lab-queue", "nominalQuota", "lab-machines", "4 to 5 (+1)")),
    WhyCase("borrowing", "red", "burst", "1m", "borrowing", "ClusterQueue red-why", "steady",
         RAISE.format("red-why", "borrowingLimit", "shared-machines", "1 to 2 (+1)")),
    WhyCase("lending", "green", "burst", "1m", "lending", "ClusterQueue grey-why", "steady",
         RAISE.format("grey-why", "lendingLimit", "lent-machines", "1 to 2 (+1)")),
    WhyCase("maximum", "small", "too-large", "1m", "maximum", "ClusterQueue small-queue", "",
         RAISE.format("small-queue", "nominalQuota", "small-machines", "4 to 6 (+2)")),
    WhyCase("taint", "spot", "delicate", "1m", "taint", "ResourceFlavor spot-machines", "",
         "let its pods use flavor spot-machines: tolerate spot=true:NoSchedule"),
    WhyCase("affinity", "zonal", "elsewhere", "1m", "affinity", "ResourceFlavor zone-a-machines", "",
         "let its pods use flavor zone-a-machines: select topology.kubernetes.io/zone=zone-a"),
    WhyCase("head-of-line", "strict", "small", "1m", "headOfLine", "Workload strict/job-large-", "",
         "ClusterQueue strict-queue: set queueingStrategy to BestEffortFIFO"),
    WhyCase("priority", "rank", "equal", "1m", "priority", "ClusterQueue rank-queue", "holder",
         "raise its priority from 100 to 101; WorkloadPriorityClass rank-urgent has 1000"),
    WhyCase("admission-check", "queued", "pretrain", "10m", "admissionCheck", "AdmissionCheck h100-capacity", "", ""),
    WhyCase("stock-out", "empty", "render", "10m", "stockOut", "NodePool l4-pool", "", ""),
    WhyCase("quota-above-hardware", "trap", "second", "30m", "nodeCapacity", "ResourceFlavor reserved-l4", "first",
         "add 2 machines to pool reserved-pool (g2-standard-24)"),
    WhyCase("topology", "apart", "replicas", "20m", "topology", "ResourceFlavor wide-machines", "",
         "add 1 machine to pool wide-pool (e2-standard-16)"),
]  # fmt: skip


@cache
def world(path: str, at: str) -> World:
    """Manifests of the examples, simulated until a time."""
    scenario, _ = read_scenario([str(EXAMPLES / path)])
    created = World(scenario)
    created.run_until(parse_duration(at))
    created.flush_batched_writes()
    return created


def reported(case: WhyCase) -> dict[str, Any]:
    """The document about the Job of a situation."""
    result = world(f"why/{case.file}.yaml", case.at)
    document = result.platform.explainer.why(Key(scheme.JOB, case.namespace, case.job), result.kernel.now())
    assert document is not None
    return document


@pytest.mark.parametrize("case", CASES, ids=[case.file for case in CASES])
def test_why_names_limit_holder_and_smallest_change(case: WhyCase) -> None:
    document = reported(case)
    binding = document["binding"]
    assert binding["limit"] == case.limit
    assert f"{binding['where']['kind']} {binding['where']['name']}".startswith(case.where)
    holders = [holder["workload"].partition("/job-")[2].rpartition("-")[0] for holder in document.get("holders", [])]
    assert (holders[0] if holders else "") == case.holder
    changes = {change["text"] for change in document.get("changes", [])}
    assert case.change in changes if case.change else not changes


@pytest.mark.parametrize("case", CASES, ids=[case.file for case in CASES])
def test_why_fits_on_screen(case: WhyCase) -> None:
    lines = list(document_text_lines(reported(case), is_wide=False))
    assert len(lines) <= 40
    assert max(map(len, lines)) <= LINE_WIDTH + 60


def test_why_counts_workloads_of_cluster_queue() -> None:
    found = world("cohort-borrowing", "45s")
    document = found.platform.explainer.why(Key(scheme.CLUSTER_QUEUE, "", "red-queue"), found.kernel.now())
    assert document is not None
    assert document["facts"]["holding"] == "3 Workloads"
    lines = document_text_lines(document, is_wide=False)
    assert [line[:14] for line in lines if line.startswith("waiting")] == ["waiting      1"]


def test_why_reports_provisioning_request_or_missing_nodes() -> None:
    queued, empty = (reported(case) for case in CASES if case.file in {"admission-check", "stock-out"})
    assert queued["requests"][0]["kind"] == "ProvisioningRequest"
    assert "Accepted=True" in queued["requests"][0]["conditions"]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in empty["nodes"]["waitsFor"][0]


@pytest.mark.parametrize(("fewer", "has_nodes"), [(0, True), (1, False)])
def test_proposed_machines_are_sufficient_and_minimal(fewer: int, has_nodes: bool) -> None:
    case = next(case for case in CASES if case.file == "quota-above-hardware")
    (patch,) = next(change["apply"] for change in reported(case)["changes"] if change["kind"] == "nodes")
    changed = World(read_scenario([str(EXAMPLES / "why" / f"{case.file}.yaml")])[0])
    changed.run_until(parse_duration(case.at))
    pool = changed.client.get(Key(scheme.NODE_POOL, "", patch["name"]))
    assert pool is not None
    changed.submit(Update(with_path(pool, ("spec", "nodeCount"), patch["patch"]["spec"]["nodeCount"] - fewer)))
    changed.run_until(parse_duration(case.at) + parse_duration("20m"))
    pods = [pod for pod in changed.objects(scheme.POD, case.namespace) if pod["metadata"]["name"].startswith("second")]
    assert all(pod["spec"].get("nodeName") for pod in pods) is has_nodes


def test_every_situation_is_tested_and_listed() -> None:
    files = sorted(path.stem for path in (EXAMPLES / "why").glob("*.yaml"))
    assert files == sorted(case.file for case in CASES)
    listed = (EXAMPLES / "why" / "README.md").read_text("utf-8")
    assert [name for name in files if f"{name}.yaml" not in listed] == []


MOMENTS = [
    *((name, at) for name in ("cohort-borrowing", "fair-sharing", "hierarchy", "preemption") for at in ("5s", "50s")),
    *((name, "2m") for name in ("dws", "hotswap", "multislice", "training", "refarch")),
]


@pytest.mark.parametrize(("name", "at"), MOMENTS)
def test_why_answers_for_every_object_in_examples(name: str, at: str) -> None:
    result = world(name, at)
    for obj in (obj for kind in KINDS for obj in result.objects(kind)[:12]):
        document = result.platform.explainer.why(key_of(obj), result.kernel.now())
        assert document is not None
        assert document["summary"], obj["metadata"]["name"]
        assert list(document_text_lines(document, is_wide=True))


#: The row of the document about `why` for each bound of the package.
BOUNDS = {
    "cohort_simulation.AHEAD_WORKLOADS_MAX": "simulated pending Workloads ahead of the explained Workload in its queue",
    "cohort_simulation.OTHER_WORKLOADS_MAX": "simulated pending Workloads elsewhere in the cohort",
    "cohort_simulation.DECISIONS_MAX": "scheduling decisions in all trials together",
    "cohort_simulation.TRIAL_DECISIONS_MAX": "scheduling decisions in one trial",
    "cohort_simulation._TIMES_PREEMPTED_MAX": "preemptions of the same Workload in one trial",
    "quota_raises._COMBINATIONS_MAX": "combinations of flavors for which more quota is tried",
    "quota_raises._LENDERS_MAX": "lenders whose lendingLimit is raised",
    "quota_raises._COVERAGE_FLAVORS_MAX": "flavors in which an uncovered resource gets quota",
    "proposals._PRIORITIES_MAX": "priorities tried, and values of `maxPriorityThreshold`",
    "proposals.ENDED_WORKLOADS_MAX": "quota holders to end, or pending Workloads to withdraw",
    "fixes._LOCAL_QUEUES_TRIED_MAX": "other LocalQueues tried, and ClusterQueues for a new LocalQueue",
    "fixes._CYCLE_CORRECTIONS_MAX": "Cohorts in a cycle of Cohorts, for each of which"
    " the removal of `parentName` is tried",
    "node_capacity._ENDED_WORKLOADS_MAX": "Workloads to end so that nodes have room",
    "node_capacity._OCCUPANTS_CHECKED_MAX": "Workloads on nodes that are considered for this choice",
    "node_capacity._CONSTRAINTS_TRIED_MAX": "tolerations and selectors tried for other nodes",
    "node_capacity._CONSTRAINTS_SHOWN_MAX": "tolerations and selectors shown for other nodes",
    "node_capacity._SHOWN_MAX": "machines and backoffs shown for which the autoscaler waits",
    "pending._HOLDERS_CHECKED_MAX": "quota holders for which `why` checks whether their priority protects them",
    "pending.HOLDERS_SHOWN": "quota holders shown, or Workloads on the nodes",
    "pending.AHEAD_SHOWN": "Workloads shown that are ahead of the explained Workload",
    "admitted._SHOWN_MAX": "quota holders shown, or Workloads on the nodes",
    "blockers._UNREADY_SHOWN": "Workloads shown whose pods are not ready",
    "explainer._HOLDERS_CHECKED_MAX": "quota holders for which `why` checks why they were not preempted instead",
    "explainer._SHOWN_MAX": "alternative victims shown for a preemption",
    "queued_pods._SHOWN_MAX": "missing indexes of a group of pods shown, or roles that lack pods",
    "topology._OCCUPANTS_SHOWN": "Workloads shown in the topology domain that comes closest to fitting",
    "topology._OCCUPANTS_MAX": "Workloads in topology domains that are candidates to end",
    "topology._FLAVORS_MAX": "flavors with a Topology for which the room in domains is computed",
    "topology._ADDED_NODES_MAX": "nodes added to a topology domain",
    "topology._DOMAINS_SHOWN": "domains listed per level for an admitted Workload",
}


def test_document_states_every_bound() -> None:
    page = (ROOT / "docs" / "how-to" / "why.md").read_text("utf-8")
    bounds = {
        f"{path.stem}.{name}": value
        for path in (ROOT / "src" / "batchyard" / "explain").glob("*.py")
        if path.stem != "defragmentation"
        for name, value in re.findall(r"^(\w+(?:_MAX|_SHOWN)): Final = (\d+)$", path.read_text("utf-8"), re.MULTILINE)
    }
    assert sorted(bounds) == sorted(BOUNDS)
    assert [name for name, value in bounds.items() if f"| {BOUNDS[name]} | {value} |" not in page] == []
