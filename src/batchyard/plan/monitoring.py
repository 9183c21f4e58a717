"""Rules and dashboards of the platform, and who fetches Kueue's metrics; our operator's come with its installation.

Rules are those of `deploy/monitoring`, as the collector's own kind has them. Dashboards are ConfigMaps with the label
that Grafana's sidecar looks for.
"""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from batchyard.plan.engine import NAMESPACES, kustomization
from batchyard.plan.manifests.made import labels_of
from batchyard.plan.model import Collector, Engine, Platform
from batchyard.plan.texts import yaml_text
from batchyard.shipped import read_folder

_RULES: Final = "deploy/monitoring/prometheus"
_RULES_SUFFIX: Final = ".rules.yml"
_DASHBOARDS: Final = "deploy/monitoring/grafana/dashboards"
#: How often rules are worked out; managed Prometheus wants it said.
_INTERVAL: Final = "30s"
_SIDECAR: Final[Mapping[str, str]] = {"grafana_dashboard": "1"}


def files(platform: Platform) -> Mapping[str, str]:
    """The files of a kustomization by their names; none where nobody collects metrics."""
    if platform.monitoring.collector is Collector.NONE:
        return {}
    objects = []
    if platform.engine is Engine.KUEUE:
        objects.append(_kueue_monitor(platform))
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


def _rules(platform: Platform) -> Mapping[str, Any]:
    texts = read_folder(_RULES, _RULES_SUFFIX).values()
    groups = [group for text in texts for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"]]
    if platform.monitoring.collector is Collector.SERVICE_MONITOR:
        head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
        metadata = {"name": "batchyard", "namespace": NAMESPACES[platform.engine], "labels": labels_of(platform.name)}
        return {**head, "metadata": metadata, "spec": {"groups": groups}}
    head = {"apiVersion": "monitoring.googleapis.com/v1", "kind": "ClusterRules"}
    timed = [{"name": group["name"], "interval": _INTERVAL, "rules": group["rules"]} for group in groups]
    metadata = {"name": "batchyard", "labels": labels_of(platform.name)}
    return {**head, "metadata": metadata, "spec": {"groups": timed}}


def _kueue_monitor(platform: Platform) -> Mapping[str, Any]:
    """Kueue tells its metrics over TLS, to who shows a token that may read them."""
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
        "metadata": {"name": "kueue", "namespace": NAMESPACES[Engine.KUEUE], "labels": labels_of(platform.name)},
        "spec": {"endpoints": [endpoint], "selector": {"matchLabels": selector}},
    }
