"""Several recorded scenarios on one server: cluster-scoped objects get unique names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.sim.scenario import Scenario, ScenarioStep
from differential.upstream_writes import Record

#: The label with the name of a namespace.
_NAME_LABEL = "kubernetes.io/metadata.name"
_OF_CLUSTER = (scheme.CLUSTER_QUEUE, scheme.COHORT, scheme.RESOURCE_FLAVOR)


def namespaces_of(scenario: Scenario) -> list[str]:
    """Return the namespaces with objects."""
    return list(dict.fromkeys(_namespace(obj) for step in scenario.steps for obj in step.apply if _is_within(obj)))


def with_unique_names(word: str, scenario: Scenario, log: Sequence[Record]) -> tuple[Scenario, list[Record]]:
    """Return the scenario and its log with unique names, which begin with a word."""
    steps = tuple(
        ScenarioStep(
            step.at,
            tuple(_unique_object(word, obj) for obj in step.apply),
            tuple(_key(word, key) for key in step.delete),
        )
        for step in scenario.steps
    )
    return replace(scenario, steps=steps), [_record(word, record) for record in log]


def merge_scenarios(cases: Sequence[tuple[Scenario, Sequence[Record]]]) -> tuple[Scenario, list[Record]]:
    """Merge scenarios with unique names."""
    steps: dict[int, ScenarioStep] = {}
    for step in (step for scenario, _ in cases for step in scenario.steps):
        before = steps.get(step.at, ScenarioStep(step.at, (), ()))
        steps[step.at] = ScenarioStep(step.at, (*before.apply, *step.apply), (*before.delete, *step.delete))
    log = sorted((record for _, records in cases for record in records), key=lambda record: float(record["time"]))
    return replace(cases[0][0], steps=tuple(steps[at] for at in sorted(steps))), log


def _is_within(obj: Obj) -> bool:
    return key_of(obj).kind not in _OF_CLUSTER


def _namespace(obj: Obj) -> str:
    namespace: str = obj["metadata"].get("namespace", "team")
    return namespace


def _key(word: str, key: Key) -> Key:
    if key.kind in _OF_CLUSTER:
        return key._replace(name=f"{word}-{key.name}")
    return key._replace(namespace=f"{word}-{key.namespace}")


def _unique_object(word: str, obj: Obj) -> Obj:
    metadata = obj["metadata"]
    if _is_within(obj):
        metadata = {**metadata, "namespace": f"{word}-{_namespace(obj)}"}
    else:
        metadata = {**metadata, "name": f"{word}-{metadata['name']}"}
    return {**obj, "metadata": metadata, "spec": _unique_references(word, obj.get("spec") or {})}


def _unique_references(word: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with references to the unique names."""
    result = _own_names(word, spec, ("clusterQueue", "cohortName", "parentName"))
    if "resourceGroups" in result:
        result["resourceGroups"] = [
            {**group, "flavors": [{**each, "name": f"{word}-{each['name']}"} for each in group["flavors"]]}
            for group in result["resourceGroups"]
        ]
    labels = (result.get("namespaceSelector") or {}).get("matchLabels")
    if labels:
        result["namespaceSelector"] = {
            "matchLabels": {name: f"{word}-{v}" if name == _NAME_LABEL else v for name, v in labels.items()}
        }
    return result


def _own_names(word: str, reported: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return a mapping with unique names in these fields."""
    return {**reported, **{field: f"{word}-{reported[field]}" for field in fields if reported.get(field)}}


def _record(word: str, record: Record) -> Record:
    result = _own_names(word, record, ("workload", "clusterQueue", "by"))
    if "podSets" in result:
        result["podSets"] = [
            {**each, "flavors": {name: f"{word}-{flavor}" for name, flavor in each["flavors"].items()}}
            for each in result["podSets"]
        ]
    return result
