"""What holds of the rules of all kinds: names are checked, and looking at objects changes nothing."""

import make
from batchyard.api.validation import validate, validate_update


def test_kinds_without_rules_of_their_own_keep_those_of_metadata() -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "A"}}
    other = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "A"}}
    assert [fault.path for obj in (account, other) for fault in validate(obj)] == ["metadata.name"] * 2


def test_nothing_is_changed_by_looking_at_it() -> None:
    objects = [make.workload(), make.job(), make.jobset(), make.cluster_queue(), make.flavor()]
    before = repr(objects)
    for obj in objects:
        validate(obj)
        validate_update(obj, obj)
    assert repr(objects) == before
