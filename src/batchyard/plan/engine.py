"""What decides on the cluster, as it is installed: our operator, or the releases of Kueue and JobSet.

Both are a kustomization of their own, applied and waited for before what they decide about: their kinds must be there.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from batchyard.plan.model import Engine, Platform
from batchyard.plan.texts import yaml_text

#: Releases whose manifests these platforms were written for: Kueue's serves v1beta2 and stores it.
KUEUE_VERSION: Final = "v0.19.2"
JOB_SET_VERSION: Final = "v0.12.0"
_RELEASE: Final = "https://github.com/kubernetes-sigs/{}/releases/download/{}/manifests.yaml"
NAMESPACES: Final[Mapping[Engine, str]] = {Engine.BATCHYARD: "batchyard-system", Engine.KUEUE: "kueue-system"}


class Deployed(NamedTuple):
    """A Deployment that must be available before the platform's objects are applied."""

    namespace: str
    name: str


def files(platform: Platform) -> Mapping[str, str]:
    """The files of the engine's kustomization by their names."""
    if platform.engine is Engine.KUEUE:
        return {"kustomization.yaml": yaml_text([kustomization(_releases(platform))])}
    return {}


def deployed(platform: Platform) -> list[Deployed]:
    """What the engine runs."""
    if platform.engine is Engine.KUEUE:
        return [
            Deployed("jobset-system", "jobset-controller-manager"),
            Deployed(NAMESPACES[Engine.KUEUE], "kueue-controller-manager"),
        ]
    return [Deployed(NAMESPACES[Engine.BATCHYARD], "batchyard-operator")]


def kustomization(resources: list[str], **fields: object) -> Mapping[str, object]:
    """A kustomization of these resources."""
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources, **fields}


def _releases(platform: Platform) -> list[str]:
    """JobSet's first: Kueue looks for its kinds."""
    return [
        _RELEASE.format("jobset", platform.job_set_version or JOB_SET_VERSION),
        _RELEASE.format("kueue", platform.kueue_version or KUEUE_VERSION),
    ]
