"""Manifests of the operator: Deployment, ConfigMap, ResourceQuota, Services, NetworkPolicy, webhook configurations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind
from batchyard.controller_groups import ADMISSION, KUBERNETES_GROUPS
from batchyard.jobs.described.description import parse_job_kind, served_kind
from batchyard.webhooks import hooks

#: The PriorityClass of critical pods, which exists on every cluster.
CRITICAL_PRIORITY_CLASS: Final = "system-cluster-critical"


class Scraping(StrEnum):
    """The kind of object that makes the cluster's Prometheus scrape the operator's metrics; NONE for no object."""

    NONE = "none"
    #: Google Cloud Managed Service for Prometheus.
    POD_MONITORING = "PodMonitoring"
    #: The Prometheus Operator.
    SERVICE_MONITOR = "ServiceMonitor"


@dataclass(frozen=True, slots=True)
class InstallSettings:
    """The settings from which the operator's manifests are made. The defaults are those of `deploy/operator/base`."""

    image: str = "batchyard:0.2.0"
    namespace: str = "batchyard-system"
    #: The name of the installed objects, or their prefix.
    name: str = "batchyard-operator"
    replicas: int = 2
    controllers: Sequence[str] = KUBERNETES_GROUPS
    #: Whether webhooks are installed: defaulting, validation, and conversion of Kueue's v1beta1.
    webhooks: bool = True
    #: Whether the CRDs are installed.
    definitions: bool = True
    #: Whether the user roles are installed: `kueue-batch-admin-role`, `kueue-batch-user-role` and those they aggregate.
    user_roles: bool = True
    #: Whether the operator serves the dashboard to users with a token of the cluster.
    page: bool = True
    fair_sharing: bool = False
    #: The YAML text of Kueue's Configuration; '' for none.
    configuration: str = ""
    #: The existing PriorityClass of the operator's pods, or '' for none.
    priority_class: str = CRITICAL_PRIORITY_CLASS
    scraping: Scraping = Scraping.NONE
    requests: Mapping[str, str] = field(default_factory=lambda: {"cpu": "500m", "memory": "512Mi"})
    limits: Mapping[str, str] = field(default_factory=lambda: {"memory": "2Gi"})
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    #: The JobKinds whose kinds the operator may manage.
    job_kinds: Sequence[Obj] = ()
    #: Additional command-line arguments of `batchyard operator`.
    arguments: Sequence[str] = ()

    @property
    def config_map_name(self) -> str:
        """The name of the ConfigMap with Kueue's Configuration."""
        return f"{self.name}-configuration"

    @property
    def certificate_secret_name(self) -> str:
        """The name of the Secret with the webhooks' certificate and its certificate authority."""
        return f"{self.name}-webhook-certificates"

    @property
    def webhook_service(self) -> str:
        """The name of the Service of the webhooks; their webhook configurations have the same name."""
        return f"{self.name}-webhooks"


def selector_labels(settings: InstallSettings) -> Mapping[str, str]:
    """Return the selector labels of the operator's pods."""
    return {"app.kubernetes.io/name": "batchyard", "app.kubernetes.io/instance": settings.name}


def with_labels(obj: Mapping[str, Any], settings: InstallSettings, name: str = "", namespace: str = "") -> Obj:
    """Return `obj` with new metadata: `name` or else `settings.name`, `namespace` if set, and the operator's labels."""
    metadata: dict[str, Any] = {"name": name or settings.name, "labels": dict(selector_labels(settings))}
    if namespace:
        metadata["namespace"] = namespace
    identifying_fields = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    return identifying_fields | {field: value for field, value in obj.items() if field not in identifying_fields}


