"""The served kinds, compared with their CRDs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard.api import scheme
from batchyard.api.meta import group_kind

CRDS = Path(__file__).parents[4] / "shared" / "crds"
IN_CRDS = [info for info in scheme.KINDS if info.group in {"kueue.x-k8s.io", "jobset.x-k8s.io"}]


def crd_of(info: scheme.ServedKind) -> dict[str, Any]:
    path = CRDS / f"{info.group}_{info.plural}.yaml"
    if not path.exists():
        pytest.skip("the CRDs are not in ../shared/crds")
    spec: dict[str, Any] = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)["spec"]
    return spec


def test_find_kind_returns_every_served_version() -> None:
    for info in scheme.KINDS:
        for version in info.versions:
            assert scheme.find_kind(info.api_version_for(version), info.kind) is info


def test_kind_constants_equal_group_kinds() -> None:
    for info in scheme.KINDS:
        assert group_kind({"apiVersion": info.api_version, "kind": info.kind}) == info.constant
        assert scheme.kind_info(info.constant) is info


def test_resource_names_are_unique() -> None:
    of_kinds = [dict.fromkeys((info.plural, info.singular, *info.short_names)) for info in scheme.KINDS]
    names = [name for result in of_kinds for name in result]
    assert len(names) == len(dict.fromkeys(names))


def test_find_kind_returns_none_for_unserved_kind_or_version() -> None:
    assert scheme.find_kind("kueue.x-k8s.io/v1alpha1", "Topology") is None
    assert scheme.find_kind("batch/v1", "Jobs") is None
    assert scheme.find_kind("", "") is None


def test_version_of_returns_none_for_other_group() -> None:
    info = scheme.kind_info(scheme.WORKLOAD)
    assert info.version_of("kueue.x-k8s.io/v1beta1") == "v1beta1"
    assert info.version_of("example.com/v1beta1") is None
    assert scheme.kind_info(scheme.NAMESPACE).version_of("v1") == "v1"


@pytest.mark.parametrize("info", IN_CRDS, ids=lambda info: info.kind)
def test_kind_names_and_scope_match_crds(info: scheme.ServedKind) -> None:
    crd = crd_of(info)
    assert crd["names"]["kind"] == info.kind
    assert crd["names"]["singular"] == info.singular
    assert tuple(crd["names"].get("shortNames", ())) == info.short_names
    assert (crd["scope"] == "Namespaced") is info.namespaced


@pytest.mark.parametrize("info", IN_CRDS, ids=lambda info: info.kind)
def test_versions_match_crds(info: scheme.ServedKind) -> None:
    versions = crd_of(info)["versions"]
    assert tuple(version["name"] for version in versions if version["served"]) == info.versions
    assert [version["name"] for version in versions if version["storage"]] == [info.storage_version]
    assert tuple(version["name"] for version in versions if version.get("deprecated")) == info.deprecated_versions
    assert all(("status" in version.get("subresources", {})) is info.has_status for version in versions)
