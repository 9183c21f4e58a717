"""Fields that a kind does not have: dropped, and told as `fieldValidation` asks for.

Source: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,rest}.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.documents import FAULTS_MAX
from batchyard.apiserver.shapes import Shape


class Pruned(NamedTuple):
    """A value without the fields that it should not have, and what strict decoding says of them."""

    value: Any
    faults: Sequence[str]


def pruned(value: Any, shape: Shape) -> Pruned:
    """A value without the fields that its shape does not have; the value itself where it has no such."""
    faults: list[str] = []
    return Pruned(_pruned(value, shape, "", faults), faults)


def _pruned(value: Any, shape: Shape, path: str, faults: list[str]) -> Any:
    if isinstance(value, Mapping):
        return _mapping_pruned(value, shape, path, faults)
    if not isinstance(value, list):
        return value
    items = [_pruned(item, shape.item, f"{path.removesuffix('.')}[{i}].", faults) for i, item in enumerate(value)]
    return value if all(new is old for new, old in zip(items, value, strict=True)) else items


def _mapping_pruned(value: Mapping[str, Any], shape: Shape, path: str, faults: list[str]) -> Mapping[str, Any]:
    kept, is_same = {}, True
    for name, child in value.items():
        if not shape.knows(name):
            is_same = False
            if len(faults) < FAULTS_MAX:
                faults.append(f'unknown field "{path}{name}"')
            continue
        kept[name] = _pruned(child, shape.below(name), f"{path}{name}.", faults)
        is_same = is_same and kept[name] is child
    return value if is_same else kept
