"""Defaults of new objects."""

from typing import Any

import pytest

import make
from batchyard.api.defaults import with_defaults
from batchyard.api.validation import validate
from object_edits import GONE, with_edits

IN_USE = "kueue.x-k8s.io/resource-in-use"
TEMPLATE = make.pod_template(restartPolicy="Never")
JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "j"},
    "spec": {"template": TEMPLATE},
}
POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **make.pod_template()}
POOL: dict[str, Any] = {"name": "np", "machineType": "g2-standard-24"}
POLICY = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "A"}, {"type": "B", "status": "False"}]}]}


@pytest.mark.parametrize(
    "obj", [pytest.param(make.cluster_queue(), id="queue"), pytest.param(make.flavor(), id="flavor")]
)
def test_queue_and_flavor_get_resource_in_use_finalizer(obj: dict[str, Any]) -> None:
    assert with_defaults(obj)["metadata"]["finalizers"] == [IN_USE]
    assert with_defaults(with_edits(obj, {"metadata.finalizers": ["a.io/b"]}))["metadata"]["finalizers"] == [
        "a.io/b",
        IN_USE,
    ]


def test_minimal_job_gets_defaults() -> None:
    assert with_defaults(JOB)["spec"] == {
        "template": TEMPLATE,
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "manualSelector": False,
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"parallelism": 3}, {"parallelism": 3, "completions": None}, id="a work queue"),
        pytest.param({"completions": 3}, {"parallelism": 1, "completions": 3}, id="one after another"),
        pytest.param({"backoffLimitPerIndex": 1}, {"backoffLimit": 2**31 - 1}, id="backoff limit per index"),
        pytest.param({"podFailurePolicy": POLICY}, {"podReplacementPolicy": "Failed"}, id="a failure policy"),
        pytest.param({"suspend": True, "backoffLimit": 0}, {"suspend": True, "backoffLimit": 0}, id="given fields"),
    ],
)
def test_job_defaults_depend_on_given_fields(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    done = with_defaults(with_edits(JOB, {f"spec.{field}": value for field, value in spec.items()}))
    assert {field: done["spec"].get(field) for field in expected} == expected


def test_failure_policy_condition_status_defaults_to_true() -> None:
    done = with_defaults(with_edits(JOB, {"spec.podFailurePolicy": POLICY}))
    (rule,) = done["spec"]["podFailurePolicy"]["rules"]
    assert rule["onPodConditions"] == [{"type": "A", "status": "True"}, {"type": "B", "status": "False"}]


def test_complete_failure_policy_rules_are_unchanged() -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]
    stated = {"rules": [*rules, {"action": "Ignore", "onPodConditions": [{"type": "A", "status": "True"}]}]}
    mixed = {"rules": [*rules, *POLICY["rules"]]}
    assert with_defaults(with_edits(JOB, {"spec.podFailurePolicy": stated}))["spec"]["podFailurePolicy"] == stated
    assert (
        with_defaults(with_edits(JOB, {"spec.podFailurePolicy": mixed}))["spec"]["podFailurePolicy"]["rules"][:1]
        == rules
    )


def test_job_without_labels_gets_labels_of_pod_template() -> None:
    queue = {"kueue.x-k8s.io/queue-name": "lq"}
    job = with_edits(JOB, {"spec.template.metadata": {"labels": queue}})
    assert with_defaults(job)["metadata"]["labels"] == queue
    assert with_defaults(with_edits(job, {"metadata.labels": {"a": "b"}}))["metadata"]["labels"] == {"a": "b"}


def test_jobset_gets_default_policies_and_network() -> None:
    spec = with_defaults(make.jobset())["spec"]
    assert spec["successPolicy"] == {"operator": "All"}
    assert spec["startupPolicy"] == {"startupPolicyOrder": "AnyOrder"}
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert "failurePolicy" not in spec


