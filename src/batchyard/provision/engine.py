"""Manifests of a platform's engine: batchyard's operator, or Kueue and JobSet as released; and Kueue's Configuration.

The engine is a separate kustomization. It is applied first, because the other manifests need its kinds.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError
from batchyard.api.manifests import decode
from batchyard.api.meta import Obj
from batchyard.controller_groups import COSTS, KUBERNETES_GROUPS
from batchyard.operator_manifests import InstallSettings, Scraping, manifests_by_file
from batchyard.provision.model import MetricsCollector, PlatformEngine, PlatformModel
from batchyard.provision.yaml_output import dump_yaml, yaml_text
from batchyard.scheduling.kueue_configuration import decision_fields, ignored_settings, unsupported_field_errors
from batchyard.scheduling.preemption.fair import BOTH_STRATEGIES

# Kueue's Configuration of a platform: the release's defaults with the fields of `spec.kueue`.
#
# Defaults: config/components/manager/controller_manager_config.yaml of Kueue v0.19. The manager reads the file at
# start, so a digest in the pods' annotations restarts them when it changes.


_KUEUE_NAMESPACE: Final = "kueue-system"
_CONFIGURATION_FILE: Final = "controller_manager_config.yaml"
_DIGEST_ANNOTATION: Final = "platform.batchyard.dev/configuration"
_KUEUE_FRAMEWORKS: Final = (
    "batch/job",
    "kubeflow.org/mpijob",
    "ray.io/rayjob",
    "ray.io/raycluster",
    "ray.io/rayservice",
    "jobset.x-k8s.io/jobset",
    "workload.codeflare.dev/appwrapper",
    "trainer.kubeflow.org/trainjob",
    "pod",
    "deployment",
    "statefulset",
    "leaderworkerset.x-k8s.io/leaderworkerset",
)
_RELEASE_CONFIGURATION: Final[Mapping[str, Any]] = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
    "controller": {
        "groupKindConcurrency": {
            "Job.batch": 5,
            "Pod": 5,
            "Workload.kueue.x-k8s.io": 10,
            "LocalQueue.kueue.x-k8s.io": 5,
            "Cohort.kueue.x-k8s.io": 1,
            "ClusterQueue.kueue.x-k8s.io": 5,
            "ResourceFlavor.kueue.x-k8s.io": 1,
        }
    },
    "clientConnection": {"qps": 300, "burst": 500},
    "integrations": {"frameworks": list(_KUEUE_FRAMEWORKS)},
}
#: Kueue's default strategies, which the Configuration must list when fair sharing is enabled.
_FAIR_SHARING_STRATEGIES: Final = tuple(each.value for each in BOTH_STRATEGIES)


_TYPE_META_FIELDS: Final[Mapping[str, Any]] = {field: _RELEASE_CONFIGURATION[field] for field in ("apiVersion", "kind")}
_KUEUE_PATH: Final = "spec.kueue"
_KUEUE_REMEDY: Final = "choose engine: kueue"


def configuration(platform: PlatformModel) -> Mapping[str, Any] | None:
    """Return Kueue's complete Configuration for the platform; None if the platform keeps the release's defaults."""
    kueue_fields = _kueue_fields(platform)
    return {**_RELEASE_CONFIGURATION, **kueue_fields} if kueue_fields else None


def operator_configuration(platform: PlatformModel) -> Mapping[str, Any] | None:
    """Return the fields of a platform's Configuration that affect scheduling decisions; None if none of them is set."""
    operator_fields = decision_fields({**_TYPE_META_FIELDS, **_kueue_fields(platform)})
    return operator_fields if len(operator_fields) > len(_TYPE_META_FIELDS) else None


def configuration_errors(platform: PlatformModel) -> Iterator[FieldError]:
    """Yield an error for each `spec.kueue` field that Kueue rejects.

    If the platform's engine is batchyard's operator, fields that the operator does not support are errors too.
    """
    if not platform.kueue:
        return
    decoding = decode({**_TYPE_META_FIELDS, **platform.kueue})
    for fault in decoding.faults:
        yield fault._replace(path=f"{_KUEUE_PATH}.{fault.path}")
    if decoding.obj is None or platform.engine is PlatformEngine.KUEUE:
        return
    for fault in unsupported_field_errors(decoding.obj):
        yield fault._replace(path=f"{_KUEUE_PATH}.{fault.path}", remedy=f"{fault.remedy}, or {_KUEUE_REMEDY}")
    for feature in ignored_settings(decoding.obj):
        problem = f"the batchyard operator does not support {feature}"
        yield FieldError(_KUEUE_PATH, problem, f"remove the setting, or {_KUEUE_REMEDY}")


def _kueue_fields(platform: PlatformModel) -> Mapping[str, Any]:
    fields: dict[str, Any] = dict(platform.kueue)
    if platform.fair_sharing:
        fields["fairSharing"] = {"preemptionStrategies": list(_FAIR_SHARING_STRATEGIES)}
    return fields


