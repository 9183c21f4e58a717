"""Every Namespace has a ServiceAccount `default`. Source: Kubernetes's pkg/controller/serviceaccount."""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.admission.service_accounts import DEFAULT, default_service_account
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.ports.client import Create, EventType, Reader, WatchEvent
from batchyard.ports.controller import Outcome


class ServiceAccounts:
    """See the module."""

    name = "serviceaccounts"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.SERVICE_ACCOUNT)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The Namespace that comes or changes, or has lost its ServiceAccount."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is EventType.DELETED else (event.key,)
        is_lost = event.type is EventType.DELETED and event.key.name == DEFAULT
        return (Key(scheme.NAMESPACE, "", event.key.namespace),) if is_lost else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Make the ServiceAccount where it is not there."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return Outcome()
        if reader.get(Key(scheme.SERVICE_ACCOUNT, key.name, DEFAULT)) is not None:
            return Outcome()
        return Outcome([Create(default_service_account(key.name))])
