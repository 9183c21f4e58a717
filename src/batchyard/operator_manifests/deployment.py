"""The operator's Deployment, PodDisruptionBudget, ResourceQuota and configuration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.controller_groups import ON_KUBERNETES
from batchyard.webhooks.hooks import MUTATE, POD_LABEL, SYSTEM, VALIDATE, Hook, hooks

# --- settings ---
#
# The settings of an operator's installation.


#: The PriorityClass of critical pods, which exists on every cluster.
CRITICAL: Final = "system-cluster-critical"


class Scraping(StrEnum):
    """The object that configures the cluster's Prometheus to scrape the metrics."""

    NONE = "none"
    #: Managed Prometheus of GKE.
    POD_MONITORING = "PodMonitoring"
    #: The Prometheus operator.
    SERVICE_MONITOR = "ServiceMonitor"


@dataclass(frozen=True, slots=True)
class InstallSettings:
    """The choices of an installation. The defaults are those of `deploy/operator/base`."""

    image: str = "batchyard:0.2.0"
    namespace: str = "batchyard-system"
    #: The name of its objects, or their prefix.
    name: str = "batchyard-operator"
    replicas: int = 2
    controllers: Sequence[str] = ON_KUBERNETES
    #: Whether webhooks are installed: defaulting, validation, and conversion of Kueue's v1beta1.
    webhooks: bool = True
    #: Whether the CRDs are installed.
    definitions: bool = True
    #: Whether the user roles are installed: `kueue-batch-admin-role`, `kueue-batch-user-role` and those they aggregate.
    user_roles: bool = True
    #: Whether the dashboard is served, to requests with a token of the cluster.
    page: bool = True
    fair_sharing: bool = False
    #: The text of Kueue's Configuration; '' for none.
    configuration: str = ""
    #: An existing PriorityClass, or '' for none.
    priority_class: str = CRITICAL
    scraping: Scraping = Scraping.NONE
    requests: Mapping[str, str] = field(default_factory=lambda: {"cpu": "500m", "memory": "512Mi"})
    limits: Mapping[str, str] = field(default_factory=lambda: {"memory": "2Gi"})
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    #: Further arguments of `batchyard operator`.
    arguments: Sequence[str] = ()

    @property
    def config_map(self) -> str:
        """The ConfigMap of Kueue's Configuration."""
        return f"{self.name}-configuration"

    @property
    def certificates(self) -> str:
        """The Secret of the webhooks' authority and certificate."""
        return f"{self.name}-webhook-certificates"

    @property
    def webhook_service(self) -> str:
        """The Service of the webhooks, and the name of the webhook configurations."""
        return f"{self.name}-webhooks"


# --- labelled ---
#
# The labels of an installation's objects.


def labels(settings: InstallSettings) -> Mapping[str, str]:
    """The selector labels of the operator's pods."""
    return {"app.kubernetes.io/name": "batchyard", "app.kubernetes.io/instance": settings.name}


def labelled(obj: Mapping[str, Any], settings: InstallSettings, name: str = "", namespace: str = "") -> Obj:
    """An object with the given or the installation's name, and the labels."""
    metadata: dict[str, Any] = {"name": name or settings.name, "labels": dict(labels(settings))}
    if namespace:
        metadata["namespace"] = namespace
    head = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    return head | {field: value for field, value in obj.items() if field not in head}


#: The ports of health and metrics, and of the webhooks.
HEALTH_PORT: Final = 8080
#: On private GKE clusters, the control plane reaches pods at this port without an extra firewall rule.
WEBHOOK_PORT: Final = 10250
#: The unprivileged user of the image.
_UNPRIVILEGED_USER: Final = 65532
#: How long a terminating pod still answers webhooks; Kubernetes 1.30 can sleep without a shell.
_TERMINATION_DELAY: Final = 5  # seconds
#: The file name of Kueue's Configuration, and its mount path.
CONFIGURATION_KEY: Final = "controller_manager_config.yaml"
_CONFIGURATIONS: Final = "/etc/batchyard"
_VOLUME: Final = "configuration"
_DIGEST: Final = "batchyard.dev/configuration"
_ZONE: Final = "topology.kubernetes.io/zone"
_HOST: Final = "kubernetes.io/hostname"


def deployment(settings: InstallSettings) -> Sequence[Obj]:
    """The Deployment, its PodDisruptionBudget, and the ResourceQuota that its priority requires."""
    return [
        *_critical(settings),
        *_configuration(settings),
        labelled(_deployment(settings), settings, namespace=settings.namespace),
        *_kept(settings),
    ]


