"""Manifests that others wrote are right as they are; looking at objects changes nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import make
from batchyard.api import scheme
from batchyard.api.conversion import to_storage
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import group_kind
from batchyard.api.validation import validate, validate_update
from edits import told

SHARED = Path(__file__).parents[4] / "shared"
KINDS = {value for name, value in vars(scheme).items() if name.isupper() and isinstance(value, str)}


def documents(folder: str) -> Iterator[dict[str, Any]]:
    """All objects of the kinds we know below a folder, but those printed wrong on purpose."""
    for path in sorted((SHARED / folder).rglob("*.yaml")):
        if path.name in {"kueue-as-printed.yaml", "guide.yaml"}:
            continue
        for document in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            if isinstance(document, dict) and "kind" in document and group_kind(document) in KINDS:
                yield document


@pytest.mark.parametrize("folder", ["refarch", "dws", "multislice", "hotswap", "oracle"])
def test_shared_manifests_are_right(folder: str) -> None:
    if not (SHARED / folder).is_dir():
        pytest.skip(f"shared/{folder} is not here")
    objects = [with_defaults(to_storage(document)) for document in documents(folder)]
    assert objects
    assert [line for obj in objects for line in told(validate(obj))] == []
    assert [line for obj in objects for line in told(validate_update(obj, obj))] == []


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
