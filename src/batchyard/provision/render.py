"""Renders a platform to files: Terraform, manifests, monitoring, and the input files of `batchyard up`.

- terraform/, build/: Google Cloud resources, and the Cloud Build files that create them
- manifests/00-engine/: the engine, which is applied first
- manifests/: all other objects, in the order of the kustomization
- cluster.yaml: for `batchyard up --cluster` and `batchyard simulate --cluster`
- configuration.yaml: the scheduler settings, for `batchyard up --config`
"""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from batchyard.api import well_known
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.pool_properties import machine_of
from batchyard.package_data import read_folder
from batchyard.provision import engine
from batchyard.provision.engine import ENGINE_NAMESPACES, kustomization, operator_configuration
from batchyard.provision.manifests import platform_objects
from batchyard.provision.manifests.stack import stack_access
from batchyard.provision.model import MetricsCollector, PlatformEngine, PlatformModel
from batchyard.provision.terraform import files as terraform
from batchyard.provision.yaml_output import labels_of, yaml_text

# Monitoring manifests: rules, dashboards, and scraping of Kueue; our operator's scraping is part of its installation.
#
# The rules of `deploy/monitoring` are written as objects of the collector's kind, and dashboards as ConfigMaps with the
# label of Grafana's sidecar.


_RULES_FOLDER: Final = "deploy/monitoring/prometheus"
_RULES_SUFFIX: Final = ".rules.yml"
_DASHBOARDS_FOLDER: Final = "deploy/monitoring/grafana/dashboards"
#: Evaluation interval of rules; managed Prometheus requires one.
_INTERVAL: Final = "30s"
#: The ServiceAccount that reads Kueue's metrics, and the Secret of its token.
_METRICS_READER_NAME: Final = "kueue-metrics-collector"
_KUEUE_METRICS_PORT: Final = 8443
_SIDECAR_LABELS: Final[Mapping[str, str]] = {"grafana_dashboard": "1"}


def monitoring_files(platform: PlatformModel) -> Mapping[str, str]:
    """Return the text of each file of the monitoring kustomization, by path in its folder.

    The result is empty if no collector is configured, or if nothing is installed for it.
    """
    if platform.monitoring.collector is MetricsCollector.NONE:
        return {}
    monitoring_objects = []
    if platform.engine is PlatformEngine.KUEUE:
        monitoring_objects += _kueue_scraping_objects(platform)
    if platform.monitoring.installs_rules:
        monitoring_objects.append(_prometheus_rule(platform))
    dashboards = read_folder(_DASHBOARDS_FOLDER, ".json") if platform.monitoring.installs_dashboards else {}
    texts_by_name = {"monitoring.yaml": yaml_text(monitoring_objects)} if monitoring_objects else {}
    texts_by_name |= {f"dashboards/{name}": text for name, text in dashboards.items()}
    if not texts_by_name:
        return {}
    kustomization_fields: dict[str, object] = {"namespace": ENGINE_NAMESPACES[platform.engine]}
    if dashboards:
        config_maps = [{"name": name.removesuffix(".json"), "files": [f"dashboards/{name}"]} for name in dashboards]
        kustomization_fields["configMapGenerator"] = config_maps
        labels = {**labels_of(platform.name), **_SIDECAR_LABELS}
        kustomization_fields["generatorOptions"] = {"disableNameSuffixHash": True, "labels": labels}
    resources = ["monitoring.yaml"] if monitoring_objects else []
    return {"kustomization.yaml": yaml_text([kustomization(resources, **kustomization_fields)]), **texts_by_name}


def _prometheus_rule(platform: PlatformModel) -> Mapping[str, Any]:
    rule_texts = read_folder(_RULES_FOLDER, _RULES_SUFFIX).values()
    groups = [group for text in rule_texts for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"]]
    if platform.monitoring.collector is MetricsCollector.SERVICE_MONITOR:
        type_meta_fields = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
        metadata = {
            "name": "batchyard",
            "namespace": ENGINE_NAMESPACES[platform.engine],
            "labels": labels_of(platform.name),
        }
        return {**type_meta_fields, "metadata": metadata, "spec": {"groups": groups}}
    type_meta_fields = {"apiVersion": "monitoring.googleapis.com/v1", "kind": "ClusterRules"}
    groups_with_interval = [{"name": group["name"], "interval": _INTERVAL, "rules": group["rules"]} for group in groups]
    metadata = {"name": "batchyard", "labels": labels_of(platform.name)}
    return {**type_meta_fields, "metadata": metadata, "spec": {"groups": groups_with_interval}}


def _kueue_scraping_objects(platform: PlatformModel) -> list[Mapping[str, Any]]:
    if platform.monitoring.collector is MetricsCollector.SERVICE_MONITOR:
        return [_kueue_service_monitor(platform)]
    return [*_kueue_reader_objects(platform), _kueue_pod_monitoring(platform)]


def _kueue_reader_objects(platform: PlatformModel) -> list[Mapping[str, Any]]:
    """Return the Secret from which a PodMonitoring reads its bearer token, with its ServiceAccount and RBAC.

    Source: prometheus-engine, pkg/operator/apis/monitoring/v1/http_types.go (SecretKeySelector).
    """
    namespace = ENGINE_NAMESPACES[PlatformEngine.KUEUE]
    metadata = {"name": _METRICS_READER_NAME, "namespace": namespace, "labels": labels_of(platform.name)}
    rbac_group, reader = "rbac.authorization.k8s.io", {"kind": "ServiceAccount", "name": _METRICS_READER_NAME}
    token_annotation = {"kubernetes.io/service-account.name": _METRICS_READER_NAME}
    secret_rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**metadata, "annotations": token_annotation},
            "type": "kubernetes.io/service-account-token",
        },
        {
            "apiVersion": f"{rbac_group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{platform.name}-{_METRICS_READER_NAME}", "labels": labels_of(platform.name)},
            "roleRef": {"apiGroup": rbac_group, "kind": "ClusterRole", "name": "kueue-metrics-reader"},
            "subjects": [{**reader, "namespace": ENGINE_NAMESPACES[PlatformEngine.KUEUE]}],
        },
        {
            "apiVersion": f"{rbac_group}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{**secret_rule, "resourceNames": [_METRICS_READER_NAME]}],
        },
        {
            "apiVersion": f"{rbac_group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac_group, "kind": "Role", "name": _METRICS_READER_NAME},
            "subjects": [{"kind": "ServiceAccount", "name": "collector", "namespace": "gmp-system"}],
        },
    ]