def has_webhooks(settings: InstallSettings) -> bool:
    """Whether the installation has webhooks."""
    return settings.webhooks and bool(hooks(settings.controllers))


def arguments(settings: InstallSettings) -> list[str]:
    """The command-line arguments of the pods."""
    found = [
        "operator",
        f"--controllers={','.join(settings.controllers)}",
        f"--leader-elect-resource-name={settings.name}",
        "--listen=0.0.0.0",
        f"--port={HEALTH_PORT}",
        "--log-format=json",
    ]
    if settings.configuration:
        found.append(f"--config={_CONFIGURATIONS}/{CONFIGURATION_KEY}")
    if settings.fair_sharing:
        found.append("--fair-sharing")
    if has_webhooks(settings):
        found.append(f"--webhook-port={WEBHOOK_PORT}")
        found.append(f"--webhook-service={settings.webhook_service}")
        found.append(f"--webhook-certificates={settings.certificates}")
    return [*found, *settings.arguments]


def _configuration(settings: InstallSettings) -> Iterator[Obj]:
    """The ConfigMap with Kueue's Configuration, under the key that Kueue's manager uses."""
    if settings.configuration:
        data = {CONFIGURATION_KEY: settings.configuration}
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "data": data}
        yield labelled(obj, settings, settings.config_map, namespace=settings.namespace)


def _deployment(settings: InstallSettings) -> Obj:
    metadata: dict[str, Any] = {"labels": dict(labels(settings))}
    if settings.configuration:  # read at the start: a change replaces the pods
        metadata["annotations"] = {_DIGEST: sha256(settings.configuration.encode()).hexdigest()}
    template = {"metadata": metadata, "spec": _pod(settings)}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec = {"replicas": settings.replicas, "selector": {"matchLabels": dict(labels(settings))}, "strategy": strategy}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {**spec, "template": template}}


def _pod(settings: InstallSettings) -> Obj:
    spec: dict[str, Any] = {
        "serviceAccountName": settings.name,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UNPRIVILEGED_USER,
            "runAsGroup": _UNPRIVILEGED_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(settings)],
        "terminationGracePeriodSeconds": 20,
        "topologySpreadConstraints": [_spread(settings, _ZONE), _spread(settings, _HOST)],
    }
    if settings.configuration:
        spec["volumes"] = [{"name": _VOLUME, "configMap": {"name": settings.config_map}}]
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = list(settings.tolerations)
    return spec


def _spread(settings: InstallSettings, key: str) -> Obj:
    """Spread the pods over domains, but schedule them even if there is only one."""
    selector = {"matchLabels": dict(labels(settings))}
    return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}


def _container(settings: InstallSettings) -> Obj:
    ports = [{"name": "health", "containerPort": HEALTH_PORT}]
    answering: dict[str, Any] = {}
    if has_webhooks(settings):
        ports.append({"name": "webhooks", "containerPort": WEBHOOK_PORT})
        # Requests arrive until all API servers know that the pod is terminating.
        answering = {"lifecycle": {"preStop": {"sleep": {"seconds": _TERMINATION_DELAY}}}}
    mounts = {"volumeMounts": [{"name": _VOLUME, "mountPath": _CONFIGURATIONS, "readOnly": True}]}
    return {
        **answering,
        **(mounts if settings.configuration else {}),
        "name": "operator",
        "image": settings.image,
        "args": arguments(settings),
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


def _probe(path: str, period: int) -> Obj:
    return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": period, "timeoutSeconds": 5}


def _kept(settings: InstallSettings) -> Iterator[Obj]:
    if settings.replicas > 1:
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(labels(settings))}}
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec}
        yield labelled(budget, settings, namespace=settings.namespace)


def _critical(settings: InstallSettings) -> Iterator[Obj]:
    """A ResourceQuota for pods of this priority, which some clusters, such as GKE's, require."""
    if settings.priority_class == CRITICAL:
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": [CRITICAL]}
        hard = {"pods": str(settings.replicas + 1)}  # one more during a rolling update
        spec = {"hard": hard, "scopeSelector": {"matchExpressions": [scope]}}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": spec}
        yield labelled(quota, settings, namespace=settings.namespace)


# --- services ---
#
# The operator's network objects: Services, a NetworkPolicy, scrape configuration, webhook configurations.


