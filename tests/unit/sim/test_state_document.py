"""States are read from lists of objects and written as lists of objects."""

import json

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import decode
from batchyard.api.meta import Key
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.sim.forecasting.run_times import with_runtimes
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.state_document import document_of, is_state_text, manifest_texts, read_state, state_of
from batchyard.sim.whatif import start_from_state
from unit.sim.forks_make import queue, state, workload

MANIFESTS = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*queue(1), workload("a", 5)]})


def test_written_state_is_read_back_unchanged() -> None:
    result = state([*queue(1), workload("a", 30), workload("b", 5, 1)], 10)
    read = read_state(json.dumps(document_of(result)))
    assert (read.at, read.revision, dict(read.objects)) == (result.at, result.revision, dict(result.objects))


def test_state_without_time_uses_latest_timestamp_of_its_objects() -> None:
    result = state([*queue(1), workload("a", 5)], 60)
    document = {**document_of(result), "metadata": {}}
    assert read_state(json.dumps(document)).at == parse_time("2026-01-01T00:00:05Z")


def test_manifests_get_fields_of_stored_objects() -> None:
    result = read_state(MANIFESTS).objects
    metadata = result[Key(scheme.WORKLOAD, "team", "a")]["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"] == "1970-01-01T00:00:00Z"
    assert sorted(int(obj["metadata"]["resourceVersion"]) for obj in result.values()) == [1, 2, 3, 4, 5]


def test_unread_namespaces_exist() -> None:
    assert Key(scheme.NAMESPACE, "", "team") in read_state(MANIFESTS).objects


def test_duplicate_resource_versions_are_renumbered() -> None:
    objects = [{**obj, "metadata": {**obj["metadata"], "resourceVersion": "7"}} for obj in queue(1)]
    assert sorted(int(o["metadata"]["resourceVersion"]) for o in state_of(objects).objects.values()) == [1, 2, 3, 4]


def test_leases_events_secrets_and_unknown_kinds_are_skipped() -> None:
    metadata = {"name": "a", "namespace": "team", "resourceVersion": "1", "uid": "u"}
    kinds = [("v1", "Secret"), ("v1", "Event"), ("coordination.k8s.io/v1", "Lease"), ("example.com/v1", "Widget")]
    items = [{"apiVersion": version, "kind": kind, "metadata": metadata} for version, kind in kinds]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
    result = read_state(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, pod]}))
    assert list(result.objects) == [Key("Pod", "team", "a"), Key("Namespace", "", "team")]


def test_older_api_versions_are_converted() -> None:
    spec = {"cohort": "all", "namespaceSelector": {}}
    metadata = {"name": "cq", "resourceVersion": "5", "uid": "u"}
    old = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": metadata, "spec": spec}
    (result,) = read_state(json.dumps(old)).objects.values()
    assert (result["apiVersion"], result["spec"]["cohortName"]) == ("kueue.x-k8s.io/v1beta2", "all")


def test_last_applied_annotation_is_read() -> None:
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"a": "b"}}}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(manifest)}
    stored = {**manifest, "metadata": {"name": "team", "resourceVersion": "1", "annotations": annotations}}
    applied = read_state(json.dumps(stored)).last_applied_manifests
    assert applied[Key("Namespace", "", "team")]["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("---\n\n", "it contains no objects"),
        ("a: 1\n---\nb: [\n", r":3: did not find expected node content"),
        ('{"apiVersion": "v1", "kind": "Pod"}', ":1: metadata"),
    ],
)
def test_invalid_state_is_rejected(text: str, reported: str) -> None:
    with pytest.raises(InvalidScenario, match=reported):
        read_state(text)


def test_state_without_time_uses_heartbeats_of_nodes() -> None:
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}
    node = {"apiVersion": "v1", "kind": "Node", "status": {"conditions": [condition]}}
    condition["lastHeartbeatTime"] = "2026-01-01T00:09:00Z"
    node["metadata"] = {"name": "n", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    result = state_of([node])
    assert (result.at, result.is_time_recorded) == (parse_time("2026-01-01T00:09:00Z"), False)


@pytest.mark.parametrize(
    ("text", "is_state"),
    [
        (
            '{"kind":"JobList","items":[{"metadata":{"uid":"0a","resourceVersion":"7","creationTimestamp":"2026"}}]}',
            True,
        ),
        (
            "kind: List\nitems:\n- metadata:\n    creationTimestamp: '2026'\n    resourceVersion: '7'\n    uid: 0a\n",
            True,
        ),
        ("kind: List\nitems:\n- {kind: Job, metadata: {name: uid}}\n", False),
        ("kind: Job\nmetadata: {creationTimestamp: '2026', resourceVersion: '7', uid: 0a}\n", False),
    ],
)
def test_lists_of_stored_objects_are_states(text: str, is_state: bool) -> None:
    assert is_state_text(text) is is_state


def test_future_condition_time_does_not_change_time_of_state() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T09:00:00Z"}
    node = {"apiVersion": "v1", "kind": "Node", "status": {"conditions": [ready]}}
    node["metadata"] = {"name": "n", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    at = parse_time("2026-01-01T01:00:00Z")
    assert state_of([node], at).at == at
    assert state_of([node]).at == at + 8 * HOUR
    assert state_of([node], at - 2 * HOUR).at == at - HOUR  # no object was created later


def test_kueue_configuration_is_read_as_configuration_not_object() -> None:
    stated = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]},
    }
    result = read_state(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [*queue(1), workload("a", 5), stated]})
    )
    again = read_state(json.dumps(document_of(result)))
    assert {key.kind for key in again.objects}.isdisjoint({scheme.CONFIGURATION})
    assert again.kueue.policy.fair_strategies == (FairSharingStrategy.INITIAL_SHARE,)
    assert start_from_state(again).scenario.kueue == again.kueue
    assert with_runtimes(again)[0].kueue == again.kueue
    assert read_state(MANIFESTS).kueue == SIMULATION_SETTINGS


def test_manifest_of_a_topology_without_spec_has_no_spec() -> None:
    """An empty spec, which is stored for it, is invalid in a manifest."""
    topology = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology", "metadata": {"name": "t"}}
    stored = state_of([*state(queue(1), 10).objects.values(), {**topology, "spec": {}}])
    ((_, text),) = manifest_texts([("s", json.dumps(document_of(stored)))])
    (manifest,) = [each for each in json.loads(text)["items"] if each["kind"] == "Topology"]
    assert "spec" not in manifest
    assert decode(manifest).faults == []
