"""Prometheus and Grafana in the cluster, in the namespace `monitoring`, if the platform's file enables them.

With `engine: kueue` kube-state-metrics is added: our operator serves metrics of nodes, pods and Jobs itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import yaml

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.operator_manifests.deployment import HEALTH_PORT, labels
from batchyard.package_data import read_folder
from batchyard.provision.engine import NAMESPACES, settings_of
from batchyard.provision.model import MonitoringStack, Part, PlatformEngine, PlatformModel
from batchyard.provision.yaml_output import RenderedObject, dumped, labels_of, obj_of

# --- stack parts ---
#
# Common parts of the monitoring stack: namespace, labels, and Deployments for the restricted pod security standard.


NAMESPACE: Final = "monitoring"
NAME_LABEL: Final = "app.kubernetes.io/name"
#: A digest of the configuration, whose change restarts the pods.
_DIGEST: Final = "batchyard.dev/configuration"
_RESTRICTED: Final[Mapping[str, str]] = {"pod-security.kubernetes.io/enforce": "restricted"}
_RIGHTS: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Server:
    """A Deployment of one pod that serves HTTP."""

    name: str
    image: str
    port: int
    #: The path of its readiness probe.
    ready: str
    #: The user ID it runs as, not root.
    user: int
    requests: Mapping[str, str]
    memory_limit: str
    args: Sequence[str] = ()
    env: Sequence[Part] = ()
    #: Rows of a volume and its mount path; only an emptyDir is writable.
    volumes: Sequence[tuple[Part, str]] = ()
    #: Texts whose change restarts the pod.
    configuration: Sequence[str] = ()
    #: Whether it calls the API server, with the token of a ServiceAccount of its name.
    calls_api: bool = False


def namespace_objects(platform: PlatformModel) -> list[Obj]:
    """Return the namespace, and a policy that allows only its own pods to connect; port-forward comes from the node."""
    namespace = obj_of(scheme.NAMESPACE, platform.name, NAMESPACE)
    namespace["metadata"]["labels"] = {**labels_of(platform.name), **_RESTRICTED}
    own_pods: Part = {"from": [{"podSelector": {}}]}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [own_pods]}
    return [namespace, obj_of(scheme.NETWORK_POLICY, platform.name, "from-own-namespace", NAMESPACE, spec=spec)]


def config_map(platform: PlatformModel, name: str, data: Mapping[str, str]) -> Obj:
    """Return a ConfigMap of files."""
    return obj_of(scheme.CONFIG_MAP, platform.name, name, NAMESPACE, data=dict(data))


def service(platform: PlatformModel, server: Server) -> Obj:
    """Return the Service of a server, on the same port."""
    port = {"name": "http", "port": server.port, "targetPort": "http", "protocol": "TCP"}
    spec = {"selector": {NAME_LABEL: server.name}, "ports": [port]}
    return obj_of(scheme.SERVICE, platform.name, server.name, NAMESPACE, spec=spec)


def account(platform: PlatformModel, name: str) -> Obj:
    """Return a ServiceAccount."""
    return obj_of(scheme.SERVICE_ACCOUNT, platform.name, name, NAMESPACE)


def subjects_of(name: str) -> list[Mapping[str, str]]:
    """Return the subject of a binding: a ServiceAccount of the stack."""
    return [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]


def role_ref(kind: str, name: str) -> Mapping[str, str]:
    """Return the roleRef of a binding."""
    return {"apiGroup": _RIGHTS, "kind": kind, "name": name}


def deployment(platform: PlatformModel, server: Server) -> Obj:
    """Return a Deployment of one pod, recreated on updates, since two pods must not share its data."""
    labels = {**labels_of(platform.name), NAME_LABEL: server.name}
    metadata: dict[str, Any] = {"labels": labels}
    if server.configuration:
        metadata["annotations"] = {_DIGEST: sha256("\0".join(server.configuration).encode()).hexdigest()}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {NAME_LABEL: server.name}},
        "template": {"metadata": metadata, "spec": _pod(server)},
    }
    return obj_of(scheme.DEPLOYMENT, platform.name, server.name, NAMESPACE, spec=spec)


def _pod(server: Server) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": server.calls_api,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": server.user,
            "runAsGroup": server.user,
            "fsGroup": server.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(server)],
    }
    if server.calls_api:
        spec["serviceAccountName"] = server.name
    if server.volumes:
        spec["volumes"] = [dict(volume) for volume, _ in server.volumes]
    return spec


def _container(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": server.name,
        "image": server.image,
        "ports": [{"name": "http", "containerPort": server.port}],
        "readinessProbe": {"httpGet": {"path": server.ready, "port": "http"}, "periodSeconds": 10},
        "resources": {"requests": dict(server.requests), "limits": {"memory": server.memory_limit}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if server.args:
        found["args"] = list(server.args)
    if server.env:
        found["env"] = [dict(each) for each in server.env]
    if server.volumes:
        found["volumeMounts"] = [_mount(volume, path) for volume, path in server.volumes]
    return found


def _mount(volume: Part, path: str) -> dict[str, Any]:
    is_written = "emptyDir" in volume
    return {"name": volume["name"], "mountPath": path, **({} if is_written else {"readOnly": True})}


# --- kube state metrics ---
#
# kube-state-metrics in the cluster: metrics of nodes, pods and Jobs for Kueue's dashboard.


KUBE_STATE_METRICS_NAME: Final = "kube-state-metrics"
# --- prometheus ---
#
# Prometheus in the cluster: scrape configuration, rules, and RBAC.


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


# --- grafana ---
#
# Grafana in the cluster: provisioned data source and dashboards, and an optional password Secret.


GRAFANA_NAME: Final = "grafana"
GRAFANA_PORT: Final = 3000
GRAFANA_REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "256Mi"}

#: The user ID in Grafana's image.
_GRAFANA_USER: Final = 472
_SHIPPED: Final = "deploy/monitoring/grafana"
_GRAFANA_FOLDER: Final = "/etc/grafana"
_DASHBOARDS: Final = f"{_GRAFANA_FOLDER}/dashboards"
_PROVISIONING: Final = ("datasources", "dashboards")
#: The Secret with the key `password` for the user admin; without it Grafana's default applies.
_SECRET: Final = "grafana-admin"  # noqa: S105 - the name of a Secret
_SETTINGS: Final[Mapping[str, str]] = {
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_USERS_ALLOW_SIGN_UP": "false",
}


def grafana_objects(platform: PlatformModel, stack: MonitoringStack) -> list[Obj]:
    """Return all of its objects."""
    provisioning = {kind: _provisioned(kind) for kind in _PROVISIONING}
    dashboards = read_folder(f"{_SHIPPED}/dashboards", ".json") if platform.monitoring.dashboards else {}
    server = _grafana_server(stack, provisioning, list(dashboards))
    return [
        *(config_map(platform, _map_of(kind), {"batchyard.yml": text}) for kind, text in provisioning.items()),
        *(config_map(platform, _map_of_dashboard(name), {name: text}) for name, text in dashboards.items()),
        deployment(platform, server),
        service(platform, server),
    ]


def _map_of(kind: str) -> str:
    return f"grafana-provisioning-{kind}"


def _map_of_dashboard(name: str) -> str:
    return f"grafana-dashboard-{name.removesuffix('.json')}"


def _provisioned(kind: str) -> str:
    """Return a provisioning file for this pod's Prometheus and folder."""
    (text,) = read_folder(f"{_SHIPPED}/provisioning/{kind}", ".yml").values()
    found: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    for source in found.get("datasources", ()):
        source["url"] = f"http://{PROMETHEUS_NAME}.{NAMESPACE}.svc:{PROMETHEUS_PORT}"
    for provider in found.get("providers", ()):
        provider["options"]["path"] = _DASHBOARDS
    return dumped(found)


