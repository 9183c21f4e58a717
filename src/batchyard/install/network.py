"""Who reaches an operator, and whom it reaches: Services, a NetworkPolicy, and what scrapes its metrics."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.install.deployment import HEALTH_PORT, WEBHOOK_PORT, has_webhooks
from batchyard.install.labelled import labelled, labels
from batchyard.install.settings import Scraping, Settings

_HTTPS: Final = 443
#: An API server's port on clusters that do not have it at 443, and where names are resolved.
_API_SERVER: Final = 6443
_DNS: Final = 53
_EVERY: Final = "15s"


def network(settings: Settings) -> Sequence[Obj]:
    """All of them."""
    return [*_services(settings), _policy(settings), *_scraped(settings)]


def _services(settings: Settings) -> Iterator[Obj]:
    yield _service(
        settings, f"{settings.name}-metrics", {"name": "metrics", "port": HEALTH_PORT, "targetPort": "health"}
    )
    if has_webhooks(settings):
        yield _service(
            settings, settings.webhook_service, {"name": "webhooks", "port": _HTTPS, "targetPort": "webhooks"}
        )


def _service(settings: Settings, name: str, port: dict[str, Any]) -> Obj:
    spec = {"selector": dict(labels(settings)), "ports": [{**port, "protocol": "TCP"}]}
    return labelled({"apiVersion": "v1", "kind": "Service", "spec": spec}, settings, name, settings.namespace)


def _policy(settings: Settings) -> Obj:
    """In: metrics, probes and what the API server asks, whose address nobody knows. Out: the API server and names."""
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


def _scraped(settings: Settings) -> Iterator[Obj]:
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