def configuration_patches(platform: PlatformModel) -> Sequence[Mapping[str, str]]:
    """Return the kustomize patches that set Kueue's Configuration in the release manifests.

    The list is empty if the platform keeps the release's defaults.

    The second patch annotates the manager's pods with a digest of the Configuration, so that a change restarts them.
    """
    kueue_configuration = configuration(platform)
    if kueue_configuration is None:
        return []
    text = dump_yaml(kueue_configuration)
    configuration_digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    config_map_patch = _kueue_object("v1", "ConfigMap", "kueue-manager-config") | {"data": {_CONFIGURATION_FILE: text}}
    pod_template = {"template": {"metadata": {"annotations": {_DIGEST_ANNOTATION: configuration_digest}}}}
    manager_patch = _kueue_object("apps/v1", "Deployment", "kueue-controller-manager") | {"spec": pod_template}
    return [{"patch": dump_yaml(each)} for each in (config_map_patch, manager_patch)]


def _kueue_object(api_version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": _KUEUE_NAMESPACE}}


#: The default releases, which the tests use: this Kueue serves and stores v1beta2.
KUEUE_VERSION: Final = "v0.19.2"
JOB_SET_VERSION: Final = "v0.12.0"
_RELEASE_URL: Final = "https://github.com/kubernetes-sigs/{}/releases/download/{}/manifests.yaml"
_SCRAPING_BY_COLLECTOR: Final[Mapping[MetricsCollector, Scraping]] = {
    MetricsCollector.POD_MONITORING: Scraping.POD_MONITORING,
    MetricsCollector.SERVICE_MONITOR: Scraping.SERVICE_MONITOR,
    MetricsCollector.NONE: Scraping.NONE,
}
_MONITORING_ACCESS_FILE: Final = "monitoring-access.yaml"
#: Webhook port of the released Kueue and JobSet.
KUEUE_WEBHOOK_PORT: Final = 9443
ENGINE_NAMESPACES: Final = {PlatformEngine.BATCHYARD: "batchyard-system", PlatformEngine.KUEUE: "kueue-system"}


class EngineDeployment(NamedTuple):
    """A Deployment of the platform's engine, which must be available before the platform's objects are applied."""

    namespace: str
    name: str


def engine_files(platform: PlatformModel, access_objects: Sequence[Obj] = ()) -> Mapping[str, str]:
    """Return the text of each file of the engine's kustomization, by file name.

    `access_objects` are RBAC objects for Prometheus; if there are any, they become a file of their own.
    """
    manifest_files = {_MONITORING_ACCESS_FILE: yaml_text(access_objects)} if access_objects else {}
    if platform.engine is PlatformEngine.KUEUE:
        kueue_patches = configuration_patches(platform)
        index = kustomization(
            [*_release_manifest_urls(platform), *manifest_files],
            **({"patches": kueue_patches} if kueue_patches else {}),
        )
        return {"kustomization.yaml": yaml_text([index]), **manifest_files}
    manifests = manifests_by_file(settings_of(platform))
    operator_files = {f"{name}.yaml": yaml_text(objects) for name, objects in manifests.items()}
    manifest_files = {**operator_files, **manifest_files}
    return {"kustomization.yaml": yaml_text([kustomization(list(manifest_files))]), **manifest_files}


def settings_of(platform: PlatformModel) -> InstallSettings:
    """Return the install settings of batchyard's operator; its cost controllers run only if a team has a Budget."""
    kueue_settings = operator_configuration(platform)
    has_budget = any(team.budget is not None for team in platform.teams)
    return InstallSettings(
        image=operator_image(platform),
        namespace=ENGINE_NAMESPACES[PlatformEngine.BATCHYARD],
        replicas=platform.operator.replicas,
        controllers=(*KUBERNETES_GROUPS, COSTS) if has_budget else KUBERNETES_GROUPS,
        scraping=_SCRAPING_BY_COLLECTOR[platform.monitoring.collector],
        fair_sharing=platform.fair_sharing and not platform.kueue,
        configuration=dump_yaml(kueue_settings) if kueue_settings is not None and platform.kueue else "",
    )


def operator_image(platform: PlatformModel) -> str:
    """Return the reference of the operator's image: the configured image, or this version's default.

    On GKE, the default image is in the platform's own repository.
    """
    google, image = platform.google, InstallSettings().image
    if platform.operator.image or google is None:
        return platform.operator.image or image
    return f"{platform.region}-docker.pkg.dev/{google.project}/{google.repository}/{image}"


def engine_deployments(platform: PlatformModel) -> list[EngineDeployment]:
    """Return the Deployments of the engine: batchyard's operator, or the managers of JobSet and Kueue."""
    if platform.engine is PlatformEngine.KUEUE:
        return [
            EngineDeployment("jobset-system", "jobset-controller-manager"),
            EngineDeployment(ENGINE_NAMESPACES[PlatformEngine.KUEUE], "kueue-controller-manager"),
        ]
    settings = settings_of(platform)
    return [EngineDeployment(settings.namespace, settings.name)]


def kustomization(resources: list[str], **fields: object) -> Mapping[str, object]:
    """Return a Kustomization object with these resources and other fields."""
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources, **fields}


def _release_manifest_urls(platform: PlatformModel) -> list[str]:
    """Return the URLs of the release manifests: first JobSet's, because Kueue requires its kinds, then Kueue's."""
    return [
        _RELEASE_URL.format("jobset", platform.job_set_version or JOB_SET_VERSION),
        _RELEASE_URL.format("kueue", platform.kueue_version or KUEUE_VERSION),
    ]
