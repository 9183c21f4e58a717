"""Snapshots contain no possible secrets; a simulation of a snapshot with hashed names has the same events."""

import json
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import LAST_APPLIED
from batchyard.api.meta import key_of
from batchyard.base.instant import SECOND
from batchyard.sim.guide import Guide, examples_folder, guide_steps_up_to
from batchyard.sim.redaction import Redaction, without_secrets
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import OMITTED_KINDS, State
from batchyard.sim.world import World

pytestmark = pytest.mark.slow

KEY = b"of a test"
#: These events occur at the same times; the order of names does not matter.
REPORTED_EVENTS = ("QuotaReserved", "Admitted", "Finished", "Preempted", "NodeReady")


def guide_state() -> State:
    folder = examples_folder()
    assert folder is not None
    world = Guide(folder, guide_steps_up_to("low-priority")).world
    world.run_until(290 * SECOND)
    return world.state()


def redact_object(state: State) -> State:
    redaction = Redaction(KEY)
    objects = [
        redaction.redact_object(without_secrets(obj))
        for key, obj in state.objects.items()
        if key.kind not in OMITTED_KINDS
    ]
    return State(state.at, state.revision, {key_of(obj): obj for obj in objects})


def run_events(state: State) -> list[tuple[float, str]]:
    log: list[Any] = []
    scenario = Scenario((), cluster=state.of_kind(scheme.CLUSTER)[0])
    World(scenario, sink=log.append, state=state).run_until(900 * SECOND)
    return sorted((record["time"], record["event"]) for record in log if record["event"] in REPORTED_EVENTS)


def test_redacted_state_simulates_to_same_events() -> None:
    state = guide_state()
    assert len(run_events(state)) > 10
    assert run_events(redact_object(state)) == run_events(state)


def test_redacted_state_has_no_cluster_names() -> None:
    state = guide_state()
    text = json.dumps([obj for key, obj in redact_object(state).objects.items()])
    kinds = {scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.JOB, scheme.POD, scheme.NODE}
    names = {key.name for key in state.objects if key.kind in kinds}
    assert [name for name in names if name in text] == []
    assert [key.namespace for key in state.objects if key.namespace.startswith("team") and key.namespace in text] == []


def test_redacted_machine_requests_have_no_names() -> None:
    folder = examples_folder()
    assert folder is not None
    world = Guide(folder, guide_steps_up_to("dws")).world
    world.run_until(2700 * SECOND)
    state = world.state()
    kinds = {key.kind for key in state.objects} - OMITTED_KINDS
    assert kinds >= {scheme.PROVISIONING_REQUEST, scheme.RESIZE_REQUEST}
    text = json.dumps([obj for key, obj in redact_object(state).objects.items()])
    names = {part for key in state.objects if key.kind in kinds for part in (key.name, key.namespace)}
    names = {name for name in names if "-" in name and not name.startswith("kube-")}
    assert sorted(name for name in names if f'"{name}"' in text) == []


def test_redacted_costs_and_services_have_no_names_or_addresses() -> None:
    line = {"clusterQueue": "cq-a", "localQueue": "lq-a", "workload": "job-a", "pool": "pool-a", "flavor": "flavor-a"}
    record = {"kind": "CostRecord", "metadata": {"name": "costs-a", "namespace": "team-a"}, "spec": {"lines": [line]}}
    service = {
        "kind": "Service",
        "metadata": {"name": "svc-a"},
        "spec": {"clusterIP": "10.0.0.7", "externalName": "x-a"},
    }
    result = [Redaction(KEY).redact_object(obj) for obj in (record, service)]
    assert "-a" not in json.dumps(result)
    assert "clusterIP" not in result[1]["spec"]
    headless = {**service, "spec": {"clusterIP": "None"}}
    assert Redaction(KEY).redact_object(headless)["spec"] == {"clusterIP": "None"}


def test_topology_names_are_hashed_whole() -> None:
    redaction = Redaction(KEY)
    values = {"individual": {"prefix": "rack-", "roots": ["a", "b"], "suffix": "-x"}}
    metadata = {"name": "w"}
    result = redaction.redact_object({"kind": "Topology", "metadata": metadata, "status": {"valuesPerLevel": [values]}})
    roots = result["status"]["valuesPerLevel"][0]["individual"]["roots"]
    assert roots == [redaction.hash_name("rack-a-x"), redaction.hash_name("rack-b-x")]


def test_hash_is_deterministic_and_depends_on_key() -> None:
    one, other = Redaction(KEY), Redaction(b"another")
    assert one.hash_name("team/a") == f"{one.hash_name('team')}/{one.hash_name('a')}"
    assert one.hash_name("a") != other.hash_name("a")
    assert one.hash_name("default") == "default"


@pytest.mark.parametrize("field", ["env", "envFrom"])
def test_container_environment_is_removed_everywhere(field: str) -> None:
    container = {"name": "c", "image": "i", field: [{"name": "PASSWORD", "value": "secret"}]}
    spec = {"template": {"spec": {"containers": [container], "initContainers": [container]}}}
    last = json.dumps({"spec": spec})
    metadata = {"name": "j", "managedFields": [{"manager": "kubectl"}], "annotations": {LAST_APPLIED: last}}
    result = without_secrets({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    assert "secret" not in json.dumps(result)
    assert result["spec"]["template"]["spec"]["containers"] == [{"name": "c", "image": "i"}]
    assert "managedFields" not in result["metadata"]
