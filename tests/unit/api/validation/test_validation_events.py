"""Validation of Events."""

from typing import Any

import pytest

from batchyard.api.validation import validate, validate_update

NEWER = {
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingComponent": "example.com/controller",
    "reportingInstance": "a",
    "action": "Look",
    "reason": "Seen",
}


def event_in(namespace: str, about: str, **fields: Any) -> dict[str, Any]:
    involved = {"kind": "Pod", "name": "p", **({"namespace": about} if about else {})}
    metadata = {"name": "e", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": involved, **fields}


@pytest.mark.parametrize(
    ("namespace", "about", "fields"),
    [
        ("a", "a", {}),
        ("default", "", {}),
        ("default", "", NEWER),
        ("kube-system", "", NEWER),
        ("a", "a", NEWER),
        ("a", "b", NEWER),  # Kubernetes does not check this
        ("a", "a", NEWER | {"message": "m" * 1024, "action": "a" * 128}),
    ],
)
def test_valid_event_is_accepted(namespace: str, about: str, fields: dict[str, Any]) -> None:
    assert validate(event_in(namespace, about, **fields)) == []


@pytest.mark.parametrize(
    ("namespace", "about", "fields", "path"),
    [
        ("a", "b", {}, "involvedObject.namespace"),
        ("a", "", {}, "involvedObject.namespace"),
        ("kube-system", "", {}, "involvedObject.namespace"),
        ("a", "", NEWER, "involvedObject.namespace"),
        ("a", "a", NEWER | {"reportingComponent": "no name"}, "reportingComponent"),
        ("a", "a", NEWER | {"reportingInstance": ""}, "reportingInstance"),
        ("a", "a", NEWER | {"action": "a" * 129}, "action"),
        ("a", "a", NEWER | {"reason": None}, "reason"),
        ("a", "a", NEWER | {"message": "m" * 1025}, "message"),
    ],
)
def test_invalid_event_is_rejected(namespace: str, about: str, fields: dict[str, Any], path: str) -> None:
    event = event_in(namespace, about, **fields)
    assert [fault.path for fault in validate(event)] == [path]
    assert [fault.path for fault in validate_update(event, event_in(namespace, namespace))] == [path]
