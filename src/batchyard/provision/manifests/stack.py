"""Manifests of the monitoring stack: Prometheus, Grafana and kube-state-metrics in the namespace `monitoring`.

kube-state-metrics is added only with `engine: kueue`: batchyard's operator itself serves metrics of nodes and Jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import yaml

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.operator_manifests.deployment import HEALTH_PORT, selector_labels
from batchyard.package_data import read_folder
from batchyard.provision.engine import ENGINE_NAMESPACES, settings_of
from batchyard.provision.model import MonitoringStack, Part, PlatformEngine, PlatformModel
from batchyard.provision.yaml_output import RenderedObject, dump_yaml, labels_of, make_platform_object

# Common parts of the monitoring stack: namespace, labels, and Deployments for the restricted pod security standard.


NAMESPACE: Final = "monitoring"
NAME_LABEL: Final = "app.kubernetes.io/name"
#: A digest of the configuration, whose change restarts the pods.
_DIGEST_ANNOTATION: Final = "batchyard.dev/configuration"
_RESTRICTED_LABELS: Final[Mapping[str, str]] = {"pod-security.kubernetes.io/enforce": "restricted"}
_RBAC_GROUP: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class HttpServer:
    """The settings of a Deployment whose single pod serves HTTP."""

    name: str
    image: str
    port: int
    #: The path of the readiness probe.
    readiness_path: str
    #: The ID of the non-root user that the container runs as.
    user_id: int
    requests: Mapping[str, str]
    memory_limit: str
    args: Sequence[str] = ()
    env: Sequence[Part] = ()
    #: Rows of a volume and its mount path; only an emptyDir is writable.
    volumes: Sequence[tuple[Part, str]] = ()
    #: The texts of the configuration; a change restarts the pod.
    configuration: Sequence[str] = ()
    #: Whether the server calls the API server, with a ServiceAccount of the same name.
    calls_api: bool = False


def namespace_objects(platform: PlatformModel) -> list[Obj]:
    """Return the monitoring namespace, and a NetworkPolicy that allows ingress only from pods of this namespace."""
    namespace = make_platform_object(scheme.NAMESPACE, platform.name, NAMESPACE)
    namespace["metadata"]["labels"] = {**labels_of(platform.name), **_RESTRICTED_LABELS}
    own_namespace_peer: Part = {"from": [{"podSelector": {}}]}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [own_namespace_peer]}
    return [
        namespace,
        make_platform_object(scheme.NETWORK_POLICY, platform.name, "from-own-namespace", NAMESPACE, spec=spec),
    ]


def config_map(platform: PlatformModel, name: str, data: Mapping[str, str]) -> Obj:
    """Return a ConfigMap in the monitoring namespace with these files (text by name)."""
    return make_platform_object(scheme.CONFIG_MAP, platform.name, name, NAMESPACE, data=dict(data))


def service(platform: PlatformModel, server: HttpServer) -> Obj:
    """Return the Service of a server, with the server's port."""
    port = {"name": "http", "port": server.port, "targetPort": "http", "protocol": "TCP"}
    spec = {"selector": {NAME_LABEL: server.name}, "ports": [port]}
    return make_platform_object(scheme.SERVICE, platform.name, server.name, NAMESPACE, spec=spec)


def service_account(platform: PlatformModel, name: str) -> Obj:
    """Return a ServiceAccount in the monitoring namespace."""
    return make_platform_object(scheme.SERVICE_ACCOUNT, platform.name, name, NAMESPACE)


def subjects_of(name: str) -> list[Mapping[str, str]]:
    """Return the subjects field of a role binding to a ServiceAccount of the monitoring namespace."""
    return [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]


def role_ref(kind: str, name: str) -> Mapping[str, str]:
    """Return the roleRef field of a role binding to a Role or ClusterRole."""
    return {"apiGroup": _RBAC_GROUP, "kind": kind, "name": name}


