"""The rendered manifests as parts that are applied together, in order, with their objects."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from batchyard.api.yaml_documents import read_documents
from batchyard.provision.drivers import driver_resources
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import MANIFESTS

FOLDER: Final = f"{MANIFESTS}/"
KUSTOMIZATION: Final = "kustomization.yaml"


class ManifestPart(NamedTuple):
    """A top-level file or folder of the rendered manifests, and its objects."""

    path: str
    objects: Sequence[Mapping[str, Any]]
    #: Whether it is a kustomization of its own, which may reference remote resources.
    is_kustomized: bool = False

    @property
    def name(self) -> str:
        """The name of its step: `20-teams` for manifests/20-teams or manifests/20-teams.yaml."""
        return self.path.rpartition("/")[2].removesuffix(".yaml")

    @property
    def words(self) -> tuple[str, ...]:
        """The kubectl arguments that select it."""
        return (f"--kustomize={self.path}",) if self.is_kustomized else ("--recursive", f"--filename={self.path}")

    def named(self, kind: str) -> list[str]:
        """Return the names of its objects of a kind."""
        return [obj["metadata"]["name"] for obj in self.objects if obj["kind"] == kind]

    def first(self, kind: str) -> Mapping[str, Any] | None:
        """Return its first object of a kind; None if it has none."""
        return next((obj for obj in self.objects if obj["kind"] == kind), None)

    def images(self) -> list[str]:
        """Return the images of its Deployments and DaemonSets."""
        specs = [obj["spec"]["template"]["spec"] for obj in self.objects if obj["kind"] in ("Deployment", "DaemonSet")]
        return [container["image"] for spec in specs for container in spec["containers"]]


def parts(platform: PlatformModel, files: Mapping[str, str]) -> list[ManifestPart]:
    """Return the parts of the rendered manifests in the order of their names; GPU drivers come last."""
    paths = sorted(path for path in files if path.startswith(FOLDER) and path != FOLDER + KUSTOMIZATION)
    found = []
    for top, grouped in groupby(paths, key=lambda path: "/".join(path.split("/")[:2])):
        of_top = list(grouped)
        objects = [obj for path in of_top if _is_manifest(path) for obj in _objects(files[path])]
        found.append(ManifestPart(top, objects, f"{top}/{KUSTOMIZATION}" in of_top))
    return [*found, *(ManifestPart(url, ()) for url in driver_resources(platform))]


def _is_manifest(path: str) -> bool:
    return path.endswith(".yaml") and not path.endswith(KUSTOMIZATION)


@lru_cache(maxsize=64)
def _objects(text: str) -> Sequence[Mapping[str, Any]]:
    found = [document.value for document in read_documents(text)]
    return [obj for obj in found if isinstance(obj, dict) and "kind" in obj]
