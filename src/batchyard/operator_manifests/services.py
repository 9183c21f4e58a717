"""The operator's network objects: Services, a NetworkPolicy, scrape configuration, webhook configurations."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.operator_manifests.deployment import HEALTH_PORT, WEBHOOK_PORT, has_webhooks
from batchyard.operator_manifests.settings import InstallSettings, Scraping, labelled, labels
from batchyard.webhooks.hooks import MUTATE, POD_LABEL, SYSTEM, VALIDATE, Hook, hooks

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
        _configuration("Mutating", [each for each in found if each.mutates], settings),
        _configuration("Validating", [each for each in found if not each.mutates], settings),
    ]


def _configuration(word: str, found: Iterable[Hook], settings: InstallSettings) -> Obj:
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
