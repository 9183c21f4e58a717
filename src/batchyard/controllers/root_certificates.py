"""Every Namespace has a ConfigMap with the certificate that the API's is signed by, for the containers in it.

Source: Kubernetes's pkg/controller/certificates/rootcacertpublisher.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.admission.service_accounts import CERTIFICATE_KEY, ROOT_CERTIFICATE
from batchyard.api.meta import Key, annotation, with_metadata
from batchyard.base.instant import Instant
from batchyard.ports.client import Create, EventType, Reader, Update, WatchEvent
from batchyard.ports.controller import Outcome

_ANNOTATION: Final = "kubernetes.io/description"
_DESCRIPTION: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
_DELETED: Final = EventType.DELETED


class RootCertificates:
    """See the module."""

    name = "root-ca-cert-publisher"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.CONFIG_MAP)

    def __init__(self, certificate: str) -> None:
        self._data = {CERTIFICATE_KEY: certificate}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The Namespace that comes or changes, or whose ConfigMap does."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is _DELETED else (event.key,)
        return (Key(scheme.NAMESPACE, "", event.key.namespace),) if event.key.name == ROOT_CERTIFICATE else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Make the ConfigMap, or put it right."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return Outcome()
        known = reader.get(Key(scheme.CONFIG_MAP, key.name, ROOT_CERTIFICATE))
        if known is None:
            metadata = {"name": ROOT_CERTIFICATE, "namespace": key.name, "annotations": {_ANNOTATION: _DESCRIPTION}}
            new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self._data}
            return Outcome([Create(new)])
        if known.get("data") == self._data and annotation(known, _ANNOTATION):
            return Outcome()
        annotations = {**(known["metadata"].get("annotations") or {}), _ANNOTATION: _DESCRIPTION}
        return Outcome([Update(with_metadata({**known, "data": self._data}, annotations=annotations))])
