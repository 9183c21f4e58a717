"""Rules of LocalQueues. Source: the rules in Kueue's CRD; upstream has no webhook for them."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata


def local_queue_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a LocalQueue. Its weight may be any quantity: upstream checks none."""
    yield from metadata.metadata_faults(queue)


def local_queue_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed LocalQueue: it stays with its ClusterQueue."""
    yield from local_queue_faults(new)
    before, after = ((obj.get("spec") or {}).get("clusterQueue") for obj in (old, new))
    if before is not None and after is not None and before != after:
        remedy = f"keep {before}, or delete the LocalQueue and create it anew"
        yield faults.broken_rule("spec.clusterQueue", "string", faults.IMMUTABLE, remedy)