_HTTPS: Final = 443
#: The port of an API server on clusters that do not use 443, and the port of DNS.
_API_SERVER: Final = 6443
_DNS: Final = 53
_EVERY: Final = "15s"


def network(settings: InstallSettings) -> Sequence[Obj]:
    """The network objects."""
    return [*_services(settings), _policy(settings), *_scraped(settings)]


def _services(settings: InstallSettings) -> Iterator[Obj]:
    yield _service(
        settings, f"{settings.name}-metrics", {"name": "metrics", "port": HEALTH_PORT, "targetPort": "health"}
    )
    if has_webhooks(settings):
        yield _service(
            settings, settings.webhook_service, {"name": "webhooks", "port": _HTTPS, "targetPort": "webhooks"}
        )


def _service(settings: InstallSettings, name: str, port: dict[str, Any]) -> Obj:
    spec = {"selector": dict(labels(settings)), "ports": [{**port, "protocol": "TCP"}]}
    return labelled({"apiVersion": "v1", "kind": "Service", "spec": spec}, settings, name, settings.namespace)


def _policy(settings: InstallSettings) -> Obj:
    """Ingress: metrics, probes and webhooks, from any address. Egress: the API server and DNS."""
    ports = [HEALTH_PORT, *([WEBHOOK_PORT] if has_webhooks(settings) else [])]
    egress = [
        {"ports": [{"protocol": "TCP", "port": _HTTPS}, {"protocol": "TCP", "port": _API_SERVER}]},
        {"ports": [{"protocol": "UDP", "port": _DNS}, {"protocol": "TCP", "port": _DNS}]},
    ]
    spec = {
        "podSelector": {"matchLabels": dict(labels(settings))},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ports]}],
        "egress": egress,
    }
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec}
    return labelled(policy, settings, namespace=settings.namespace)


def _scraped(settings: InstallSettings) -> Iterator[Obj]:
    selector = {"matchLabels": dict(labels(settings))}
    if settings.scraping is Scraping.POD_MONITORING:
        endpoint = {"port": "health", "path": "/metrics", "interval": _EVERY}
        kind = {"apiVersion": "monitoring.googleapis.com/v1", "kind": "PodMonitoring"}
    elif settings.scraping is Scraping.SERVICE_MONITOR:
        endpoint = {"port": "metrics", "path": "/metrics", "interval": _EVERY}
        kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor"}
    else:
        return
    spec = {"selector": selector, "endpoints": [endpoint]}
    yield labelled({**kind, "spec": spec}, settings, namespace=settings.namespace)


# --- webhooks ---
#
# The webhook configurations.
#
# They lack the certificate authority, which the operator creates and writes there.
# Source of policies and selectors: Kueue's config/components/webhook, JobSet's config/components/webhook.


_REGISTRATION: Final = "admissionregistration.k8s.io/v1"
_WITHIN: Final = 10  # seconds


def webhooks(settings: InstallSettings) -> Sequence[Obj]:
    """The two webhook configurations; none without webhooks."""
    if not has_webhooks(settings):
        return []
    found = hooks(settings.controllers)
    return [
        _webhook_configuration("Mutating", [each for each in found if each.mutates], settings),
        _webhook_configuration("Validating", [each for each in found if not each.mutates], settings),
    ]


def _webhook_configuration(word: str, found: Iterable[Hook], settings: InstallSettings) -> Obj:
    configuration = {"apiVersion": _REGISTRATION, "kind": f"{word}WebhookConfiguration"}
    entries = [_entry(hook, settings) for hook in found]
    return labelled({**configuration, "webhooks": entries}, settings, settings.webhook_service)


def _entry(hook: Hook, settings: InstallSettings) -> Obj:
    path = MUTATE if hook.mutates else VALIDATE
    service = {"name": settings.webhook_service, "namespace": settings.namespace, "path": path}
    rule = {
        "apiGroups": [hook.info.group],
        "apiVersions": [hook.info.storage_version],
        "operations": list(hook.operations),
        "resources": hook.resources,
    }
    entry: dict[str, Any] = {
        "name": hook.name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service},
        "failurePolicy": "Fail",
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": _WITHIN,
    }
    if hook.is_of_work:
        outside = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [SYSTEM, settings.namespace]}
        entry["namespaceSelector"] = {"matchExpressions": [outside]}
    if hook.info.constant == scheme.POD:
        entry["objectSelector"] = {"matchExpressions": [{"key": POD_LABEL, "operator": "Exists"}]}
    return entry
