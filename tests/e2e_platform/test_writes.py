"""Changes of objects with kubectl: client-side and server-side apply, edit, patch, diff and set."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: team}
spec: {ports: [{name: a, port: 80}, {name: b, port: 81}]}
"""
QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: big}
spec: {nodeLabels: {size: big}}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform for the tests of this module."""
    with UpProcess(tmp_path_factory.mktemp("platform")) as started:
        started.kubectl("create", "namespace", "team")
        yield started


def config_map(**data: str) -> str:
    """The manifest of a ConfigMap."""
    metadata = {"name": "shared", "namespace": "team"}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).decode()


def object_part(platform: UpProcess, what: str, path: str) -> str:
    """A part of an object in the namespace."""
    return platform.kubectl("get", "-n", "team", what, "-o", f"jsonpath={{{path}}}")


def test_repeated_apply_replaces_list_items(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=SERVICE)
    assert "unchanged" in platform.kubectl("apply", "-f", "-", sent=SERVICE)
    changed = SERVICE.replace("{name: a, port: 80}", "{name: c, port: 82}")
    assert "-    port: 80\n" in platform.kubectl("diff", "-f", "-", sent=changed, fails=True)
    assert "server dry run" in platform.kubectl("apply", "--dry-run=server", "-f", "-", sent=changed)
    assert object_part(platform, "service/web", ".spec.ports[*].port") == "80 81"
    platform.kubectl("apply", "-f", "-", sent=changed)
    assert sorted(object_part(platform, "service/web", ".spec.ports[*].port").split()) == ["81", "82"]


def test_custom_resource_is_applied_again_but_rejects_strategic_merge_patch(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=QUEUE)
    assert "configured" in platform.kubectl("apply", "-f", "-", sent=QUEUE.replace("size: big", "size: huge"))
    reported = platform.kubectl("patch", "resourceflavor", "big", "--type", "strategic", "-p", "{}", fails=True)
    assert "the body of the request was in an unknown format" in reported


def test_server_side_apply_conflicts_between_two_managers(platform: UpProcess) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    platform.kubectl(*apply, sent=config_map(x="1", y="2"))
    reported = platform.kubectl(*apply, "--field-manager=other", sent=config_map(x="9"), fails=True)
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .data.x' in reported
    platform.kubectl(*apply, "--field-manager=other", "--force-conflicts", sent=config_map(x="9"))
    platform.kubectl(*apply, sent=config_map(z="3"))
    assert object_part(platform, "configmap/shared", ".data") == '{"x":"9","z":"3"}'
    shown = platform.kubectl("get", "-n", "team", "configmap", "shared", "-o", "yaml", "--show-managed-fields")
    assert {line.split()[1] for line in shown.splitlines() if "manager:" in line} == {"other", "kubectl"}


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("strategic", '{"data": {"k": "strategic"}}'),
        ("merge", '{"data": {"k": "merge"}}'),
        ("json", '[{"op": "replace", "path": "/data/k", "value": "json"}]'),
    ],
)
def test_patch_of_each_type_is_applied(platform: UpProcess, kind: str, patch: str) -> None:
    platform.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", sent=config_map(k="v"))
    platform.kubectl("patch", "-n", "team", "configmap", "shared", "--type", kind, "-p", patch)
    assert object_part(platform, "configmap/shared", ".data.k") == kind


def test_kubectl_edit_changes_object(platform: UpProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/before/after/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("KUBE_EDITOR", str(editor))
    platform.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", sent=config_map(word="before"))
    assert "edited" in platform.kubectl("edit", "-n", "team", "configmap", "shared")
    assert object_part(platform, "configmap/shared", ".data.word") == "after"


def test_misspelt_fields_are_rejected_unless_validation_only_warns(platform: UpProcess) -> None:
    sent = config_map().replace('"data"', '"dada"')
    reported = platform.kubectl("apply", "-f", "-", sent=sent, fails=True)
    assert 'strict decoding error: unknown field "dada"' in reported
    platform.kubectl("delete", "-n", "team", "configmap", "shared", "--ignore-not-found")
    assert "created" in platform.kubectl("apply", "--validate=warn", "-f", "-", sent=sent)


def test_kubectl_sets_labels_annotations_and_images(platform: UpProcess) -> None:
    pod = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}'
    platform.kubectl("create", "-n", "team", "-f", "-", sent=pod)
    platform.kubectl("label", "-n", "team", "pod", "p", "colour=green")
    platform.kubectl("annotate", "-n", "team", "pod", "p", "told=yes")
    platform.kubectl("set", "image", "-n", "team", "pod/p", "c=i:2")
    assert object_part(platform, "pod/p", ".metadata.labels.colour}{.metadata.annotations.told") == "greenyes"
    assert object_part(platform, "pod/p", ".spec.containers[0].image") == "i:2"