def test_jobset_jobs_default_to_indexed_and_restart_on_failure() -> None:
    silent = make.pod_template()
    del silent["spec"]["restartPolicy"]
    jobset = make.jobset(replicated_jobs=[make.replicated_job(template=silent)])
    (replicated,) = with_defaults(jobset)["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["completionMode"], job["template"]["spec"]["restartPolicy"]) == ("Indexed", "OnFailure")


@pytest.mark.parametrize(
    ("edits", "path", "expected"),
    [
        pytest.param(
            {"spec.failurePolicy": {"maxRestarts": 3}},
            "failurePolicy",
            {"maxRestarts": 3, "restartStrategy": "Recreate"},
            id="restart strategy",
        ),
        pytest.param(
            {"spec.failurePolicy": {"rules": [{"action": "FailJobSet"}, {"name": "mine", "action": "FailJobSet"}]}},
            "failurePolicy",
            {
                "restartStrategy": "Recreate",
                "rules": [
                    {"name": "failurePolicyRule0", "action": "FailJobSet"},
                    {"name": "mine", "action": "FailJobSet"},
                ],
            },
            id="names of rules",
        ),
        pytest.param(
            {"spec.network": {"enableDNSHostnames": False, "subdomain": "net"}},
            "network",
            {"enableDNSHostnames": False, "subdomain": "net", "publishNotReadyAddresses": True},
            id="own network",
        ),
        pytest.param(
            {"spec.volumeClaimPolicies": [{"templates": []}]},
            "volumeClaimPolicies",
            [{"templates": [], "retentionPolicy": {"whenDeleted": "Delete"}}],
            id="disks",
        ),
    ],
)
def test_partial_jobset_fields_are_completed(edits: dict[str, Any], path: str, expected: object) -> None:
    assert with_defaults(with_edits(make.jobset(), edits))["spec"][path] == expected


def test_minimal_pod_gets_defaults() -> None:
    done = with_defaults(with_edits(POD, {"spec.restartPolicy": GONE}))
    assert {**done["spec"], "containers": None} == {
        "containers": None,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
    }
    assert done["status"] == {"phase": "Pending"}


def test_pod_fields_override_defaults() -> None:
    stated = {"spec.restartPolicy": "Never", "spec.terminationGracePeriodSeconds": 0, "status": {"phase": "Running"}}
    done = with_defaults(with_edits(POD, stated))
    assert (done["spec"]["restartPolicy"], done["spec"]["terminationGracePeriodSeconds"]) == ("Never", 0)
    assert done["status"] == {"phase": "Running"}


def test_container_requests_default_to_limits() -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": 1}}
    stated = {"name": "d", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
    done = with_defaults(with_edits(POD, {"spec.containers": [{"name": "c", "resources": resources}, stated]}))
    first, second = done["spec"]["containers"]
    assert first["resources"]["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}
    assert second["resources"] == stated["resources"]


def test_host_network_pod_gets_host_ports() -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81, "hostPort": 82, "protocol": "TCP"}]
    ports.append({"containerPort": 83, "hostPort": 0, "protocol": "TCP"})
    container = {"name": "c", "image": "i", "ports": ports}
    done = with_defaults(with_edits(POD, {"spec.hostNetwork": True, "spec.containers": [container]}))
    assert [port["hostPort"] for port in done["spec"]["containers"][0]["ports"]] == [80, 82, 83]


def test_node_allocatable_defaults_to_capacity() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}}
    defaulted = with_defaults(node)
    assert (defaulted["spec"], defaulted["status"]["allocatable"]) == ({}, {"cpu": "4"})
    less = with_edits(defaulted, {"status.allocatable": {"cpu": "3900m"}})
    assert with_defaults(less) is less


