"""What whoever installs an operator chooses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.controller_groups import ON_KUBERNETES

#: The priority of what a cluster cannot do without; there is a class of it on every cluster.
CRITICAL: Final = "system-cluster-critical"


class Scraping(StrEnum):
    """By which object the cluster's Prometheus finds the metrics."""

    NONE = "none"
    #: Managed Prometheus of GKE.
    POD_MONITORING = "PodMonitoring"
    #: The Prometheus operator.
    SERVICE_MONITOR = "ServiceMonitor"


@dataclass(frozen=True, slots=True)
class Settings:
    """See the module. What is left out is as in `deploy/operator/base`."""

    image: str = "batchyard:0.1.0"
    namespace: str = "batchyard-system"
    #: What all of its objects are called, or begin with.
    name: str = "batchyard-operator"
    replicas: int = 2
    controllers: Sequence[str] = ON_KUBERNETES
    #: Whether the API server asks it about objects: defaults, rules, and v1beta1 of Kueue's kinds.
    webhooks: bool = True
    #: Whether the kinds are installed with it.
    definitions: bool = True
    #: Whether the roles for people are: `kueue-batch-admin-role`, `kueue-batch-user-role` and those in them.
    user_roles: bool = True
    #: Whether it shows the page, to whoever shows a token of the cluster.
    page: bool = True
    fair_sharing: bool = False
    #: The text of Kueue's Configuration, to decide by; '' for none.
    configuration: str = ""
    #: A PriorityClass that is there, or '' for none.
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
        """The Service of the webhooks; the configurations of webhooks are called so too."""
        return f"{self.name}-webhooks"


# --- labelled ---
#
# How the objects of an installation are told from others.


def labels(settings: Settings) -> Mapping[str, str]:
    """By which its pods are found."""
    return {"app.kubernetes.io/name": "batchyard", "app.kubernetes.io/instance": settings.name}


def labelled(obj: Mapping[str, Any], settings: Settings, name: str = "", namespace: str = "") -> Obj:
    """An object under its name, or the installation's, with the labels."""
    metadata: dict[str, Any] = {"name": name or settings.name, "labels": dict(labels(settings))}
    if namespace:
        metadata["namespace"] = namespace
    head = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    return head | {field: value for field, value in obj.items() if field not in head}
