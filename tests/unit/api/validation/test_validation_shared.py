"""Rules for all kinds: metadata is validated, and validation does not modify objects."""

import make
from batchyard.api.validation import validate, validate_update


def test_metadata_of_kinds_without_own_rules_is_validated() -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "A"}}
    other = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "A"}}
    assert [fault.path for obj in (account, other) for fault in validate(obj)] == ["metadata.name"] * 2


def test_validation_does_not_modify_objects() -> None:
    objects = [make.workload(), make.job(), make.jobset(), make.cluster_queue(), make.flavor()]
    before = repr(objects)
    for obj in objects:
        validate(obj)
        validate_update(obj, obj)
    assert repr(objects) == before
