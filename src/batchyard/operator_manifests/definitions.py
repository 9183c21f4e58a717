"""The CustomResourceDefinitions that the operator installs."""

from collections.abc import Iterator, Sequence
from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.apiserver.openapi.definitions import Conversion, definition_of
from batchyard.controller_groups import kinds_seen
from batchyard.operator_manifests.settings import InstallSettings
from batchyard.webhooks.hooks import CONVERT

#: API groups of Kubernetes itself have no dot, or this suffix.
_NATIVE: Final = ".k8s.io"
#: The API group of ProvisioningRequests, which the cluster autoscaler installs.
_OF_OTHERS: Final = "autoscaling.x-k8s.io"


def definitions(settings: InstallSettings) -> Sequence[Obj]:
    """The CRDs; with webhooks in all versions, else in the stored version only."""
    if not settings.definitions:
        return []
    conversion = Conversion(settings.webhook_service, settings.namespace, CONVERT) if settings.webhooks else None
    return [definition_of(info, conversion if is_converted(info) else None) for info in _installed(settings)]


def definition_names(settings: InstallSettings, *, converted: bool) -> list[str]:
    """The names of the CRDs; with `converted` only of those with a conversion webhook."""
    return [f"{info.plural}.{info.group}" for info in _installed(settings) if is_converted(info) or not converted]


def is_converted(info: ServedKind) -> bool:
    """Whether its versions differ in more than their name."""
    return len(info.versions) > 1 and info.group != _OF_OTHERS


def _installed(settings: InstallSettings) -> Iterator[ServedKind]:
    for kind in kinds_seen(settings.controllers):
        info = kind_info(kind)
        if "." in info.group and not info.group.endswith(_NATIVE) and info.group != _OF_OTHERS:
            yield info
