"""Prometheus in the cluster: scrape configuration, rules, and RBAC."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.operator_manifests.deployment import HEALTH_PORT
from batchyard.operator_manifests.settings import labels
from batchyard.package_data import read_folder
from batchyard.provision.engine import NAMESPACES, settings_of
from batchyard.provision.manifests.rendered import obj_of
from batchyard.provision.manifests.stack_parts import (
    NAME_LABEL,
    NAMESPACE,
    Server,
    account,
    config_map,
    deployment,
    role_ref,
    service,
    subjects_of,
)
from batchyard.provision.model import MonitoringStack, Part, PlatformEngine, PlatformModel
from batchyard.provision.yaml_output import dumped

# --- kube state metrics ---
#
# kube-state-metrics in the cluster: metrics of nodes, pods and Jobs for Kueue's dashboard.


KUBE_STATE_METRICS_NAME: Final = "kube-state-metrics"
PORT: Final = 8080
KUBE_STATE_METRICS_REQUESTS: Final[Mapping[str, str]] = {"cpu": "50m", "memory": "128Mi"}
_MEMORY_LIMIT: Final = "512Mi"
_USER: Final = 65534
_TELEMETRY_PORT: Final = 8081
_SEEN: Final = ("list", "watch")


def kube_state_metrics_objects(platform: PlatformModel, stack: MonitoringStack) -> list[Obj]:
    """Return the objects of kube-state-metrics."""
    name = f"{platform.name}-{KUBE_STATE_METRICS_NAME}"
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": list(_SEEN)},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": list(_SEEN)},
    ]
    server = Server(
        name=KUBE_STATE_METRICS_NAME,
        image=stack.kube_state_metrics_image,
        port=PORT,
        ready="/healthz",
        user=_USER,
        requests=KUBE_STATE_METRICS_REQUESTS,
        memory_limit=_MEMORY_LIMIT,
        args=["--resources=nodes,pods,jobs", f"--port={PORT}", f"--telemetry-port={_TELEMETRY_PORT}"],
        calls_api=True,
    )
    role, subjects = role_ref("ClusterRole", name), subjects_of(KUBE_STATE_METRICS_NAME)
    return [
        account(platform, KUBE_STATE_METRICS_NAME),
        obj_of(scheme.CLUSTER_ROLE, platform.name, name, rules=rules),
        obj_of(scheme.CLUSTER_ROLE_BINDING, platform.name, name, roleRef=role, subjects=subjects),
        deployment(platform, server),
    ]


PROMETHEUS_NAME: Final = "prometheus"
PROMETHEUS_PORT: Final = 9090
PROMETHEUS_REQUESTS: Final[Mapping[str, str]] = {"cpu": "200m", "memory": "512Mi"}
_PROMETHEUS_MEMORY_LIMIT: Final = "2Gi"

#: The disk for its data on the node; Prometheus uses at most the second value.
_DISK: Final = "10Gi"
_DATA_SIZE: Final = "8GB"
_CONFIGURATION: Final = "prometheus-configuration"
_FILE: Final = "prometheus.yml"
_FOLDER: Final = "/etc/prometheus"
_RULES: Final = "deploy/monitoring/prometheus"
_RULES_SUFFIX: Final = ".rules.yml"
_TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - where a pod finds it
_KUEUE_PORT: Final = 8443
_KUEUE_PODS: Final[Mapping[str, str]] = {NAME_LABEL: "kueue", "control-plane": "controller-manager"}
#: Role of Kueue's release that may read its metrics.
_KUEUE_READER: Final = "kueue-metrics-reader"
_OFTEN: Final = "15s"
_SELDOM: Final = "30s"
_LABEL_CHARACTERS: Final = str.maketrans("./-", "___")


def prometheus_objects(platform: PlatformModel, stack: MonitoringStack) -> list[Obj]:
    """Return the objects of Prometheus."""
    files = _files(platform)
    server = _server(stack, files)
    return [
        account(platform, PROMETHEUS_NAME),
        *(_finding_pods(platform, NAMESPACE) if platform.engine is PlatformEngine.KUEUE else ()),
        config_map(platform, _CONFIGURATION, files),
        deployment(platform, server),
        service(platform, server),
    ]


def _server(stack: MonitoringStack, files: Mapping[str, str]) -> Server:
    options = {
        "config.file": f"{_FOLDER}/{_FILE}",
        "storage.tsdb.path": "/prometheus",
        "storage.tsdb.retention.time": f"{stack.retention_days}d",
        "storage.tsdb.retention.size": _DATA_SIZE,
    }
    return Server(
        name=PROMETHEUS_NAME,
        image=stack.prometheus_image,
        port=PROMETHEUS_PORT,
        ready="/-/ready",
        user=_USER,
        requests=PROMETHEUS_REQUESTS,
        memory_limit=_PROMETHEUS_MEMORY_LIMIT,
        args=[f"--{name}={value}" for name, value in options.items()],
        volumes=[
            ({"name": "configuration", "configMap": {"name": _CONFIGURATION}}, _FOLDER),
            ({"name": "data", "emptyDir": {"sizeLimit": _DISK}}, "/prometheus"),
        ],
        configuration=list(files.values()),
        calls_api=True,
    )


# --- configuration ---


def _files(platform: PlatformModel) -> Mapping[str, str]:
    rules = read_folder(_RULES, _RULES_SUFFIX) if platform.monitoring.rules else {}
    configuration = {
        "global": {"scrape_interval": _OFTEN, "evaluation_interval": _OFTEN},
        "rule_files": list(rules),
        "scrape_configs": _jobs(platform),
    }
    return {_FILE: dumped(configuration), **rules}


def _jobs(platform: PlatformModel) -> list[Part]:
    """Return the scrape jobs: the engine's pods, and with Kueue those of kube-state-metrics."""
    if platform.engine is PlatformEngine.KUEUE:
        exporter = _job(KUBE_STATE_METRICS_NAME, NAMESPACE, {NAME_LABEL: KUBE_STATE_METRICS_NAME}, PORT)
        kueue = _job("kueue", NAMESPACES[PlatformEngine.KUEUE], _KUEUE_PODS, _KUEUE_PORT)
        over_tls = {
            "scheme": "https",
            "authorization": {"credentials_file": _TOKEN},
            "tls_config": {"insecure_skip_verify": True},
        }
        # kube-state-metrics keeps the labels of the objects that it describes.
        return [{**kueue, **over_tls}, {**exporter, "scrape_interval": _SELDOM, "honor_labels": True}]
    pods = labels(settings_of(platform))
    operator = _job("batchyard-operator", NAMESPACES[PlatformEngine.BATCHYARD], pods, HEALTH_PORT)
    of_objects = {**operator, "job_name": "batchyard-operator-objects", "scrape_interval": _SELDOM}
    return [
        {**operator, "params": {"collect[]": ["kueue", "program", "batchyard"]}},
        {**of_objects, "params": {"collect[]": ["objects"]}},
    ]