def deployment(platform: PlatformModel, server: HttpServer) -> Obj:
    """Return the Deployment of a server, with one replica and the strategy Recreate."""
    labels = {**labels_of(platform.name), NAME_LABEL: server.name}
    metadata: dict[str, Any] = {"labels": labels}
    if server.configuration:
        metadata["annotations"] = {_DIGEST_ANNOTATION: sha256("\0".join(server.configuration).encode()).hexdigest()}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {NAME_LABEL: server.name}},
        "template": {"metadata": metadata, "spec": _pod_spec(server)},
    }
    return make_platform_object(scheme.DEPLOYMENT, platform.name, server.name, NAMESPACE, spec=spec)


def _pod_spec(server: HttpServer) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": server.calls_api,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": server.user_id,
            "runAsGroup": server.user_id,
            "fsGroup": server.user_id,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(server)],
    }
    if server.calls_api:
        spec["serviceAccountName"] = server.name
    if server.volumes:
        spec["volumes"] = [dict(volume) for volume, _ in server.volumes]
    return spec


def _container(server: HttpServer) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": server.name,
        "image": server.image,
        "ports": [{"name": "http", "containerPort": server.port}],
        "readinessProbe": {"httpGet": {"path": server.readiness_path, "port": "http"}, "periodSeconds": 10},
        "resources": {"requests": dict(server.requests), "limits": {"memory": server.memory_limit}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if server.args:
        container["args"] = list(server.args)
    if server.env:
        container["env"] = [dict(each) for each in server.env]
    if server.volumes:
        container["volumeMounts"] = [_mount(volume, path) for volume, path in server.volumes]
    return container


def _mount(volume: Part, path: str) -> dict[str, Any]:
    is_writable = "emptyDir" in volume
    return {"name": volume["name"], "mountPath": path, **({} if is_writable else {"readOnly": True})}


KUBE_STATE_METRICS_NAME: Final = "kube-state-metrics"
# Prometheus in the cluster: scrape configuration, rules, and RBAC.


METRICS_PORT: Final = 8080
KUBE_STATE_METRICS_REQUESTS: Final[Mapping[str, str]] = {"cpu": "50m", "memory": "128Mi"}
_MEMORY_LIMIT: Final = "512Mi"
_USER_ID: Final = 65534
_TELEMETRY_PORT: Final = 8081
_WATCH_VERBS: Final = ("list", "watch")


def kube_state_metrics_objects(platform: PlatformModel, stack: MonitoringStack) -> list[Obj]:
    """Return the ServiceAccount, RBAC and Deployment of kube-state-metrics."""
    name = f"{platform.name}-{KUBE_STATE_METRICS_NAME}"
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": list(_WATCH_VERBS)},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": list(_WATCH_VERBS)},
    ]
    server = HttpServer(
        name=KUBE_STATE_METRICS_NAME,
        image=stack.kube_state_metrics_image,
        port=METRICS_PORT,
        readiness_path="/healthz",
        user_id=_USER_ID,
        requests=KUBE_STATE_METRICS_REQUESTS,
        memory_limit=_MEMORY_LIMIT,
        args=["--resources=nodes,pods,jobs", f"--port={METRICS_PORT}", f"--telemetry-port={_TELEMETRY_PORT}"],
        calls_api=True,
    )
    role, subjects = role_ref("ClusterRole", name), subjects_of(KUBE_STATE_METRICS_NAME)
    return [
        service_account(platform, KUBE_STATE_METRICS_NAME),
        make_platform_object(scheme.CLUSTER_ROLE, platform.name, name, rules=rules),
        make_platform_object(scheme.CLUSTER_ROLE_BINDING, platform.name, name, roleRef=role, subjects=subjects),
        deployment(platform, server),
    ]


PROMETHEUS_NAME: Final = "prometheus"
PROMETHEUS_PORT: Final = 9090
PROMETHEUS_REQUESTS: Final[Mapping[str, str]] = {"cpu": "200m", "memory": "512Mi"}
_PROMETHEUS_MEMORY_LIMIT: Final = "2Gi"

