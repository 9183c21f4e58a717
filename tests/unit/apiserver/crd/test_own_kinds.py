"""The CRDs of batchyard's own kinds, for API servers without these kinds, obey the rules for CRDs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import make
from batchyard.api import scheme
from batchyard.api.custom_kinds import kind_from_definition
from batchyard.api.scheme import kind_info
from batchyard.apiserver.crd.definitions import DefinitionStrategy
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.openapi_definitions import ConversionService, definition_of

pytestmark = pytest.mark.slow

CRDS = Path(__file__).parents[5] / "shared" / "crds"
OURS = [info for info in scheme.KINDS if "." in info.group and not info.group.endswith(".k8s.io")]


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.constant)
def test_definition_of_batchyard_kind_is_valid(info: scheme.ServedKind) -> None:
    decoded = DefinitionStrategy().decode(definition_of(info), "")
    assert decoded.faults == []
    assert decoded.obj is not None
    defined = kind_from_definition(decoded.obj)
    assert (defined.constant, defined.plural, defined.namespaced) == (info.constant, info.plural, info.namespaced)
    assert (defined.versions, defined.has_status) == ((info.storage_version,), info.has_status)


def test_custom_strategy_keeps_pod_template_of_workload() -> None:
    workload = make.workload("a")
    info = kind_info(scheme.WORKLOAD)
    strategy = CustomStrategy(info, definition_of(info)["spec"]["versions"])
    decoded = strategy.decode(workload, "")
    assert decoded.faults == []
    assert decoded.obj is not None
    assert decoded.obj["spec"]["podSets"][0]["template"] == workload["spec"]["podSets"][0]["template"]


def columns(definition: Mapping[str, Any]) -> dict[str, list[tuple[str, str, str, int]]]:
    """Name, type, path and priority of the columns, by version."""
    return {
        version["name"]: [
            (each["name"], each["type"], each["jsonPath"].replace('"', "'"), each.get("priority", 0))
            for each in version.get("additionalPrinterColumns", ())
        ]
        for version in definition["spec"]["versions"]
    }


@pytest.mark.parametrize("info", [info for info in OURS if "kueue" in info.group or "jobset" in info.group])
def test_definition_has_columns_of_upstream_definition(info: scheme.ServedKind) -> None:
    path = CRDS / f"{info.group}_{info.plural}.yaml"
    if not path.exists():
        pytest.skip("the CRDs are not in ../shared/crds")
    assert columns(definition_of(info, ConversionService("s", "n", "/"))) == columns(
        yaml.safe_load(path.read_text("utf-8"))
    )