def _kueue_pod_monitoring(platform: PlatformModel) -> Mapping[str, Any]:
    endpoint = {
        "port": _KUEUE_METRICS_PORT,
        "path": "/metrics",
        "scheme": "https",
        "interval": _INTERVAL,
        "tls": {"insecureSkipVerify": True},
        "authorization": {"type": "Bearer", "credentials": {"secret": {"name": _METRICS_READER_NAME, "key": "token"}}},
    }
    selector = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    return {
        "apiVersion": "monitoring.googleapis.com/v1",
        "kind": "PodMonitoring",
        "metadata": {
            "name": "kueue",
            "namespace": ENGINE_NAMESPACES[PlatformEngine.KUEUE],
            "labels": labels_of(platform.name),
        },
        "spec": {"endpoints": [endpoint], "selector": {"matchLabels": selector}},
    }


def _kueue_service_monitor(platform: PlatformModel) -> Mapping[str, Any]:
    endpoint = {
        "port": "https",
        "path": "/metrics",
        "scheme": "https",
        "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "tlsConfig": {"insecureSkipVerify": True},
    }
    selector = {"app.kubernetes.io/name": "kueue", "app.kubernetes.io/component": "metrics-service"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {
            "name": "kueue",
            "namespace": ENGINE_NAMESPACES[PlatformEngine.KUEUE],
            "labels": labels_of(platform.name),
        },
        "spec": {"endpoints": [endpoint], "selector": {"matchLabels": selector}},
    }


# GPU drivers: GKE installs them by default. If gpuDriver is `disabled`, a pinned version of Google's DaemonSet does.


_INSTALLER_URL: Final = (
    "https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/"
    "feb27ef33e5fdf1b8ec7dafbf4cf527ee400278a/nvidia-driver-installer/cos/daemonset-preloaded.yaml"
)


def driver_resources(platform: PlatformModel) -> list[str]:
    """Return the URL of the GPU driver installer as the only resource of a kustomization.

    The list is empty unless the platform is on GKE, `gpuDriver` is `disabled`, and nodes can have GPUs.
    """
    google = platform.google
    return [_INSTALLER_URL] if google is not None and google.gpu_driver == "disabled" and has_gpus(platform) else []


def has_gpus(platform: PlatformModel) -> bool:
    """Return whether any node pool or node auto-provisioning can create nodes with GPUs."""
    cluster = platform.cluster
    if cluster is None:
        return False
    catalog = catalog_of(cluster)
    for row in platform.node_pools:
        accelerator = machine_of({"spec": row}, catalog).accelerator
        if accelerator is not None and accelerator.resource == well_known.GPU:
            return True
    resource_limits = ((cluster["spec"].get("autoscaling") or {}).get("autoProvisioning") or {}).get("limits") or ()
    return any(row["resource"].startswith("nvidia") for row in resource_limits)


MANIFESTS_FOLDER: Final = "manifests"
ENGINE_FOLDER: Final = f"{MANIFESTS_FOLDER}/00-engine"
MONITORING_FOLDER: Final = "70-monitoring"
CLUSTER_FILE: Final = "cluster.yaml"
CONFIGURATION_FILE: Final = "configuration.yaml"


def render(platform: PlatformModel) -> Mapping[str, str]:
    """Return the text of each rendered text file, sorted by path; the operator's source archive is not included."""
    texts_by_path = {
        f"{ENGINE_FOLDER}/{name}": text for name, text in engine.engine_files(platform, stack_access(platform)).items()
    }
    texts_by_path |= {f"{MANIFESTS_FOLDER}/{name}": text for name, text in _manifests(platform).items()}
    texts_by_path |= terraform.terraform_files(platform)
    if platform.cluster is not None:
        texts_by_path[CLUSTER_FILE] = yaml_text([platform.cluster])
    kueue_settings = operator_configuration(platform)
    if kueue_settings is not None:
        texts_by_path[CONFIGURATION_FILE] = yaml_text([kueue_settings])
    return dict(sorted(texts_by_path.items()))


def _manifests(platform: PlatformModel) -> Mapping[str, str]:
    objects_by_group = platform_objects(platform).items()
    texts_by_name = {f"{name}.yaml": yaml_text(each.obj for each in objects) for name, objects in objects_by_group}
    resources = list(texts_by_name)
    monitoring_texts = monitoring_files(platform)
    if monitoring_texts:
        texts_by_name |= {f"{MONITORING_FOLDER}/{name}": text for name, text in monitoring_texts.items()}
        resources.append(MONITORING_FOLDER)
    resources += driver_resources(platform)
    return {"kustomization.yaml": yaml_text([engine.kustomization(resources)]), **texts_by_name}