#: The size limit of the emptyDir, and the maximum size of Prometheus's data in it.
_PROMETHEUS_DISK_SIZE: Final = "10Gi"
_RETENTION_SIZE: Final = "8GB"
_CONFIG_MAP_NAME: Final = "prometheus-configuration"
_CONFIGURATION_FILE: Final = "prometheus.yml"
_CONFIGURATION_FOLDER: Final = "/etc/prometheus"
_RULES_FOLDER: Final = "deploy/monitoring/prometheus"
_RULES_SUFFIX: Final = ".rules.yml"
_TOKEN_FILE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - where a pod finds it
_KUEUE_PORT: Final = 8443
_KUEUE_PODS: Final[Mapping[str, str]] = {NAME_LABEL: "kueue", "control-plane": "controller-manager"}
#: Role of Kueue's release that may read its metrics.
_KUEUE_READER_ROLE: Final = "kueue-metrics-reader"
_SCRAPE_INTERVAL: Final = "15s"
_SLOW_SCRAPE_INTERVAL: Final = "30s"
_LABEL_CHARACTERS: Final = str.maketrans("./-", "___")


def prometheus_objects(platform: PlatformModel, stack: MonitoringStack) -> list[Obj]:
    """Return the ServiceAccount, configuration, Deployment and Service of Prometheus.

    With Kueue as the engine, RBAC objects for listing pods are included.
    """
    files = _configuration_files(platform)
    server = _prometheus_server(stack, files)
    return [
        service_account(platform, PROMETHEUS_NAME),
        *(_pod_list_rbac(platform, NAMESPACE) if platform.engine is PlatformEngine.KUEUE else ()),
        config_map(platform, _CONFIG_MAP_NAME, files),
        deployment(platform, server),
        service(platform, server),
    ]


def _prometheus_server(stack: MonitoringStack, files: Mapping[str, str]) -> HttpServer:
    options = {
        "config.file": f"{_CONFIGURATION_FOLDER}/{_CONFIGURATION_FILE}",
        "storage.tsdb.path": "/prometheus",
        "storage.tsdb.retention.time": f"{stack.retention_days}d",
        "storage.tsdb.retention.size": _RETENTION_SIZE,
    }
    return HttpServer(
        name=PROMETHEUS_NAME,
        image=stack.prometheus_image,
        port=PROMETHEUS_PORT,
        readiness_path="/-/ready",
        user_id=_USER_ID,
        requests=PROMETHEUS_REQUESTS,
        memory_limit=_PROMETHEUS_MEMORY_LIMIT,
        args=[f"--{name}={value}" for name, value in options.items()],
        volumes=[
            ({"name": "configuration", "configMap": {"name": _CONFIG_MAP_NAME}}, _CONFIGURATION_FOLDER),
            ({"name": "data", "emptyDir": {"sizeLimit": _PROMETHEUS_DISK_SIZE}}, "/prometheus"),
        ],
        configuration=list(files.values()),
        calls_api=True,
    )


def _configuration_files(platform: PlatformModel) -> Mapping[str, str]:
    rules = read_folder(_RULES_FOLDER, _RULES_SUFFIX) if platform.monitoring.installs_rules else {}
    configuration = {
        "global": {"scrape_interval": _SCRAPE_INTERVAL, "evaluation_interval": _SCRAPE_INTERVAL},
        "rule_files": list(rules),
        "scrape_configs": _scrape_jobs(platform),
    }
    return {_CONFIGURATION_FILE: dump_yaml(configuration), **rules}


def _scrape_jobs(platform: PlatformModel) -> list[Part]:
    if platform.engine is PlatformEngine.KUEUE:
        exporter_job = _scrape_job(
            KUBE_STATE_METRICS_NAME, NAMESPACE, {NAME_LABEL: KUBE_STATE_METRICS_NAME}, METRICS_PORT
        )
        kueue_job = _scrape_job("kueue", ENGINE_NAMESPACES[PlatformEngine.KUEUE], _KUEUE_PODS, _KUEUE_PORT)
        authorization, tls = {"credentials_file": _TOKEN_FILE}, {"insecure_skip_verify": True}
        tls_fields = {"scheme": "https", "authorization": authorization, "tls_config": tls}
        # kube-state-metrics keeps the labels of the objects that it describes.
        return [
            {**kueue_job, **tls_fields},
            {**exporter_job, "scrape_interval": _SLOW_SCRAPE_INTERVAL, "honor_labels": True},
        ]
    pod_labels = selector_labels(settings_of(platform))
    operator_job = _scrape_job(
        "batchyard-operator", ENGINE_NAMESPACES[PlatformEngine.BATCHYARD], pod_labels, HEALTH_PORT
    )
    objects_job = {**operator_job, "job_name": "batchyard-operator-objects", "scrape_interval": _SLOW_SCRAPE_INTERVAL}
    return [
        {**operator_job, "params": {"collect[]": ["kueue", "program", "batchyard"]}},
        {**objects_job, "params": {"collect[]": ["objects"]}},
    ]


