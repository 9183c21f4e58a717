"""The invariants hold in random clusters: pools of each kind, Jobs and JobSets, faults of each kind, racks of nodes.

After the faults a world runs until no work is left. Each Workload that is then unfinished must wait for something that
provably does not exist. More worlds: `python tools/worlds.py 0 1000`; with more faults:
`python tools/worlds.py 0 1000 --conflicts 0.2 --crash-every 61`.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import make
import yard
from batchyard.api.manifests import read_manifests
from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import SeededDraws
from batchyard.sim.scenario import Scenario, make_scenario
from properties.worlds import cluster_violations, event_log, violations_with_faults

Obj = dict[str, Any]

SEEDS = range(3000, 3024)
CORPUS = [
    pytest.param(24, id="scheduling condition of a pod written after a conflict"),
    pytest.param(1158, id="ResizeRequest counted machine of an earlier request of its name"),
    pytest.param(1188, id="Job lost a pod after success of its leader pod"),
]
TROUBLED = [
    pytest.param(3002, 0.2, 61, id="both"),
    pytest.param(3003, 0.37, 11, id="many of both"),
    pytest.param(37, 0.0, 23, id="restarted platform received deletion of an unseen Job"),
    pytest.param(65, 0.2, 0, id="endless creation of a pool for a gang that no zones can hold"),
    pytest.param(260, 0.5, 0, id="machines of a slice requested and refused one by one"),
]


def log_of(seed: int) -> str:
    """Return a world's event log as text."""
    return "\n".join(map(json.dumps, event_log(random_cluster_scenario(SeededDraws(seed)))))


@pytest.mark.parametrize("seed", [*SEEDS, *CORPUS])
def test_random_clusters_keep_all_invariants(seed: int) -> None:
    assert cluster_violations(seed) == ""


@pytest.mark.parametrize(("seed", "conflicts", "crash_every"), TROUBLED)
def test_clusters_keep_invariants_despite_conflicts_and_crashes(seed: int, conflicts: float, crash_every: int) -> None:
    assert cluster_violations(seed, conflicts=conflicts, crash_every=crash_every) == ""


def test_cluster_log_is_independent_of_hash_seed() -> None:
    seeds = SEEDS[:4]
    code = (
        "import json, sys\n"
        "from properties.test_cluster_laws import log_of\n"
        f"sys.stdout.write(json.dumps([log_of(seed) for seed in {list(seeds)}]))"
    )
    for hash_seed in (0, 1):
        environment = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert json.loads(done.stdout) == [log_of(seed) for seed in seeds]


# Topology-aware scheduling on racks of nodes that fail and recover.


HOSTS = [f"b{block}r{rack}h{host}" for block in range(2) for rack in range(2) for host in range(3)]
QUEUE = "kueue.x-k8s.io/queue-name"
REQUESTS: tuple[dict[str, str], ...] = (
    *({"required": "block"}, {"required": "rack"}, {"preferred": "rack"}),
    *({"unconstrained": "true"}, {}),
)


def rack_node(name: str, at: int, **fields: Any) -> Obj:
    """A Node with two cpus from `at` seconds on; the name `b1r2h3` is host 3 in rack 2 of block 1."""
    times = {"batchyard.dev/submit-at": f"{at}s"}
    if "gone_at" in fields:
        times["batchyard.dev/delete-at"] = f"{fields.pop('gone_at')}s"
    labels = {"block": name[:2], "rack": name[:4], "kubernetes.io/hostname": name, "pool": "tas"}
    ready = {"type": "Ready", "status": str(fields.pop("ready", True))}
    status = {"allocatable": {"cpu": "2", "pods": "9"}, "conditions": [ready]}
    metadata = {"name": name, "labels": labels, "annotations": times}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": fields, "status": status}