def _job(name: str, namespace: str, pods: Mapping[str, str], port: int) -> dict[str, Any]:
    """Return a scrape job for the running pods with these labels, at a port."""
    kept = [_keep(f"__meta_kubernetes_pod_label_{key.translate(_LABEL_CHARACTERS)}", pods[key]) for key in pods]
    address = {
        "source_labels": ["__meta_kubernetes_pod_ip"],
        "regex": "(.+)",
        "target_label": "__address__",
        "replacement": f"$1:{port}",
    }
    instance = {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "instance"}
    return {
        "job_name": name,
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [namespace]}}],
        "relabel_configs": [*kept, _keep("__meta_kubernetes_pod_phase", "Running"), address, instance],
    }


def _keep(label: str, value: str) -> Part:
    return {"source_labels": [label], "regex": value, "action": "keep"}


# --- rbac ---


def access_objects(platform: PlatformModel) -> list[Obj]:
    """Return RBAC objects in the engine's namespace: finding its pods, and with Kueue reading its metrics."""
    found = _finding_pods(platform, NAMESPACES[platform.engine])
    if platform.engine is PlatformEngine.KUEUE:
        name, role = f"{platform.name}-{PROMETHEUS_NAME}-kueue", role_ref("ClusterRole", _KUEUE_READER)
        subjects = subjects_of(PROMETHEUS_NAME)
        found.append(obj_of(scheme.CLUSTER_ROLE_BINDING, platform.name, name, roleRef=role, subjects=subjects))
    return found


def _finding_pods(platform: PlatformModel, namespace: str) -> list[Obj]:
    """Return the right to list pods in one namespace."""
    name = f"{platform.name}-{PROMETHEUS_NAME}"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    role, subjects = role_ref("Role", name), subjects_of(PROMETHEUS_NAME)
    return [
        obj_of(scheme.ROLE, platform.name, name, namespace, rules=rules),
        obj_of(scheme.ROLE_BINDING, platform.name, name, namespace, roleRef=role, subjects=subjects),
    ]