def _scrape_job(name: str, namespace: str, pod_labels: Mapping[str, str], port: int) -> dict[str, Any]:
    filters = [
        _relabel_keep_rule(f"__meta_kubernetes_pod_label_{key.translate(_LABEL_CHARACTERS)}", pod_labels[key])
        for key in pod_labels
    ]
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
        "relabel_configs": [*filters, _relabel_keep_rule("__meta_kubernetes_pod_phase", "Running"), address, instance],
    }


def _relabel_keep_rule(label: str, value: str) -> Part:
    return {"source_labels": [label], "regex": value, "action": "keep"}


def prometheus_access_objects(platform: PlatformModel) -> list[Obj]:
    """Return the RBAC objects with which the stack's Prometheus lists the engine's pods, and reads Kueue's metrics.

    Those for Kueue's metrics are included only if Kueue is the engine.
    """
    objects = _pod_list_rbac(platform, ENGINE_NAMESPACES[platform.engine])
    if platform.engine is PlatformEngine.KUEUE:
        name, role = f"{platform.name}-{PROMETHEUS_NAME}-kueue", role_ref("ClusterRole", _KUEUE_READER_ROLE)
        subjects = subjects_of(PROMETHEUS_NAME)
        objects.append(
            make_platform_object(scheme.CLUSTER_ROLE_BINDING, platform.name, name, roleRef=role, subjects=subjects)
        )
    return objects


def _pod_list_rbac(platform: PlatformModel, namespace: str) -> list[Obj]:
    name = f"{platform.name}-{PROMETHEUS_NAME}"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    role, subjects = role_ref("Role", name), subjects_of(PROMETHEUS_NAME)
    return [
        make_platform_object(scheme.ROLE, platform.name, name, namespace, rules=rules),
        make_platform_object(scheme.ROLE_BINDING, platform.name, name, namespace, roleRef=role, subjects=subjects),
    ]


# Grafana in the cluster: provisioned data source and dashboards, and an optional password Secret.


GRAFANA_NAME: Final = "grafana"
GRAFANA_PORT: Final = 3000
GRAFANA_REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "256Mi"}

#: The user ID in Grafana's image.
_GRAFANA_USER_ID: Final = 472
_GRAFANA_FILES: Final = "deploy/monitoring/grafana"
_GRAFANA_FOLDER: Final = "/etc/grafana"
_DASHBOARDS_FOLDER: Final = f"{_GRAFANA_FOLDER}/dashboards"
_PROVISIONING_KINDS: Final = ("datasources", "dashboards")
#: The Secret with the key `password` for the user admin; without it Grafana's default applies.
_PASSWORD_SECRET_NAME: Final = "grafana-admin"  # noqa: S105 - the name of a Secret
_GRAFANA_SETTINGS: Final[Mapping[str, str]] = {
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_USERS_ALLOW_SIGN_UP": "false",
}


def grafana_objects(platform: PlatformModel, stack: MonitoringStack) -> list[Obj]:
    """Return the ConfigMaps, Deployment and Service of Grafana."""
    provisioning = {kind: _provisioning_file(kind) for kind in _PROVISIONING_KINDS}
    dashboards = read_folder(f"{_GRAFANA_FILES}/dashboards", ".json") if platform.monitoring.installs_dashboards else {}
    server = _grafana_server(stack, provisioning, list(dashboards))
    return [
        *(
            config_map(platform, _provisioning_map_name(kind), {"batchyard.yml": text})
            for kind, text in provisioning.items()
        ),
        *(config_map(platform, _dashboard_map_name(name), {name: text}) for name, text in dashboards.items()),
        deployment(platform, server),
        service(platform, server),
    ]