#: The port of the health checks and metrics.
HEALTH_PORT: Final = 8080
#: The port of the webhooks; on private GKE clusters, the control plane reaches it without an extra firewall rule.
WEBHOOK_PORT: Final = 10250
#: The user id of the unprivileged user in the container image.
_UNPRIVILEGED_USER_ID: Final = 65532
#: How long a terminating pod still answers webhooks, by the preStop sleep action of Kubernetes 1.30.
_TERMINATION_DELAY_SECONDS: Final = 5
#: The file name of Kueue's Configuration in the ConfigMap.
CONFIGURATION_KEY: Final = "controller_manager_config.yaml"
_CONFIGURATION_FOLDER: Final = "/etc/batchyard"
_CONFIGURATION_VOLUME: Final = "configuration"
_DIGEST_ANNOTATION: Final = "batchyard.dev/configuration"
_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


def deployment_objects(settings: InstallSettings) -> Sequence[Obj]:
    """Return the operator's Deployment and, if needed, its ResourceQuota, ConfigMap and PodDisruptionBudget."""
    return [
        *_critical_pod_quota(settings),
        *_config_map(settings),
        with_labels(_deployment_spec(settings), settings, namespace=settings.namespace),
        *_disruption_budget(settings),
    ]


def has_webhooks(settings: InstallSettings) -> bool:
    """Return whether the settings enable webhooks and a selected controller group has any."""
    return settings.webhooks and bool(hooks.operator_webhooks(settings.controllers))


def described_kinds(settings: InstallSettings) -> Sequence[ServedKind]:
    """Return the custom kinds of jobs that the operator may queue: batchyard's own and those in `job_kinds`."""
    if ADMISSION not in settings.controllers:
        return ()
    return [*scheme.DESCRIBED_KINDS.values(), *(served_kind(parse_job_kind(each)) for each in settings.job_kinds)]


def operator_arguments(settings: InstallSettings) -> list[str]:
    """Return the command-line arguments of the operator's container."""
    command_line = [
        "operator",
        f"--controllers={','.join(settings.controllers)}",
        f"--leader-elect-resource-name={settings.name}",
        "--listen=0.0.0.0",
        f"--port={HEALTH_PORT}",
        "--log-format=json",
    ]
    if settings.configuration:
        command_line.append(f"--config={_CONFIGURATION_FOLDER}/{CONFIGURATION_KEY}")
    if settings.fair_sharing:
        command_line.append("--fair-sharing")
    if has_webhooks(settings):
        command_line.append(f"--webhook-port={WEBHOOK_PORT}")
        command_line.append(f"--webhook-service={settings.webhook_service}")
        command_line.append(f"--webhook-certificates={settings.certificate_secret_name}")
    return [*command_line, *settings.arguments]


def _config_map(settings: InstallSettings) -> Iterator[Obj]:
    if settings.configuration:
        data = {CONFIGURATION_KEY: settings.configuration}
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "data": data}
        yield with_labels(obj, settings, settings.config_map_name, namespace=settings.namespace)


def _deployment_spec(settings: InstallSettings) -> Obj:
    metadata: dict[str, Any] = {"labels": dict(selector_labels(settings))}
    if settings.configuration:  # the operator reads it at startup: a changed digest replaces the pods
        metadata["annotations"] = {_DIGEST_ANNOTATION: sha256(settings.configuration.encode()).hexdigest()}
    template = {"metadata": metadata, "spec": _pod_spec(settings)}
    update_strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    pod_selector = {"matchLabels": dict(selector_labels(settings))}
    spec = {"replicas": settings.replicas, "selector": pod_selector, "strategy": update_strategy, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}


def _pod_spec(settings: InstallSettings) -> Obj:
    spec: dict[str, Any] = {
        "serviceAccountName": settings.name,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UNPRIVILEGED_USER_ID,
            "runAsGroup": _UNPRIVILEGED_USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(settings)],
        "terminationGracePeriodSeconds": 20,
        "topologySpreadConstraints": [
            _spread_constraint(settings, _ZONE_LABEL),
            _spread_constraint(settings, _HOSTNAME_LABEL),
        ],
    }
    if settings.configuration:
        spec["volumes"] = [{"name": _CONFIGURATION_VOLUME, "configMap": {"name": settings.config_map_name}}]
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = list(settings.tolerations)
    return spec


