"""ResourceQuota controller: writes the limits and the usage of each quota to its status.

Source: Kubernetes's pkg/controller/resourcequota, which recounts everything; here counts are updated incrementally.
"""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.meta import Key, with_status
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.quotas.ledger import QuotaLedger

_DELETED = EventType.DELETED


class ResourceQuotas:
    """Writes the status of quotas from the ledger."""

    name = "resource-quotas"
    rank = 0
    kinds = None  # any object may be counted

    def __init__(self) -> None:
        self._ledger = QuotaLedger()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the quota, and all quotas whose usage changed."""
        changed = self._ledger.observe(event)
        if event.key.kind != scheme.RESOURCE_QUOTA or event.type is _DELETED:
            return changed
        return (event.key, *changed)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update its status: limits and usage."""
        quota = reader.get(key)
        if quota is None:
            return ReconcileResult()
        tally = self._ledger.tally(quota, reader)
        look_at = tally.release_late(now)
        status = {
            "hard": dict((quota.get("spec") or {}).get("hard") or {}),
            "used": {name: tally.shown(name) for name in tally.used},
        }
        writes = [] if status == quota.get("status") else [UpdateStatus(with_status(quota, status))]
        return ReconcileResult([*writes], requeue_at=None if look_at is None else look_at + 1)
