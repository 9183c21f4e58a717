"""The domains of gated pods, by rank and in order."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.topology import TopologyAssignment, TopologyDomain, format_topology_assignment
from batchyard.api.well_known import COMPLETION_INDEX, ELASTIC_JOB, HOSTNAME, JOB_INDEX
from batchyard.base.instant import SECOND
from batchyard.topology.ungater import TopologyUngater, pods_to_ungate
from stage import Stage

GATE = {"name": "kueue.x-k8s.io/topology"}
INDEXED = {"podIndexLabel": COMPLETION_INDEX}
GROUPED = {**INDEXED, "subGroupIndexLabel": JOB_INDEX, "subGroupCount": 2}


def pod(name: str, node: str = "", pod_set: str = "main", phase: str = "Pending", **indexes: Any) -> Obj:
    """A pod with a gate or, on a node, without; `index` and `group` are its labels, `offset` its annotation."""
    names = {"index": COMPLETION_INDEX, "group": JOB_INDEX}
    labels = {"kueue.x-k8s.io/podset": pod_set, **{names[k]: str(v) for k, v in indexes.items() if k in names}}
    offset = {"kueue.x-k8s.io/pod-index-offset": str(indexes["offset"])} if "offset" in indexes else {}
    spec = {"nodeSelector": {"pool": "tas", HOSTNAME: node}} if node else {"schedulingGates": [{"name": "mine"}, GATE]}
    annotations = {"kueue.x-k8s.io/workload": "wl", "kueue.x-k8s.io/podset-preferred-topology": "rack", **offset}
    metadata = make.metadata(name, labels=labels, annotations=annotations)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def workload(request: Obj | None = None, failed: str = "", levels: str = HOSTNAME, **domains: str) -> Obj:
    """An admitted Workload: by pod set, its domains such as `a:2 b:1`; a domain of two levels is `r1/a:2`."""
    pod_sets, assignments = [], []
    for name, text in (domains or {"main": "a:2 b:2"}).items():
        pairs = [each.split(":") for each in text.split()]
        count = sum(int(number) for _, number in pairs)
        pod_sets.append(make.pod_set(name, count, topologyRequest=request or {}))
        found = tuple(TopologyDomain(tuple(values.split("/")), int(number)) for values, number in pairs)
        assignment = format_topology_assignment(TopologyAssignment(tuple(levels.split()), found))
        assignments.append({"name": name, "count": count, "flavors": {"cpu": "tas"}, "topologyAssignment": assignment})
    status = {"admission": {"clusterQueue": "cq", "podSetAssignments": assignments}}
    failed_nodes = {"unhealthyNodes": [{"name": failed}]} if failed else {}
    return make.workload(pod_sets=pod_sets, conditions=[make.condition("Admitted")], status={**status, **failed_nodes})


def hosts(obj: Obj, *pods: Obj) -> str:
    """The ungated pods with their nodes: `p0:a p1:b`."""
    ungated = pods_to_ungate(obj, pods)
    return " ".join(f"{each['metadata']['name']}:{each['spec']['nodeSelector'][HOSTNAME]}" for each in ungated)


def indexed(*names: str, **indexes: Any) -> list[Obj]:
    """Pods whose names end with their index."""
    return [pod(name, index=name[-1], **indexes) for name in names]


def test_ungated_pod_selects_its_domain_and_keeps_other_gates() -> None:
    (ungated,) = pods_to_ungate(workload(levels="rack zone", main="r1/z1:1"), [pod("p0")])
    assert ungated["spec"] == {"schedulingGates": [{"name": "mine"}], "nodeSelector": {"rack": "r1", "zone": "z1"}}


def test_pods_with_an_index_get_the_domain_of_their_rank() -> None:
    assert hosts(workload(INDEXED), *indexed("p3", "p0", "p2", "p1")) == "p0:a p1:a p2:b p3:b"
    assert hosts(workload(INDEXED), *indexed("p3")) == "p3:b"


def test_jobs_of_a_group_have_consecutive_ranks() -> None:
    pods = [*indexed("x0", "x1", group=1), *indexed("y0", "y1", group=0)]
    assert hosts(workload(GROUPED), *pods) == "y0:a y1:a x0:b x1:b"


def test_pods_without_valid_ranks_fill_domains_in_order() -> None:
    assert hosts(workload(), *indexed("p3", "p2", "p1", "p0")) == "p3:a p2:a p1:b p0:b"
    assert hosts(workload(INDEXED), pod("p9"), *indexed("p3", "p2")) == "p9:a p3:a p2:b"
    assert hosts(workload(INDEXED), *indexed("p3", "q3", "p2")) == "p3:a q3:a p2:b"
    assert hosts(workload(INDEXED), *indexed("p4", "p0")) == "p4:a p0:a"
    assert hosts(workload(GROUPED), *indexed("p3", "p0", group=0)) == "p3:a p0:a"
    no_count = {**GROUPED, "subGroupCount": 0}
    assert hosts(workload(no_count), *indexed("p1", "p0", group=0)) == "p1:a p0:a"


def test_ranks_are_ignored_if_a_placed_pod_contradicts_them() -> None:
    placed = pod("p0", "b", index=0)
    assert hosts(workload(INDEXED), placed, *indexed("p3", "p2", "p1")) == "p3:a p2:a p1:b"


def test_domains_take_as_many_pods_as_assigned() -> None:
    placed, ended = pod("p0", "a"), pod("p1", "b", phase="Failed")
    assert hosts(workload(), placed, ended, pod("p2"), pod("p3"), pod("p4"), pod("p5")) == "p2:a p3:b p4:b"
    assert hosts(workload(), pod("p0", "c"), pod("p1")) == "p1:a"


def test_rank_outside_the_assignment_disables_ranks() -> None:
    short = workload(INDEXED, main="a:2 b:2")
    short["status"]["admission"]["podSetAssignments"][0]["count"] = 6
    assert hosts(short, *indexed("p5", "p0")) == "p5:a p0:a"


def test_leader_of_a_group_comes_before_the_workers() -> None:
    grouped = workload({**INDEXED, "podSetGroupName": "g"}, workers="b:2 c:1", leader="a:1")
    workers = indexed("w1", "w2", "w3", pod_set="workers")
    assert hosts(grouped, *workers, pod("l0", pod_set="leader", index=0)) == "w1:b w2:b w3:c l0:a"


def test_offset_of_indexes_is_subtracted() -> None:
    assert hosts(workload(INDEXED), *indexed("p2", "p4", offset=1)) == "p2:a p4:b"
    assert hosts(workload(INDEXED), *indexed("p2", offset="x")) == ""


def test_pods_wait_for_the_replacement_of_a_failed_node() -> None:
    assert hosts(workload(INDEXED, failed="a"), *indexed("p0", "p1", "p2")) == "p2:b"


def test_pod_set_without_domains_stays_gated() -> None:
    half = workload(INDEXED, main="a:1", other="b:1")
    del half["status"]["admission"]["podSetAssignments"][1]["topologyAssignment"]
    assert hosts(half, pod("p0", index=0), pod("o0", pod_set="other", index=0)) == "p0:a"


def node_of(stage: Stage, name: str) -> str:
    """The node that a pod selects; '' if none."""
    return str((stage.get(scheme.POD, name)["spec"].get("nodeSelector") or {}).get(HOSTNAME, ""))


def test_pods_are_ungated_when_their_workload_is_admitted_and_when_they_appear() -> None:
    stage = Stage(TopologyUngater())
    waiting = make.workload(pod_sets=[make.pod_set("main", 4, topologyRequest=INDEXED)])
    stage.put(waiting, *indexed("p0", "p3"))
    assert node_of(stage, "p0") == ""
    stage.put(workload(INDEXED))
    assert (node_of(stage, "p0"), node_of(stage, "p3")) == ("a", "b")
    stage.put(*indexed("p2"))
    assert node_of(stage, "p2") == "b"


def test_pods_that_wait_for_a_replacement_are_ungated_onto_it_after_a_restart() -> None:
    stage = Stage(TopologyUngater())
    stage.put(workload(INDEXED, failed="a"), *indexed("p0", "p2"))
    assert (node_of(stage, "p0"), node_of(stage, "p2")) == ("", "b")
    stage.replace_controllers(TopologyUngater())
    assert node_of(stage, "p0") == ""
    stage.put(workload(INDEXED, main="aa:2 b:2"))
    assert node_of(stage, "p0") == "aa"


def test_pods_of_an_elastic_job_belong_to_its_current_slice() -> None:
    first_slice = {"kueue.x-k8s.io/workload-slice-name": "first"}
    elastic = pod("p0", index=0)
    elastic["metadata"]["annotations"].update(first_slice)
    stage = Stage(TopologyUngater())
    stage.put(with_path(workload(INDEXED), ("metadata", "annotations"), first_slice), elastic)
    assert node_of(stage, "p0") == "a"


def elastic_slice(name: str, domains: str, replaces: str = "", *, finished: bool = False) -> Obj:
    """An admitted slice of an elastic job, whose first slice is `wl`."""
    obj = with_metadata(workload(main=domains), name=name, uid=f"uid-{name}")
    conditions = [make.condition("Admitted"), *([make.condition("Finished")] if finished else [])]
    replacement = {"kueue.x-k8s.io/workload-slice-replacement-for": replaces} if replaces else {}
    obj = with_metadata(obj, annotations={"kueue.x-k8s.io/workload-slice-name": "wl", **replacement})
    return with_path(obj, ("status", "conditions"), conditions)


def elastic_pod(name: str, node: str = "") -> Obj:
    """A pod that names the first slice `wl`."""
    obj = pod(name, node)
    obj["metadata"]["annotations"]["kueue.x-k8s.io/workload-slice-name"] = "wl"
    return obj


def test_pods_of_an_elastic_job_get_the_domains_of_its_newest_admitted_slice() -> None:
    stage = Stage(TopologyUngater())
    replacement = elastic_slice("b", "b:2", "team/wl")
    stage.put(elastic_slice("wl", "a:2"), replacement, elastic_pod("p0"))
    assert node_of(stage, "p0") == "b"
    stage.put(elastic_slice("wl", "a:2", finished=True), elastic_pod("p1"))
    assert node_of(stage, "p1") == "b"
    stage.put(with_path(replacement, ("status", "conditions"), []), elastic_pod("p2"))
    assert node_of(stage, "p2") == ""


def test_pod_that_waits_for_quota_of_a_slice_gets_no_domain_yet() -> None:
    waiting = elastic_pod("p0")
    waiting["spec"]["schedulingGates"].append({"name": ELASTIC_JOB})
    assert hosts(elastic_slice("wl", "a:1"), waiting, elastic_pod("p1")) == "p1:a"


def test_pods_of_a_finished_workload_stay_gated() -> None:
    stage = Stage(TopologyUngater())
    done = with_path(workload(), ("status", "conditions"), [make.condition("Admitted"), make.condition("Finished")])
    stage.put(done, pod("p0"))
    assert node_of(stage, "p0") == ""


def test_pods_without_a_topology_request_are_not_touched() -> None:
    other = pod("p0", index=0)
    del other["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"]
    stage = Stage(TopologyUngater())
    stage.put(workload(INDEXED), other)
    assert node_of(stage, "p0") == ""


def test_pods_of_a_second_are_ungated_together_over_a_network() -> None:
    stage = Stage(TopologyUngater(SECOND))
    stage.put(workload(INDEXED), *indexed("p0"))
    stage.run(0.5)
    stage.put(*indexed("p3"))
    assert (node_of(stage, "p0"), node_of(stage, "p3")) == ("", "")
    stage.run(1)
    assert (node_of(stage, "p0"), node_of(stage, "p3")) == ("a", "b")
