"""Manifests become scenario steps, or a list of all faults."""

import pytest

from batchyard.api.errors import FieldError
from batchyard.api.manifests import read_manifests
from batchyard.api.scheme import WORKLOAD
from batchyard.base.instant import SECOND
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, make_scenario
from batchyard.sim.world import World

CONFIG = """
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: example}
spec: {fairSharing: true, horizon: 10m}
"""


def config_map(name: str, **annotations: str) -> str:
    """A document; annotations are named without their prefix."""
    noted = "".join(f"\n    batchyard.dev/{key.replace('_', '-')}: {value}" for key, value in annotations.items())
    notes = f"\n  annotations:{noted}" if noted else ""
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: team{notes}\n"


def scenario(*documents: str) -> Scenario:
    """The scenario of documents of one file."""
    return make_scenario(read_manifests([("f.yaml", "---\n".join(documents))]))


def faults(*documents: str) -> list[str]:
    """The faults of documents of one file."""
    with pytest.raises(InvalidScenario) as reported:
        scenario(*documents)
    return [str(fault) for fault in reported.value.faults]


def test_objects_without_annotations_are_applied_at_start_in_order() -> None:
    (step,) = scenario(config_map("b"), config_map("a")).steps
    assert step.at == 0
    assert [obj["metadata"]["name"] for obj in step.apply] == ["b", "a"]