def _spread_constraint(settings: InstallSettings, topology_key: str) -> Obj:
    selector = {"matchLabels": dict(selector_labels(settings))}
    return {"maxSkew": 1, "topologyKey": topology_key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}


def _container(settings: InstallSettings) -> Obj:
    ports = [{"name": "health", "containerPort": HEALTH_PORT}]
    lifecycle: dict[str, Any] = {}
    if has_webhooks(settings):
        ports.append({"name": "webhooks", "containerPort": WEBHOOK_PORT})
        # Requests arrive until all API servers know that the pod is terminating.
        lifecycle = {"lifecycle": {"preStop": {"sleep": {"seconds": _TERMINATION_DELAY_SECONDS}}}}
    mounts = {"volumeMounts": [{"name": _CONFIGURATION_VOLUME, "mountPath": _CONFIGURATION_FOLDER, "readOnly": True}]}
    return {
        **lifecycle,
        **(mounts if settings.configuration else {}),
        "name": "operator",
        "image": settings.image,
        "args": operator_arguments(settings),
        "ports": ports,
        "livenessProbe": _probe("/healthz", 20),
        "readinessProbe": _probe("/readyz", 5),
        "resources": {"requests": dict(settings.requests), "limits": dict(settings.limits)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _probe(path: str, period_seconds: int) -> Obj:
    return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": period_seconds, "timeoutSeconds": 5}


def _disruption_budget(settings: InstallSettings) -> Iterator[Obj]:
    if settings.replicas > 1:
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(selector_labels(settings))}}
        pod_disruption_budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec}
        yield with_labels(pod_disruption_budget, settings, namespace=settings.namespace)


def _critical_pod_quota(settings: InstallSettings) -> Iterator[Obj]:
    """Yield the ResourceQuota that clusters such as GKE's require for critical pods; nothing for other pods."""
    if settings.priority_class == CRITICAL_PRIORITY_CLASS:
        priority_class_scope = {"scopeName": "PriorityClass", "operator": "In", "values": [CRITICAL_PRIORITY_CLASS]}
        pod_limit = {"pods": str(settings.replicas + 1)}  # one more during a rolling update
        spec = {"hard": pod_limit, "scopeSelector": {"matchExpressions": [priority_class_scope]}}
        resource_quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": spec}
        yield with_labels(resource_quota, settings, namespace=settings.namespace)


# The operator's network objects: Services, a NetworkPolicy, scrape configuration, webhook configurations.


_HTTPS_PORT: Final = 443
#: The port of an API server on clusters that do not use 443.
_API_SERVER_PORT: Final = 6443
_DNS_PORT: Final = 53
_SCRAPE_INTERVAL: Final = "15s"


def network_objects(settings: InstallSettings) -> Sequence[Obj]:
    """Return the operator's Services and NetworkPolicy, and if enabled, the object that makes Prometheus scrape it."""
    return [*_services(settings), _network_policy(settings), *_scrape_configuration(settings)]


def _services(settings: InstallSettings) -> Iterator[Obj]:
    metrics_port = {"name": "metrics", "port": HEALTH_PORT, "targetPort": "health"}
    yield _service(settings, f"{settings.name}-metrics", metrics_port)
    if has_webhooks(settings):
        webhook_port = {"name": "webhooks", "port": _HTTPS_PORT, "targetPort": "webhooks"}
        yield _service(settings, settings.webhook_service, webhook_port)


def _service(settings: InstallSettings, name: str, port: dict[str, Any]) -> Obj:
    spec = {"selector": dict(selector_labels(settings)), "ports": [{**port, "protocol": "TCP"}]}
    return with_labels({"apiVersion": "v1", "kind": "Service", "spec": spec}, settings, name, settings.namespace)