def _grafana_server(stack: MonitoringStack, provisioning: Mapping[str, str], dashboards: list[str]) -> Server:
    volumes: list[tuple[Part, str]] = [
        ({"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}, "/var/lib/grafana"),
        ({"name": "temporary", "emptyDir": {"sizeLimit": "100Mi"}}, "/tmp"),  # noqa: S108 - of its container
    ]
    volumes += [
        (
            {"name": f"provisioning-{kind}", "configMap": {"name": _map_of(kind)}},
            f"{_GRAFANA_FOLDER}/provisioning/{kind}",
        )
        for kind in provisioning
    ]
    if dashboards:
        sources = [{"configMap": {"name": _map_of_dashboard(name)}} for name in dashboards]
        volumes.append(({"name": "dashboards", "projected": {"sources": sources}}, _DASHBOARDS))
    password = {"secretKeyRef": {"name": _SECRET, "key": "password", "optional": True}}
    return Server(
        name=GRAFANA_NAME,
        image=stack.grafana_image,
        port=GRAFANA_PORT,
        ready="/api/health",
        user=_GRAFANA_USER,
        requests=GRAFANA_REQUESTS,
        memory_limit=_MEMORY_LIMIT,
        env=[
            *({"name": name, "value": value} for name, value in _SETTINGS.items()),
            {"name": "GF_SECURITY_ADMIN_PASSWORD", "valueFrom": password},
        ],
        volumes=volumes,
        configuration=list(provisioning.values()),
    )


_PATH: Final = "spec.monitoring.stack"


def stack_objects(platform: PlatformModel) -> Sequence[RenderedObject]:
    """Return all objects, in the order in which they are applied; empty if the stack is disabled."""
    stack = platform.monitoring.stack
    if stack is None:
        return []
    objects = [
        *namespace_objects(platform),
        *prometheus_objects(platform, stack),
        *grafana_objects(platform, stack),
    ]
    if platform.engine is PlatformEngine.KUEUE:
        objects += kube_state_metrics_objects(platform, stack)
    return [RenderedObject(obj, _PATH) for obj in objects]


def stack_access(platform: PlatformModel) -> Sequence[Obj]:
    """Return the objects in the engine's namespace that let Prometheus reach it; empty if the stack is disabled."""
    return [] if platform.monitoring.stack is None else access_objects(platform)


def stack_requests(platform: PlatformModel) -> Mapping[str, Mapping[str, str]]:
    """Return the requests of its pods by Deployment name: one pod each."""
    if platform.monitoring.stack is None:
        return {}
    found = {PROMETHEUS_NAME: PROMETHEUS_REQUESTS, GRAFANA_NAME: GRAFANA_REQUESTS}
    if platform.engine is PlatformEngine.KUEUE:
        found[KUBE_STATE_METRICS_NAME] = KUBE_STATE_METRICS_REQUESTS
    return found
