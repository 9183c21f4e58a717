"""Monitoring manifests: rules, dashboards, and scraping of Kueue; our operator's scraping is part of its installation.

Rules are those of `deploy/monitoring`, in the collector's own kind. Dashboards are ConfigMaps with the label of
Grafana's sidecar.
"""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from batchyard.package_data import read_folder
from batchyard.provision.engine import NAMESPACES, kustomization
from batchyard.provision.manifests.rendered import labels_of
from batchyard.provision.model import MetricsCollector, PlatformEngine, PlatformModel
from batchyard.provision.yaml_output import yaml_text

_RULES: Final = "deploy/monitoring/prometheus"
_RULES_SUFFIX: Final = ".rules.yml"
_DASHBOARDS: Final = "deploy/monitoring/grafana/dashboards"
#: Evaluation interval of rules; managed Prometheus requires one.
_INTERVAL: Final = "30s"
#: The ServiceAccount that reads Kueue's metrics, and the Secret of its token.
_READER: Final = "kueue-metrics-collector"
_KUEUE_METRICS_PORT: Final = 8443
_SIDECAR: Final[Mapping[str, str]] = {"grafana_dashboard": "1"}


def files(platform: PlatformModel) -> Mapping[str, str]:
    """Return the files of a kustomization by name; empty without a collector."""
    if platform.monitoring.collector is MetricsCollector.NONE:
        return {}
    objects = []
    if platform.engine is PlatformEngine.KUEUE:
        objects += _kueue_scraping(platform)
    if platform.monitoring.rules:
        objects.append(_rules(platform))
    dashboards = read_folder(_DASHBOARDS, ".json") if platform.monitoring.dashboards else {}
    found = {"monitoring.yaml": yaml_text(objects)} if objects else {}
    found |= {f"dashboards/{name}": text for name, text in dashboards.items()}
    if not found:
        return {}
    fields: dict[str, object] = {"namespace": NAMESPACES[platform.engine]}
    if dashboards:
        fields["configMapGenerator"] = [
            {"name": name.removesuffix(".json"), "files": [f"dashboards/{name}"]} for name in dashboards
        ]
        labels = {**labels_of(platform.name), **_SIDECAR}
        fields["generatorOptions"] = {"disableNameSuffixHash": True, "labels": labels}
    resources = ["monitoring.yaml"] if objects else []
    return {"kustomization.yaml": yaml_text([kustomization(resources, **fields)]), **found}


def _rules(platform: PlatformModel) -> Mapping[str, Any]:
    texts = read_folder(_RULES, _RULES_SUFFIX).values()
    groups = [group for text in texts for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"]]
    if platform.monitoring.collector is MetricsCollector.SERVICE_MONITOR:
        head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
        metadata = {"name": "batchyard", "namespace": NAMESPACES[platform.engine], "labels": labels_of(platform.name)}
        return {**head, "metadata": metadata, "spec": {"groups": groups}}
    head = {"apiVersion": "monitoring.googleapis.com/v1", "kind": "ClusterRules"}
    timed = [{"name": group["name"], "interval": _INTERVAL, "rules": group["rules"]} for group in groups]
    metadata = {"name": "batchyard", "labels": labels_of(platform.name)}
    return {**head, "metadata": metadata, "spec": {"groups": timed}}


def _kueue_scraping(platform: PlatformModel) -> list[Mapping[str, Any]]:
    """Return the objects with which the collector reads Kueue's metrics: over TLS, with a reader's token."""
    if platform.monitoring.collector is MetricsCollector.SERVICE_MONITOR:
        return [_kueue_service_monitor(platform)]
    return [*_kueue_reader(platform), _kueue_pod_monitoring(platform)]


def _kueue_reader(platform: PlatformModel) -> list[Mapping[str, Any]]:
    """Return a reader of Kueue's metrics, its token, and the right of Google's collector to read the token.

    Source: prometheus-engine, pkg/operator/apis/monitoring/v1/http_types.go (SecretKeySelector).
    """
    metadata = {"name": _READER, "namespace": NAMESPACES[PlatformEngine.KUEUE], "labels": labels_of(platform.name)}
    rights, account = "rbac.authorization.k8s.io", {"kind": "ServiceAccount", "name": _READER}
    of_account = {"kubernetes.io/service-account.name": _READER}
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**metadata, "annotations": of_account},
            "type": "kubernetes.io/service-account-token",
        },
        {
            "apiVersion": f"{rights}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{platform.name}-{_READER}", "labels": labels_of(platform.name)},
            "roleRef": {"apiGroup": rights, "kind": "ClusterRole", "name": "kueue-metrics-reader"},
            "subjects": [{**account, "namespace": NAMESPACES[PlatformEngine.KUEUE]}],
        },
        {
            "apiVersion": f"{rights}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{**secrets, "resourceNames": [_READER]}],
        },
        {
            "apiVersion": f"{rights}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rights, "kind": "Role", "name": _READER},
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
        "authorization": {"type": "Bearer", "credentials": {"secret": {"name": _READER, "key": "token"}}},
    }
    selector = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    return {
        "apiVersion": "monitoring.googleapis.com/v1",
        "kind": "PodMonitoring",
        "metadata": {
            "name": "kueue",
            "namespace": NAMESPACES[PlatformEngine.KUEUE],
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
            "namespace": NAMESPACES[PlatformEngine.KUEUE],
            "labels": labels_of(platform.name),
        },
        "spec": {"endpoints": [endpoint], "selector": {"matchLabels": selector}},
    }
