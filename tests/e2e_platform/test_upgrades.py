"""CRDs change to another stored version and back, as in docs/how-to/operator.md, without loss of objects."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess

NAME = "queues.example.dev"
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def definition(stored: str, versions: Sequence[str]) -> str:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}}
    result = [
        {"name": name, "served": True, "storage": name == stored, "schema": {"openAPIV3Schema": schema}}
        for name in versions
    ]
    names = {"kind": "Queue", "plural": "queues", "singular": "queue"}
    spec: dict[str, Any] = {"group": "example.dev", "names": names, "scope": "Cluster", "versions": result}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": NAME}}
    return json.dumps({**head, "spec": spec})


class ChangingDefinition:
    """A platform, and a CRD with changing versions."""

    def __init__(self, platform: UpProcess) -> None:
        self.kubectl = platform.kubectl

    def apply(self, stored: str, *versions: str) -> None:
        """Apply the CRD with versions."""
        self.kubectl("apply", "--server-side", "-f", "-", sent=definition(stored, versions))
        self.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=30s")

    def stored_versions(self) -> list[str]:
        """The stored versions of the CRD."""
        result: list[str] = json.loads(self.kubectl("get", "crd", NAME, "-o", "json"))["status"]["storedVersions"]
        return result

    def rewrite(self, version: str) -> None:
        """Rewrite all objects, and set the stored versions to a single version."""
        objects = self.kubectl("get", f"queues.{version}.example.dev", "-o", "json")
        self.kubectl("replace", "-f", "-", sent=objects)
        left = json.dumps({"status": {"storedVersions": [version]}})
        self.kubectl("patch", "crd", NAME, "--subresource=status", "--type=merge", "-p", left)

    def sizes(self, version: str) -> list[int]:
        """The sizes of the objects, read in a version."""
        items = json.loads(self.kubectl("get", f"queues.{version}.example.dev", "-o", "json"))["items"]
        return [item["size"] for item in items]


def test_stored_version_of_crd_is_upgraded_and_downgraded(tmp_path: Path) -> None:
    with UpProcess(tmp_path) as platform:
        upgraded = ChangingDefinition(platform)
        upgraded.apply("v1", "v1")
        old = {"apiVersion": "example.dev/v1", "kind": "Queue", "metadata": {"name": "a"}, "size": 3}
        platform.kubectl("create", "-f", "-", sent=json.dumps(old))
        upgraded.apply("v2", "v1", "v2")
        assert upgraded.stored_versions() == ["v1", "v2"]
        assert upgraded.sizes("v1") == upgraded.sizes("v2") == [3]
        reported = platform.kubectl("apply", "--server-side", "-f", "-", sent=definition("v2", ["v2"]), fails=True)
        assert 'status.storedVersions[0]: Invalid value: "v1": must appear in spec.versions' in reported
        upgraded.apply("v1", "v1", "v2")  # back: the failed attempt lost nothing
        assert upgraded.sizes("v1") == [3]
        upgraded.apply("v2", "v1", "v2")
        upgraded.rewrite("v2")
        upgraded.apply("v2", "v2")
        assert upgraded.stored_versions() == ["v2"]
        assert upgraded.sizes("v2") == [3]
