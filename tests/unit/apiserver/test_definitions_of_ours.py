"""Definitions of batchyard's own kinds, for servers that do not have them, keep the rules of definitions."""

import pytest

import make
from batchyard.api import scheme
from batchyard.api.custom_kinds import kind_of
from batchyard.api.scheme import kind_info
from batchyard.apiserver.custom.definitions import DefinitionStrategy
from batchyard.apiserver.custom.strategy import CustomStrategy
from batchyard.apiserver.openapi.definitions import definition_of

OURS = [info for info in scheme.KINDS if "." in info.group and not info.group.endswith(".k8s.io")]


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.constant)
def test_a_definition_is_one_that_a_server_takes(info: scheme.ServedKind) -> None:
    decoded = DefinitionStrategy().decode(definition_of(info), "")
    assert decoded.faults == []
    assert decoded.obj is not None
    defined = kind_of(decoded.obj)
    assert (defined.constant, defined.plural, defined.namespaced) == (info.constant, info.plural, info.namespaced)
    assert (defined.versions, defined.has_status) == ((info.storage_version,), info.has_status)


def test_an_object_of_a_defined_kind_keeps_all_it_says() -> None:
    workload = make.workload("a")
    info = kind_info(scheme.WORKLOAD)
    strategy = CustomStrategy(info, definition_of(info)["spec"]["versions"])
    decoded = strategy.decode(workload, "")
    assert decoded.faults == []
    assert decoded.obj is not None
    assert decoded.obj["spec"]["podSets"][0]["template"] == workload["spec"]["podSets"][0]["template"]
