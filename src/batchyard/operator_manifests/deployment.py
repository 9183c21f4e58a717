"""The operator's Deployment, PodDisruptionBudget, ResourceQuota and configuration."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.operator_manifests.settings import CRITICAL, InstallSettings, labelled, labels
from batchyard.webhooks.hooks import hooks

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
