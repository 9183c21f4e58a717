"""Engine manifests: our operator, or the releases of Kueue and JobSet.

The engine is a kustomization of its own, applied and waited for first: the other manifests need its kinds.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.controller_groups import COSTS, ON_KUBERNETES
from batchyard.operator_manifests import InstallSettings, Scraping, parts
from batchyard.provision.kueue_configuration import own_configuration, patches
from batchyard.provision.model import MetricsCollector, PlatformEngine, PlatformModel
from batchyard.provision.yaml_output import dumped, yaml_text

#: Default releases, with which platforms are tested: this Kueue serves and stores v1beta2.
KUEUE_VERSION: Final = "v0.19.2"
JOB_SET_VERSION: Final = "v0.12.0"
_RELEASE: Final = "https://github.com/kubernetes-sigs/{}/releases/download/{}/manifests.yaml"
_SCRAPING: Final[Mapping[MetricsCollector, Scraping]] = {
    MetricsCollector.POD_MONITORING: Scraping.POD_MONITORING,
    MetricsCollector.SERVICE_MONITOR: Scraping.SERVICE_MONITOR,
    MetricsCollector.NONE: Scraping.NONE,
}
_ACCESS: Final = "monitoring-access.yaml"
#: Webhook port of the released Kueue and JobSet.
KUEUE_WEBHOOK_PORT: Final = 9443
NAMESPACES: Final[Mapping[PlatformEngine, str]] = {
    PlatformEngine.BATCHYARD: "batchyard-system",
    PlatformEngine.KUEUE: "kueue-system",
}


class Deployed(NamedTuple):
    """A Deployment that must be available before the platform's objects are applied."""

    namespace: str
    name: str


def files(platform: PlatformModel, access: Sequence[Obj] = ()) -> Mapping[str, str]:
    """Return the files of the engine's kustomization by name; `access`: objects for its monitoring."""
    found = {_ACCESS: yaml_text(access)} if access else {}
    if platform.engine is PlatformEngine.KUEUE:
        more = patches(platform)
        whole = kustomization([*_releases(platform), *found], **({"patches": more} if more else {}))
        return {"kustomization.yaml": yaml_text([whole]), **found}
    own = {f"{name}.yaml": yaml_text(objects) for name, objects in parts(settings_of(platform)).items()}
    found = {**own, **found}
    return {"kustomization.yaml": yaml_text([kustomization(list(found))]), **found}


def settings_of(platform: PlatformModel) -> InstallSettings:
    """Return the settings of our operator; its cost controllers run if a team has a Budget."""
    kueue_settings = own_configuration(platform)
    holds = any(team.budget is not None for team in platform.teams)
    return InstallSettings(
        image=image_of(platform),
        namespace=NAMESPACES[PlatformEngine.BATCHYARD],
        replicas=platform.operator.replicas,
        controllers=(*ON_KUBERNETES, COSTS) if holds else ON_KUBERNETES,
        scraping=_SCRAPING[platform.monitoring.collector],
        fair_sharing=platform.fair_sharing and not platform.kueue,
        configuration=dumped(kueue_settings) if kueue_settings is not None and platform.kueue else "",
    )


def image_of(platform: PlatformModel) -> str:
    """Return the configured image, else this version's: on Google Cloud in the platform's repository."""
    google, image = platform.google, InstallSettings().image
    if platform.operator.image or google is None:
        return platform.operator.image or image
    return f"{platform.region}-docker.pkg.dev/{google.project}/{google.repository}/{image}"


def deployed(platform: PlatformModel) -> list[Deployed]:
    """Return the engine's Deployments."""
    if platform.engine is PlatformEngine.KUEUE:
        return [
            Deployed("jobset-system", "jobset-controller-manager"),
            Deployed(NAMESPACES[PlatformEngine.KUEUE], "kueue-controller-manager"),
        ]
    settings = settings_of(platform)
    return [Deployed(settings.namespace, settings.name)]


def kustomization(resources: list[str], **fields: object) -> Mapping[str, object]:
    """Return a kustomization of these resources."""
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources, **fields}


def _releases(platform: PlatformModel) -> list[str]:
    """Return the releases' manifests. JobSet comes first: Kueue checks for its kinds."""
    return [
        _RELEASE.format("jobset", platform.job_set_version or JOB_SET_VERSION),
        _RELEASE.format("kueue", platform.kueue_version or KUEUE_VERSION),
    ]
