"""The examples are complete, and the reference architecture has its names, quotas and shapes."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from batchyard.api import scheme
from batchyard.api.manifests import Manifests, read_manifests
from batchyard.api.meta import parse_quantity
from batchyard.base.instant import parse_duration
from batchyard.sim.event_log import Record
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World, ignore_record

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
REFARCH = ROOT.parent / "shared" / "refarch"

needs_refarch = pytest.mark.skipif(
    not REFARCH.is_dir(), reason="the reference architecture is not beside this repository"
)

PLATFORM = (
    "ResourceFlavor",
    "ClusterQueue",
    "LocalQueue",
    "PriorityClass",
    "AdmissionCheck",
    "ProvisioningRequestConfig",
)
WORKLOADS = ("Job", "JobSet", "Service", "ConfigMap")

Obj: TypeAlias = dict[str, Any]
#: An object: its folder in the reference architecture, kind, namespace and name.
Place: TypeAlias = tuple[str, str, str, str]


def test_scenario_and_cluster_documents_of_docs_are_valid() -> None:
    blocks = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "reference" / "scenarios.md").read_text("utf-8"), re.DOTALL
    )
    _workload, request, described, reserved = (yaml.safe_load(block) for block in blocks)
    group, cloud = "sim.batchyard.dev/v1alpha1", "cloud.batchyard.dev/v1alpha1"
    documents = [
        {"apiVersion": group, "kind": "Scenario", "metadata": {"name": "s"}, "spec": request},
        {
            "apiVersion": cloud,
            "kind": "Cluster",
            "metadata": {"name": "c"},
            "spec": {"zones": ["us-central1-c"], **described, **reserved},
        },
    ]
    result = read_manifests([("scenarios.md", yaml.safe_dump_all(documents))])
    assert (result.faults, result.warnings) == ([], [])
    assert make_scenario(result).pods_ready is not None


@cache
def objects(folder: Path) -> dict[Place, Obj]:
    """The objects of the manifests below a folder."""
    result = {}
    for path in sorted(folder.rglob("*.yaml")):
        where = path.parent.relative_to(folder).as_posix()
        if path.name in ("guide.yaml", "cluster.yaml") or where == "platform/monitoring":
            continue
        for obj in filter(None, yaml.load_all(path.read_text("utf-8"), yaml.CSafeLoader)):
            metadata = obj["metadata"]
            result[where, obj["kind"], metadata.get("namespace", ""), metadata["name"]] = obj
    return result


def shape(obj: Obj) -> object:
    """The fields of an object that decide how it is queued and placed, the same for every API version."""
    spec = obj.get("spec", {})
    match obj["kind"]:
        case "ClusterQueue":
            return cluster_queue(spec)
        case "Job":
            return obj["metadata"]["labels"], job(spec)
        case "JobSet":
            jobs = [(replicated["name"], job(replicated["template"]["spec"])) for replicated in spec["replicatedJobs"]]
            return obj["metadata"]["labels"], spec["failurePolicy"], jobs
        case "PriorityClass":
            return obj["value"], obj["preemptionPolicy"], obj["globalDefault"]
        case "ConfigMap":
            return sorted(obj["data"])
    return spec


def cluster_queue(spec: Obj) -> Obj:
    """A ClusterQueue with its cohort and checks under one name, its quotas as numbers."""
    kept = {name: spec.get(name) for name in ("queueingStrategy", "preemption", "namespaceSelector", "stopPolicy")}
    checks = spec.get("admissionChecksStrategy", {}).get("admissionChecks", [])
    quotas = {
        (flavor["name"], resource["name"]): {
            name: parse_quantity(value) for name, value in resource.items() if name != "name"
        }
        for group in spec["resourceGroups"]
        for flavor in group["flavors"]
        for resource in flavor["resources"]
    }
    return {
        **kept,
        "cohort": spec.get("cohort", spec.get("cohortName")),
        "checks": spec.get("admissionChecks", [check["name"] for check in checks]),
        "covered": [group["coveredResources"] for group in spec["resourceGroups"]],
        "quotas": list(quotas.items()),
    }


def job(spec: Obj) -> Obj:
    """A Job with the requests of its pods, but not their commands."""
    pods = spec["template"]["spec"]
    kept = ("nodeSelector", "tolerations", "priorityClassName", "serviceAccountName", "subdomain", "restartPolicy")
    return {
        **{name: value for name, value in spec.items() if name != "template"},
        **{name: pods.get(name) for name in kept},
        "containers": {container["name"]: amounts(container["resources"]) for container in pods["containers"]},
    }


def amounts(resources: Mapping[str, Mapping[str, str]]) -> Obj:
    """Requests and limits as numbers."""
    return {
        which: {name: parse_quantity(value) for name, value in quantities.items()}
        for which, quantities in resources.items()
    }


def read(name: str) -> Manifests:
    """The manifests of an example."""
    paths = sorted((EXAMPLES / name).rglob("*.yaml"))
    return read_manifests((path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths)


def run(name: str, *, until: str = "1h", sink: Callable[[Record], None] = ignore_record) -> World:
    """Simulate an example."""
    world = World(make_scenario(read(name)), sink=sink)
    world.run_until(parse_duration(until))
    world.flush_batched_writes()
    return world


def event_times(name: str, event: str) -> dict[str, float]:
    """The time of the last event of a type for each Job of an example, in seconds."""
    records: list[Record] = []
    run(name, sink=records.append)
    return {
        record["workload"].partition("/job-")[2].rpartition("-")[0]: record["time"]
        for record in records
        if record["event"] == event
    }


@needs_refarch
def test_refarch_has_same_objects_in_same_folders() -> None:
    ours, theirs = objects(EXAMPLES / "refarch"), objects(REFARCH)
    assert sorted(ours) == sorted(theirs)
    assert len(ours) == 207


@needs_refarch
@pytest.mark.parametrize("kind", [*PLATFORM, *WORKLOADS])
def test_refarch_has_same_platform_and_workloads(kind: str) -> None:
    ours, theirs = objects(EXAMPLES / "refarch"), objects(REFARCH)
    for place in (place for place in theirs if place[1] == kind):
        assert shape(ours[place]) == shape(theirs[place]), place


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_every_example_is_valid(name: str) -> None:
    manifests = read(name)
    assert [*map(str, manifests.faults), *manifests.warnings] == []
    assert len(manifests.objects) > 1


def test_first_steps_example_finishes_in_one_minute() -> None:
    assert event_times("first-steps", "Finished") == {"train-a": 30, "train-b": 61, "train-c": 60}


def test_borrower_keeps_quota_without_reclaim() -> None:
    reserved = event_times("cohort-borrowing", "QuotaReserved")
    assert (reserved["red-3"], reserved["blue-1"]) == (3, 30)
    assert (reserved["blue-2"], reserved["red-4"]) == (61, 62)


def test_production_and_urgent_jobs_preempt() -> None:
    assert event_times("preemption", "Preempted") == {"study-4": 30, "study-3": 30, "study-2": 45}
    assert event_times("preemption", "QuotaReserved")["study-2"] == 75


def test_queue_with_double_weight_gets_double_share() -> None:
    world = run("fair-sharing", until="3m")
    queues = world.objects(scheme.CLUSTER_QUEUE)
    admitted = {queue["metadata"]["name"]: queue["status"]["admittedWorkloads"] for queue in queues}
    assert admitted == {"alpha-queue": 3, "beta-queue": 3, "gamma-queue": 6}


def test_research_borrows_up_to_its_limit() -> None:
    reserved = event_times("hierarchy", "QuotaReserved")
    assert (reserved["vision-5"], reserved["language-1"], reserved["search-2"]) == (5, 61, 22)


def test_every_example_job_has_runtime() -> None:
    cluster = yaml.safe_load((EXAMPLES / "refarch" / "cluster.yaml").read_text("utf-8"))
    by_cluster = {name for row in cluster["spec"]["runtimes"]["jobs"] for name in row["names"]}
    for obj in objects(EXAMPLES).values():
        metadata = obj["metadata"]
        if obj["kind"] in ("Job", "JobSet") and f"{metadata.get('namespace')}/{metadata['name']}" not in by_cluster:
            assert "batchyard.dev/runtime" in metadata.get("annotations", {}), metadata


def test_every_example_is_listed_and_has_readme() -> None:
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    assert [name for name in folders if f"[{name}]({name})" not in listed] == []
    assert [name for name in folders if not (EXAMPLES / name / "README.md").is_file()] == []
