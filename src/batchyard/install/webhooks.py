"""What tells an API server which objects to ask the operator about.

The authority that signs its certificate is not in them: the operator makes one, and writes it there.
Source of policies and selectors: Kueue's config/components/webhook, JobSet's config/components/webhook.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.install.deployment import has_webhooks
from batchyard.install.labelled import labelled
from batchyard.install.settings import Settings
from batchyard.webhooks.hooks import MUTATE, POD_LABEL, SYSTEM, VALIDATE, Hook, hooks

_REGISTRATION: Final = "admissionregistration.k8s.io/v1"
_WITHIN: Final = 10  # seconds


def webhooks(settings: Settings) -> Sequence[Obj]:
    """The two configurations; none where nobody is asked."""
    if not has_webhooks(settings):
        return []
    found = hooks(settings.controllers)
    return [
        _configuration("Mutating", [each for each in found if each.mutates], settings),
        _configuration("Validating", [each for each in found if not each.mutates], settings),
    ]


def _configuration(word: str, found: Iterable[Hook], settings: Settings) -> Obj:
    configuration = {"apiVersion": _REGISTRATION, "kind": f"{word}WebhookConfiguration"}
    entries = [_entry(hook, settings) for hook in found]
    return labelled({**configuration, "webhooks": entries}, settings, settings.webhook_service)


def _entry(hook: Hook, settings: Settings) -> Obj:
    path = MUTATE if hook.mutates else VALIDATE
    service = {"name": settings.webhook_service, "namespace": settings.namespace, "path": path}
    rule = {
        "apiGroups": [hook.info.group],
        "apiVersions": [hook.info.storage_version],
        "operations": list(hook.operations),
        "resources": hook.resources,
    }
    entry: dict[str, Any] = {
        "name": hook.name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service},
        "failurePolicy": "Fail",
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": _WITHIN,
    }
    if hook.is_of_work:
        outside = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [SYSTEM, settings.namespace]}
        entry["namespaceSelector"] = {"matchExpressions": [outside]}
    if hook.info.constant == scheme.POD:
        entry["objectSelector"] = {"matchExpressions": [{"key": POD_LABEL, "operator": "Exists"}]}
    return entry
