"""States read from lists of objects, and written as such."""

import json

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR
from batchyard.scheduling.kueue_configuration import SIMULATED
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.state_document import document_of, read_state, state_of
from batchyard.sim.whatif import start_of
from unit.sim.forks_make import queue, state, workload

MANIFESTS = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*queue(1), workload("a", 5)]})


def test_a_state_that_was_written_is_read_as_it_was() -> None:
    found = state([*queue(1), workload("a", 30), workload("b", 5, 1)], 10)
    read = read_state(json.dumps(document_of(found)))
    assert (read.at, read.revision, dict(read.objects)) == (found.at, found.revision, dict(found.objects))


def test_what_does_not_say_when_it_was_is_as_old_as_the_latest_that_it_tells() -> None:
    found = state([*queue(1), workload("a", 5)], 60)
    document = {**document_of(found), "metadata": {}}
    assert read_state(json.dumps(document)).at == parse_time("2026-01-01T00:00:05Z")


def test_manifests_get_what_stored_objects_have() -> None:
    found = read_state(MANIFESTS).objects
    metadata = found[Key(scheme.WORKLOAD, "team", "a")]["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"] == "1970-01-01T00:00:00Z"
    assert sorted(int(obj["metadata"]["resourceVersion"]) for obj in found.values()) == [1, 2, 3, 4]


def test_revisions_that_are_there_twice_are_counted_anew() -> None:
    objects = [{**obj, "metadata": {**obj["metadata"], "resourceVersion": "7"}} for obj in queue(1)]
    assert sorted(int(o["metadata"]["resourceVersion"]) for o in state_of(objects).objects.values()) == [1, 2, 3]


def test_leases_events_and_what_nobody_knows_are_left_out() -> None:
    metadata = {"name": "a", "namespace": "team", "resourceVersion": "1", "uid": "u"}
    kinds = [("v1", "Secret"), ("v1", "Event"), ("coordination.k8s.io/v1", "Lease"), ("example.com/v1", "Widget")]
    items = [{"apiVersion": version, "kind": kind, "metadata": metadata} for version, kind in kinds]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
    found = read_state(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, pod]}))
    assert list(found.objects) == [Key("Pod", "team", "a")]


def test_older_versions_are_read_in_the_one_that_is_stored() -> None:
    spec = {"cohort": "all", "namespaceSelector": {}}
    metadata = {"name": "cq", "resourceVersion": "5", "uid": "u"}
    old = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": metadata, "spec": spec}
    (found,) = read_state(json.dumps(old)).objects.values()
    assert (found["apiVersion"], found["spec"]["cohortName"]) == ("kueue.x-k8s.io/v1beta2", "all")


def test_what_kubectl_applied_last_is_known() -> None:
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"a": "b"}}}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(manifest)}
    stored = {**manifest, "metadata": {"name": "team", "resourceVersion": "1", "annotations": annotations}}
    applied = read_state(json.dumps(stored)).applied
    assert applied[Key("Namespace", "", "team")]["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("text", "reported"),
    [("---\n\n", "it contains no objects"), ("a: [\n", "line"), ('{"apiVersion": "v1", "kind": "Pod"}', "metadata")],
)
def test_what_is_wrong_is_told(text: str, reported: str) -> None:
    with pytest.raises(InvalidScenario, match=reported):
        read_state(text)


def test_what_others_wrote_ahead_of_time_does_not_move_the_instant_of_a_state() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T09:00:00Z"}
    node = {"apiVersion": "v1", "kind": "Node", "status": {"conditions": [ready]}}
    node["metadata"] = {"name": "n", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    at = parse_time("2026-01-01T01:00:00Z")
    assert state_of([node], at).at == at
    assert state_of([node]).at == at + 8 * HOUR
    assert state_of([node], at - 2 * HOUR).at == at - HOUR  # nothing was made later than that


def test_what_kueue_decides_by_is_no_object_and_counts_for_what_comes_of_it() -> None:
    stated = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]},
    }
    found = read_state(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*queue(1), workload("a", 5), stated]}))
    again = read_state(json.dumps(document_of(found)))
    assert {key.kind for key in again.objects}.isdisjoint({scheme.CONFIGURATION})
    assert again.kueue.policy.fair_strategies == (FairSharingStrategy.INITIAL_SHARE,)
    assert start_of(again).scenario.kueue == again.kueue
    assert read_state(MANIFESTS).kueue == SIMULATED