def cluster(*pools: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Cluster of two zones with these pools."""
    zones = ["us-central1-a", "us-central1-b"]
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "batch"},
        "spec": {"zones": zones, "nodePools": list(pools), **spec},
    }


def pool_of(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the first pool of a Cluster with defaults."""
    pool: dict[str, Any] = with_defaults(obj)["spec"]["nodePools"][0]
    return pool


def test_cluster_region_defaults_to_region_of_zones() -> None:
    assert with_defaults(cluster())["spec"]["region"] == "us-central1"
    assert with_defaults(cluster(zones=["here"]))["spec"]["region"] == "here"


def test_pool_zones_default_to_cluster_zones_or_reservation_zone() -> None:
    reservation = {"name": "ours", "machineType": "g2-standard-24", "zone": "us-central1-b", "count": 4}
    assert pool_of(cluster(POOL))["zones"] == ["us-central1-a", "us-central1-b"]
    reserved = cluster({**POOL, "reservation": "ours"}, reservations=[reservation])
    assert pool_of(reserved)["zones"] == ["us-central1-b"]
    assert pool_of(cluster({**POOL, "zones": ["us-central1-a"]}))["zones"] == ["us-central1-a"]


@pytest.mark.parametrize(
    ("fields", "nodes", "autoscaling"),
    [
        pytest.param({"autoscaling": {"max": 4}}, 0, {"min": 0, "max": 4, "locationPolicy": "BALANCED"}, id="by zone"),
        pytest.param({"autoscaling": {"min": 1, "max": 4}}, 1, {"locationPolicy": "BALANCED"}, id="never empty"),
        pytest.param({"autoscaling": {"totalMax": 24}}, 0, {"totalMin": 0, "totalMax": 24}, id="over all zones"),
        pytest.param({"provisioning": "spot", "autoscaling": {"max": 4}}, 0, {"locationPolicy": "ANY"}, id="Spot"),
        pytest.param({"nodeCount": 2, "autoscaling": {"max": 4}}, 2, {"min": 0}, id="initial node count"),
    ],
)
def test_autoscaled_pool_gets_node_count_and_autoscaling_defaults(
    fields: dict[str, Any], nodes: int, autoscaling: dict[str, Any]
) -> None:
    done = pool_of(cluster({**POOL, **fields}))
    assert done["nodeCount"] == nodes
    assert {**done["autoscaling"], **autoscaling} == done["autoscaling"]


def test_node_pool_object_gets_pool_defaults() -> None:
    obj = {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "np"}}
    fixed = {**obj, "spec": {"machineType": "e2-small", "nodeCount": 1}}
    assert with_defaults(fixed) is fixed
    grown = with_defaults({**obj, "spec": {"machineType": "e2-small", "autoscaling": {"max": 3}}})
    assert (grown["spec"]["nodeCount"], grown["spec"]["autoscaling"]["min"]) == (0, 0)
    assert "zones" not in grown["spec"]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(make.workload(), id="Workload"),
        pytest.param(make.local_queue(), id="LocalQueue"),
        pytest.param(with_defaults(make.cluster_queue()), id="ClusterQueue"),
        pytest.param(with_defaults(make.flavor()), id="ResourceFlavor"),
        pytest.param(with_defaults(JOB), id="Job"),
        pytest.param(with_defaults(make.jobset()), id="JobSet"),
        pytest.param(with_defaults(POD), id="Pod"),
        pytest.param(with_defaults(cluster({**POOL, "autoscaling": {"max": 1}})), id="Cluster"),
    ],
)
def test_object_with_defaults_is_returned_unchanged(obj: dict[str, Any]) -> None:
    assert with_defaults(obj) is obj


@pytest.mark.parametrize("obj", [make.cluster_queue(), make.flavor(), JOB, make.jobset()], ids=lambda obj: obj["kind"])
def test_with_defaults_does_not_modify_input(obj: dict[str, Any]) -> None:
    before = repr(obj)
    with_defaults(obj)
    assert repr(obj) == before


def test_objects_with_defaults_are_valid() -> None:
    assert validate(with_defaults(make.jobset())) == []
    assert validate(with_defaults(JOB)) == []


def test_volume_claim_and_volume_get_defaults() -> None:
    claim = with_defaults({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {}})
    assert (claim["status"], claim["spec"]) == ({"phase": "Pending"}, {"volumeMode": "Filesystem"})
    volume = with_defaults({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"}})
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
