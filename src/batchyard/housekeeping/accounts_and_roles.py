"""Default ServiceAccounts, aggregated ClusterRoles, and the root CA ConfigMap of each Namespace.

The ConfigMap contains the certificate that signs the API server's, for containers in the Namespace.
Source: Kubernetes's pkg/controller/certificates/rootcacertpublisher.
"""

from collections.abc import Iterable
from typing import Any, Final

from batchyard.admission_plugins.service_accounts import (
    CERTIFICATE_KEY,
    DEFAULT,
    ROOT_CERTIFICATE,
    default_service_account,
)
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, annotation, key_of, with_metadata
from batchyard.api.selectors import selector
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

# --- service accounts ---
#
# Every Namespace has a ServiceAccount `default`. Source: Kubernetes's pkg/controller/serviceaccount.


class ServiceAccounts:
    """Creates the default ServiceAccount of each Namespace."""

    name = "serviceaccounts"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.SERVICE_ACCOUNT)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a new or changed Namespace, or the one that lost its ServiceAccount."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is EventType.DELETED else (event.key,)
        is_lost = event.type is EventType.DELETED and event.key.name == DEFAULT
        return (Key(scheme.NAMESPACE, "", event.key.namespace),) if is_lost else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create the ServiceAccount if it is missing."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return ReconcileResult()
        if reader.get(Key(scheme.SERVICE_ACCOUNT, key.name, DEFAULT)) is not None:
            return ReconcileResult()
        return ReconcileResult([Create(default_service_account(key.name))])


# --- cluster roles ---
#
# Aggregated ClusterRoles: they have the rules of all ClusterRoles that their aggregationRule selects.
#
# Source: Kubernetes's pkg/controller/clusterroleaggregation.


class ClusterRoleAggregation:
    """Updates the rules of aggregated ClusterRoles."""

    name = "clusterrole-aggregation"
    rank = 0
    kinds = (scheme.CLUSTER_ROLE,)

    def __init__(self) -> None:
        #: The aggregated ClusterRoles.
        self._aggregates: dict[Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return all aggregated ClusterRoles; any may include the changed one."""
        if event.type is not EventType.DELETED and event.obj.get("aggregationRule"):
            self._aggregates[event.key] = None
        else:
            self._aggregates.pop(event.key, None)
        return list(self._aggregates)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set the rules to those of the selected ClusterRoles, without duplicates."""
        role = reader.get(key)
        if role is None or not role.get("aggregationRule"):
            return ReconcileResult()
        rules: list[Any] = []
        for other in reader.list(scheme.CLUSTER_ROLE):
            if key_of(other) != key and _is_part(other, role):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
        return (
            ReconcileResult()
            if rules == (role.get("rules") or [])
            else ReconcileResult([Update({**role, "rules": rules})])
        )


def _is_part(other: Obj, role: Obj) -> bool:
    labels = other["metadata"].get("labels") or {}
    selectors = map(selector, role["aggregationRule"]["clusterRoleSelectors"])
    return any(each is not None and each.matches(labels) for each in selectors)


_ANNOTATION: Final = "kubernetes.io/description"
_DESCRIPTION: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
_DELETED: Final = EventType.DELETED


class RootCertificates:
    """Publishes the root certificate in a ConfigMap of each Namespace."""

    name = "root-ca-cert-publisher"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.CONFIG_MAP)

    def __init__(self, certificate: str) -> None:
        self._data = {CERTIFICATE_KEY: certificate}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a new or changed Namespace, or that of a changed ConfigMap."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is _DELETED else (event.key,)
        return (Key(scheme.NAMESPACE, "", event.key.namespace),) if event.key.name == ROOT_CERTIFICATE else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create or correct the ConfigMap."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return ReconcileResult()
        known = reader.get(Key(scheme.CONFIG_MAP, key.name, ROOT_CERTIFICATE))
        if known is None:
            metadata = {"name": ROOT_CERTIFICATE, "namespace": key.name, "annotations": {_ANNOTATION: _DESCRIPTION}}
            new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self._data}
            return ReconcileResult([Create(new)])
        if known.get("data") == self._data and annotation(known, _ANNOTATION):
            return ReconcileResult()
        annotations = {**(known["metadata"].get("annotations") or {}), _ANNOTATION: _DESCRIPTION}
        return ReconcileResult([Update(with_metadata({**known, "data": self._data}, annotations=annotations))])