def test_annotations_set_times_of_apply_and_delete() -> None:
    steps = scenario(config_map("a", submit_at="1m30s", delete_at="2m"), config_map("b", submit_at="0.5s")).steps
    applied = [(step.at, [obj["metadata"]["name"] for obj in step.apply]) for step in steps]
    assert applied == [(0, []), (SECOND // 2, ["b"]), (90 * SECOND, ["a"]), (120 * SECOND, [])]
    assert [key.name for key in steps[-1].delete] == ["a"]


def test_namespaces_are_applied_before_their_objects() -> None:
    (step,) = scenario(config_map("a"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n").steps
    assert [obj["kind"] for obj in step.apply] == ["Namespace", "ConfigMap"]


def test_namespace_manifest_is_applied_at_its_submit_time() -> None:
    later = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: team\n  annotations: {batchyard.dev/submit-at: 3s}\n"
    steps = scenario(later, config_map("a", submit_at="5s")).steps
    assert [(step.at, len(step.apply)) for step in steps] == [(0, 0), (3 * SECOND, 1), (5 * SECOND, 1)]


def test_object_to_delete_needs_name() -> None:
    nameless = config_map("a", delete_at="5s").replace("name: a", "generateName: a-")
    (fault,) = faults(nameless)
    place = "f.yaml:7 ConfigMap/a-*: metadata.annotations[batchyard.dev/delete-at]"
    assert fault == f"{place}: an object with this annotation needs a name; set metadata.name instead of generateName"


def test_object_may_have_generate_name() -> None:
    nameless = "apiVersion: v1\nkind: Namespace\nmetadata: {generateName: a-}\n"
    created = scenario(CONFIG.replace("name: example", "generateName: example-"), nameless)
    assert (created.name, created.counts) == ("", {"Namespace": 1})


def test_scenario_document_configures_run() -> None:
    created = scenario(CONFIG, config_map("a"))
    assert (created.name, created.fair_sharing, created.horizon) == ("example", True, 600 * SECOND)
    assert created.counts == {"ConfigMap": 1}


def waiting(stated: str) -> str:
    """A Scenario that waits for pods to be ready."""
    return CONFIG.replace("horizon: 10m", f"waitForPodsReady: {stated}")


@pytest.mark.parametrize("spec", ["{enable: false}", "{enable: false, timeout: 1m}", "null"])
def test_pods_ready_timeout_is_off_by_default(spec: str) -> None:
    assert scenario(CONFIG).pods_ready is None
    assert scenario(waiting(spec)).pods_ready is None


def test_wait_for_pods_ready_has_fields_and_defaults_of_kueue() -> None:
    assert scenario(waiting("{}")).pods_ready == PodsReadyPolicy()
    strategy = "{timestamp: Creation, backoffLimitCount: 2, backoffBaseSeconds: 10, backoffMaxSeconds: 40}"
    created = scenario(
        waiting(f"{{timeout: 5m, recoveryTimeout: 0s, blockAdmission: true, requeuingStrategy: {strategy}}}")
    )
    assert created.pods_ready == PodsReadyPolicy(
        300 * SECOND, 0, True, RequeuingTimestamp.CREATION, 2, 10 * SECOND, 40 * SECOND
    )


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ("{timeout: 0s}", 'timeout: Invalid value: "0s": must be greater than 0; use a time such as 5m,'),
        ("{timeout: soon}", "timeout: Invalid value: 'soon' is not a duration"),
        ("{timout: 5m}", "timout: unknown field; did you mean timeout?"),
        ("{requeuingStrategy: {timestamp: Later}}", 'requeuingStrategy.timestamp: Unsupported value: "Later"'),
        ("{requeuingStrategy: {backoffLimitCount: -1}}", "requeuingStrategy.backoffLimitCount: Invalid value: -1"),
    ],
)
def test_invalid_wait_for_pods_ready_is_reported_with_path(spec: str, reported: str) -> None:
    (fault,) = faults(waiting(spec))
    assert fault.startswith(f"f.yaml:5 Scenario/example: spec.waitForPodsReady.{reported}")


def test_feature_gates_are_set_and_unknown_ones_are_rejected() -> None:
    gates = "featureGates: {TASBalancedPlacement: true}"
    assert scenario(CONFIG.replace("horizon: 10m", gates)).kueue.topology_gates == {"TASBalancedPlacement": True}
    (fault,) = faults(CONFIG.replace("horizon: 10m", gates.replace("Balanced", "Balance")))
    place = "f.yaml:5 Scenario/example: spec.featureGates.TASBalancePlacement"
    assert fault == f"{place}: unknown feature gate 'TASBalancePlacement'; did you mean 'TASBalancedPlacement'?"


def test_unsupported_feature_gates_are_rejected() -> None:
    (fault,) = faults(CONFIG.replace("horizon: 10m", "featureGates: {PriorityBoost: true}"))
    assert fault.startswith("f.yaml:5 Scenario/example: spec.featureGates.PriorityBoost: this setting is not supported")


def test_second_scenario_is_rejected() -> None:
    assert faults(CONFIG, CONFIG) == [
        "f.yaml:8 Scenario/example: there is already a document of kind Scenario; keep one of them"
    ]


def test_every_invalid_duration_is_reported_with_path() -> None:
    reported = faults(config_map("a", submit_at="soon", runtime="10 minutes"), config_map("b", delete_at="-5s"))
    assert [fault.removesuffix("; write it as 90s, 1h30m or 0.5s") for fault in reported] == [
        "f.yaml:7 ConfigMap/a: metadata.annotations[batchyard.dev/submit-at]: 'soon' is not a duration",
        "f.yaml:8 ConfigMap/a: metadata.annotations[batchyard.dev/runtime]: '10 minutes' is not a duration",
        "f.yaml:16 ConfigMap/b: metadata.annotations[batchyard.dev/delete-at]: '-5s' is not a duration",
    ]


def test_invalid_horizon_is_reported_with_path() -> None:
    (fault,) = faults(CONFIG.replace("10m", "for ever"))
    assert fault.startswith("f.yaml:5 Scenario/example: spec.horizon: Invalid value: 'for ever' is not")


def test_horizon_over_ten_years_is_rejected() -> None:
    (fault,) = faults(CONFIG.replace("10m", "99999999h"))
    problem = "the run length 99999999h is more than ten years; use a shorter one"
    assert fault == f"f.yaml:5 Scenario/example: spec.horizon: {problem}"


def test_unreadable_files_are_reported_with_other_faults() -> None:
    unread = [FileFault("gone.yaml", FieldError("", "cannot be read", "check the name"))]
    with pytest.raises(InvalidScenario) as reported:
        make_scenario(read_manifests([("f.yaml", "kind: Job\n")]), unread)
    first, second = map(str, reported.value.faults)
    assert first == "gone.yaml: cannot be read; check the name"
    assert second.startswith("f.yaml:1 Job: apiVersion: Required value")


def cluster(name: str = "c", *, count: int = 0, **annotations: str) -> str:
    """A Cluster of one pool with this many machines."""
    noted = "".join(f"\n    batchyard.dev/{key.replace('_', '-')}: {value}" for key, value in annotations.items())
    notes = f"\n  annotations:{noted}" if noted else ""
    return (
        f"apiVersion: cloud.batchyard.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: {name}{notes}\n"
        "spec:\n  region: us-central1\n  zones: [us-central1-a]\n"
        f"  nodePools: [{{name: pool, machineType: e2-medium, nodeCount: {count}}}]\n"
        f"  capacity: [{{machineType: e2-medium, zone: us-central1-a, count: {count}}}]\n"
    )


def test_cluster_applied_later_updates_existing_cluster() -> None:
    reported = scenario(cluster(count=2, submit_at="5s"), cluster())
    assert reported.cluster is not None
    assert reported.cluster["spec"]["capacity"][0]["count"] == 0
    (changed, pool) = reported.steps[-1].apply
    assert (reported.steps[-1].at, changed["spec"]["capacity"][0]["count"]) == (5 * SECOND, 2)
    assert (pool["kind"], pool["spec"]["nodeCount"]) == ("NodePool", 2)


def test_second_cluster_at_start_is_rejected() -> None:
    assert faults(cluster(), cluster()) == [
        "f.yaml:11 Cluster/c: there is already a document of kind Cluster; keep one of them"
    ]


@pytest.mark.parametrize("first", [[], [cluster("other")]])
def test_cluster_applied_later_must_exist_at_start(first: list[str]) -> None:
    (reported,) = faults(*first, cluster(submit_at="5s"))
    assert "metadata.name: a later Cluster must have the name of the Cluster at the start" in reported


def test_pool_absent_from_updated_cluster_is_deleted() -> None:
    without = cluster(submit_at="5s").replace("name: pool,", "name: other,")
    silent = cluster(submit_at="7s").replace("  nodePools:", "  # nodePools:")
    reported = scenario(cluster(), without, silent, cluster(submit_at="9s"))
    gone = {step.at // SECOND: [key.name for key in step.delete] for step in reported.steps}
    assert gone == {0: [], 5: ["pool"], 7: [], 9: ["other"]}


def test_cluster_cannot_be_deleted() -> None:
    (reported,) = faults(cluster(delete_at="5s"))
    assert "a Cluster cannot be deleted during a run" in reported


def test_pool_without_cluster_is_rejected() -> None:
    pool = "apiVersion: cloud.batchyard.dev/v1alpha1\nkind: NodePool\nmetadata: {name: p}\n"
    (reported,) = faults(f"{pool}spec: {{machineType: e2-medium, nodeCount: 1}}\n")
    assert "this NodePool has no Cluster" in reported


def test_unrendered_platform_is_rejected() -> None:
    platform = """
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {name: all}
spec: {flavors: [{name: a}], teams: [{name: red}]}
"""
    (reported,) = faults(platform)
    assert "batchyard platform render" in reported


KUEUE = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"


def test_kueue_configuration_configures_run() -> None:
    created = scenario(CONFIG, KUEUE + "waitForPodsReady: {timeout: 5m}\nintegrations: {labelKeysToCopy: [team]}\n")
    assert created.pods_ready == PodsReadyPolicy(300 * SECOND)
    assert (created.fair_sharing, created.horizon, created.kueue.copied_labels) == (True, 600 * SECOND, ("team",))
    assert scenario(KUEUE).fair_sharing is False


def test_wait_for_pods_ready_set_twice_is_rejected() -> None:
    (fault,) = faults(waiting("{timeout: 1m}"), KUEUE)
    assert fault.endswith(
        "waitForPodsReady must not be set if there is a Kueue Configuration; set it only in the Configuration"
    )


def test_second_or_unsupported_kueue_configuration_is_rejected() -> None:
    assert [fault.partition(": ")[2] for fault in faults(KUEUE, KUEUE + "multiKueue: {origin: here}\n")] == [
        "there is already a Kueue Configuration; keep one of them",
        "multiKueue: this setting is not supported: Workloads are not dispatched to other clusters; remove the field",
    ]


def test_retention_of_configuration_deletes_finished_workloads() -> None:
    head = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: {}\nmetadata: {{name: {}, namespace: default}}\n"
    objects = [
        "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: f}\n",
        "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: cq}\nspec: {namespaceSelector: {}}\n",
        head.format("LocalQueue", "lq") + "spec: {clusterQueue: cq}\n",
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, labels: {kueue.x-k8s.io/queue-name: lq},\n"
            "  annotations: {batchyard.dev/runtime: 10s}}\n"
            "spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n"
        ),
    ]
    world = World(scenario(*objects, KUEUE + "objectRetentionPolicies: {workloads: {afterFinished: 30s}}\n"))
    world.run_until(39 * SECOND)
    assert [w["status"]["conditions"][-1]["type"] for w in world.objects(WORKLOAD)] == ["Finished"]
    world.run_until(41 * SECOND)
    assert list(world.objects(WORKLOAD)) == []