def rack_job(name: str, draws: SeededDraws) -> Obj:
    """A Job or JobSet of up to three pods."""
    count = 1 + draws.draw_below(3)
    request = REQUESTS[draws.draw_below(len(REQUESTS))]
    template = make.pod_template(requests={"cpu": str(1 + draws.draw_below(2))})
    template["metadata"] = {"annotations": {f"kueue.x-k8s.io/podset-{k}-topology": v for k, v in request.items()}}
    spec: dict[str, Any] = {
        "parallelism": count,
        "completions": count,
        "completionMode": "Indexed",
        "template": template,
    }
    jobset = make.jobset(replicated_jobs=[make.replicated_job("w", **spec, backoffLimit=99)])
    made = make.job(**spec, backoffLimit=99) if draws.draw_below(2) else jobset
    times = {"submit-at": f"{1 + draws.draw_below(250)}s", "runtime": f"{10 + draws.draw_below(900)}s"}
    labels = {QUEUE: "lq", **({"kueue.x-k8s.io/priority-class": "high"} if draws.draw_below(3) == 0 else {})}
    annotations = {f"batchyard.dev/{key}": text for key, text in times.items()}
    made["metadata"] = {"name": name, "namespace": "team", "labels": labels, "annotations": annotations}
    return {**made, "spec": {**made["spec"], **({"failurePolicy": {"maxRestarts": 99}} if made is jobset else {})}}


def rack_scenario(seed: int) -> Scenario:
    """Jobs on racks, with nodes that become unready, tainted, cordoned or deleted for a while."""
    draws = SeededDraws(seed)
    topology = make.topology()
    topology["spec"]["levels"] = [{"nodeLabel": name} for name in ("block", "rack", "kubernetes.io/hostname")]
    groups = [yard.group(tas={"cpu": 20})]
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = make.cluster_queue(active=None, preemption=preemption, resourceGroups=groups)
    flavor = make.flavor("tas", labels={"pool": "tas"}, topologyName="racks")
    objects = [topology, flavor, queue, make.local_queue(), make.namespace(), make.workload_priority_class("high", 9)]
    objects += [rack_node(name, 0) for name in HOSTS]
    for _ in range(3 + draws.draw_below(8)):
        name, at = HOSTS[draws.draw_below(len(HOSTS))], 20 + draws.draw_below(280)
        taints = [{"key": "broken", "effect": ("NoExecute", "NoSchedule")[draws.draw_below(2)]}]
        changes = ({"ready": False}, {"taints": taints}, {"unschedulable": True}, {"gone_at": at + 1})
        objects.append(rack_node(name, at, **changes[draws.draw_below(4)]))
        objects.append(rack_node(name, at + 20 + draws.draw_below(1500)))
    objects += [rack_job(f"j{number}", draws) for number in range(3 + draws.draw_below(8))]
    for obj in objects:
        obj["metadata"] = {k: v for k, v in obj["metadata"].items() if k not in {"uid", "creationTimestamp"}}
    objects.append({"apiVersion": "sim.batchyard.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "racks"}})
    return make_scenario(read_manifests((f"{i}.yaml", json.dumps(obj)) for i, obj in enumerate(objects)))


@pytest.mark.parametrize("seed", range(8))
def test_jobs_on_failing_racks_keep_all_invariants_despite_conflicts_and_crashes(seed: int) -> None:
    assert violations_with_faults(rack_scenario(seed), conflicts=0.3, crash_every=13) == ""


@pytest.mark.parametrize("seed", range(100, 108))
def test_pods_run_only_on_assigned_nodes_of_failing_racks(seed: int) -> None:
    hosts_by_job: dict[str, list[str]] = {}
    log = event_log(rack_scenario(seed))
    for record in log:
        for pod_set in record.get("podSets", ()):
            job = record["workload"].split("-")[1]
            hosts_by_job[job] = [each["values"][-1] for each in pod_set["topologyAssignment"]["domains"]]
        if record["event"] == "PodBound":
            job = record["pod"].removeprefix("team/").partition("-")[0]
            assert record["node"] in hosts_by_job[job], record
    assert any(record["event"] == "Finished" for record in log)
    assert log[-1]["pending"] == log[-1]["admitted"] == []
