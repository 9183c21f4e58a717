"""The settings of an operator's installation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.controller_groups import ON_KUBERNETES

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

    image: str = "batchyard:0.1.0"
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