def _provisioning_map_name(kind: str) -> str:
    return f"grafana-provisioning-{kind}"


def _dashboard_map_name(name: str) -> str:
    return f"grafana-dashboard-{name.removesuffix('.json')}"


def _provisioning_file(kind: str) -> str:
    (text,) = read_folder(f"{_GRAFANA_FILES}/provisioning/{kind}", ".yml").values()
    document: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    for source in document.get("datasources", ()):
        source["url"] = f"http://{PROMETHEUS_NAME}.{NAMESPACE}.svc:{PROMETHEUS_PORT}"
    for provider in document.get("providers", ()):
        provider["options"]["path"] = _DASHBOARDS_FOLDER
    return dump_yaml(document)


def _grafana_server(stack: MonitoringStack, provisioning: Mapping[str, str], dashboards: list[str]) -> HttpServer:
    volumes: list[tuple[Part, str]] = [
        ({"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}, "/var/lib/grafana"),
        ({"name": "temporary", "emptyDir": {"sizeLimit": "100Mi"}}, "/tmp"),  # noqa: S108 - of its container
    ]
    volumes += [
        (
            {"name": f"provisioning-{kind}", "configMap": {"name": _provisioning_map_name(kind)}},
            f"{_GRAFANA_FOLDER}/provisioning/{kind}",
        )
        for kind in provisioning
    ]
    if dashboards:
        dashboard_sources = [{"configMap": {"name": _dashboard_map_name(name)}} for name in dashboards]
        volumes.append(({"name": "dashboards", "projected": {"sources": dashboard_sources}}, _DASHBOARDS_FOLDER))
    password_source = {"secretKeyRef": {"name": _PASSWORD_SECRET_NAME, "key": "password", "optional": True}}
    return HttpServer(
        name=GRAFANA_NAME,
        image=stack.grafana_image,
        port=GRAFANA_PORT,
        readiness_path="/api/health",
        user_id=_GRAFANA_USER_ID,
        requests=GRAFANA_REQUESTS,
        memory_limit=_MEMORY_LIMIT,
        env=[
            *({"name": name, "value": value} for name, value in _GRAFANA_SETTINGS.items()),
            {"name": "GF_SECURITY_ADMIN_PASSWORD", "valueFrom": password_source},
        ],
        volumes=volumes,
        configuration=list(provisioning.values()),
    )


_STACK_PATH: Final = "spec.monitoring.stack"


def stack_objects(platform: PlatformModel) -> Sequence[RenderedObject]:
    """Return all objects of the monitoring stack in apply order; empty if the platform has no stack."""
    stack = platform.monitoring.stack
    if stack is None:
        return []
    objects = [*namespace_objects(platform), *prometheus_objects(platform, stack), *grafana_objects(platform, stack)]
    if platform.engine is PlatformEngine.KUEUE:
        objects += kube_state_metrics_objects(platform, stack)
    return [RenderedObject(obj, _STACK_PATH) for obj in objects]


def stack_access(platform: PlatformModel) -> Sequence[Obj]:
    """Return the RBAC objects with which Prometheus scrapes the engine's pods; empty if the platform has no stack."""
    return [] if platform.monitoring.stack is None else prometheus_access_objects(platform)


def monitoring_stack_requests(platform: PlatformModel) -> Mapping[str, Mapping[str, str]]:
    """Return the resource requests of the single pod of each Deployment in the monitoring stack, by Deployment name.

    The result is empty if the platform has no monitoring stack.
    """
    if platform.monitoring.stack is None:
        return {}
    requests = {PROMETHEUS_NAME: PROMETHEUS_REQUESTS, GRAFANA_NAME: GRAFANA_REQUESTS}
    if platform.engine is PlatformEngine.KUEUE:
        requests[KUBE_STATE_METRICS_NAME] = KUBE_STATE_METRICS_REQUESTS
    return requests
