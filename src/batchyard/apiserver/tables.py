"""Objects as the Table that `kubectl get` asks for. Source: k8s.io/apimachinery, pkg/apis/meta/v1 (Table)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.apiserver.request import Request
from batchyard.apiserver.resources import Strategy
from batchyard.base.instant import Instant

_PARTIAL: Final = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


def wants_table(request: Request) -> bool:
    """Whether a Table is what a request would rather have."""
    first = request.headers.get("accept", "").partition(",")[0]
    return "as=Table" in first and "v=v1;" in f"{first};"


def table_of(
    strategy: Strategy, objs: Sequence[Obj], request: Request, now: Instant, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Objects in their storage version as a Table, with as much of each as `includeObject` says."""
    included = request.query.get("includeObject", "Metadata")
    rows = [{"cells": strategy.cells(obj, now), **_included(obj, included)} for obj in objs]
    definitions = [
        {
            "name": column.name,
            "type": "string",
            "format": "name" if number == 0 else "",
            "description": column.name,
            "priority": column.priority,
        }
        for number, column in enumerate(strategy.columns())
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _included(obj: Obj, included: str) -> dict[str, Any]:
    match included:
        case "None":
            return {}
        case "Object":
            return {"object": obj}
    return {"object": {**_PARTIAL, "metadata": obj["metadata"]}}
