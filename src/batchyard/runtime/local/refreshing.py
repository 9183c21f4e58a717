"""When the files of a running pod are brought up to date: what they are made of changes, and tokens run out.

Sources: pkg/kubelet (syncFrequency: a minute), pkg/kubelet/token (token_manager.go: a token is replaced when four
fifths of its time are over).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.admission.service_accounts import ROOT_CERTIFICATE
from batchyard.api.meta import Obj
from batchyard.base.instant import MINUTE, SECOND, Duration

_SYNC: Final = MINUTE
_TOKEN_SECONDS: Final = 3600
#: What of a pod may change while it runs.
_CHANGES: Final = ("metadata.labels", "metadata.annotations")


def refreshed_every(pod: Obj) -> Duration | None:
    """How often the files of a pod's volumes are made anew; None if nothing in them changes."""
    return min((every for volume in pod["spec"].get("volumes") or () for every in _of_volume(volume)), default=None)


def _of_volume(volume: Mapping[str, Any]) -> Iterator[Duration]:
    yield from _of_source(volume)
    for part in (volume.get("projected") or {}).get("sources") or ():
        yield from _of_source(part)


def _of_source(source: Mapping[str, Any]) -> Iterator[Duration]:
    token, config = source.get("serviceAccountToken"), source.get("configMap") or {}
    if token is not None:
        yield (token.get("expirationSeconds") or _TOKEN_SECONDS) * SECOND * 4 // 5
    if source.get("secret") or (config and config.get("name") != ROOT_CERTIFICATE):
        yield _SYNC
    paths = [(item.get("fieldRef") or {}).get("fieldPath") or "" for item in _items(source)]
    if any(path.startswith(_CHANGES) for path in paths):
        yield _SYNC


def _items(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    items: list[Mapping[str, Any]] = (source.get("downwardAPI") or {}).get("items") or []
    return items