def _network_policy(settings: InstallSettings) -> Obj:
    ingress_ports = [HEALTH_PORT, *([WEBHOOK_PORT] if has_webhooks(settings) else [])]
    egress_rules = [
        {"ports": [{"protocol": "TCP", "port": _HTTPS_PORT}, {"protocol": "TCP", "port": _API_SERVER_PORT}]},
        {"ports": [{"protocol": "UDP", "port": _DNS_PORT}, {"protocol": "TCP", "port": _DNS_PORT}]},
    ]
    spec = {
        "podSelector": {"matchLabels": dict(selector_labels(settings))},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ingress_ports]}],
        "egress": egress_rules,
    }
    network_policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec}
    return with_labels(network_policy, settings, namespace=settings.namespace)


def _scrape_configuration(settings: InstallSettings) -> Iterator[Obj]:
    selector = {"matchLabels": dict(selector_labels(settings))}
    if settings.scraping is Scraping.POD_MONITORING:
        scrape_endpoint = {"port": "health", "path": "/metrics", "interval": _SCRAPE_INTERVAL}
        kind = {"apiVersion": "monitoring.googleapis.com/v1", "kind": "PodMonitoring"}
    elif settings.scraping is Scraping.SERVICE_MONITOR:
        scrape_endpoint = {"port": "metrics", "path": "/metrics", "interval": _SCRAPE_INTERVAL}
        kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor"}
    else:
        return
    spec = {"selector": selector, "endpoints": [scrape_endpoint]}
    yield with_labels({**kind, "spec": spec}, settings, namespace=settings.namespace)


# The webhook configurations, without the certificate authority, which the operator creates and adds.
# Source of policies and selectors: Kueue's config/components/webhook, JobSet's config/components/webhook.


_WEBHOOK_API_VERSION: Final = "admissionregistration.k8s.io/v1"
_WEBHOOK_TIMEOUT_SECONDS: Final = 10


def webhooks(settings: InstallSettings) -> Sequence[Obj]:
    """Return the operator's MutatingWebhookConfiguration and ValidatingWebhookConfiguration; empty without webhooks."""
    if not has_webhooks(settings):
        return []
    operator_hooks = hooks.operator_webhooks(settings.controllers, described_kinds(settings))
    return [
        _webhook_configuration("Mutating", [hook for hook in operator_hooks if hook.mutates], settings),
        _webhook_configuration("Validating", [hook for hook in operator_hooks if not hook.mutates], settings),
    ]


def _webhook_configuration(phase: str, phase_hooks: Iterable[hooks.OperatorWebhook], settings: InstallSettings) -> Obj:
    configuration = {"apiVersion": _WEBHOOK_API_VERSION, "kind": f"{phase}WebhookConfiguration"}
    webhook_entries = [_webhook_entry(hook, settings) for hook in phase_hooks]
    return with_labels({**configuration, "webhooks": webhook_entries}, settings, settings.webhook_service)


def _webhook_entry(hook: hooks.OperatorWebhook, settings: InstallSettings) -> Obj:
    path = hooks.MUTATE_PATH if hook.mutates else hooks.VALIDATE_PATH
    webhook_service_reference = {"name": settings.webhook_service, "namespace": settings.namespace, "path": path}
    admission_rule = {
        "apiGroups": [hook.served_kind.group],
        "apiVersions": [hook.served_kind.storage_version],
        "operations": list(hook.operations),
        "resources": hook.resources,
    }
    webhook: dict[str, Any] = {
        "name": hook.name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": webhook_service_reference},
        "failurePolicy": "Fail",
        "rules": [admission_rule],
        "sideEffects": "None",
        "timeoutSeconds": _WEBHOOK_TIMEOUT_SECONDS,
    }
    if hook.handles_jobs_or_pods:
        excluded_namespaces = [hooks.SYSTEM_NAMESPACE, settings.namespace]
        outside_operator = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded_namespaces}
        webhook["namespaceSelector"] = {"matchExpressions": [outside_operator]}
    if hook.match_conditions:
        webhook["matchConditions"] = [dict(condition) for condition in hook.match_conditions]
    elif hook.served_kind.constant == scheme.POD:
        webhook["objectSelector"] = {"matchExpressions": [{"key": hooks.JOB_SET_POD_LABEL, "operator": "Exists"}]}
    return webhook
