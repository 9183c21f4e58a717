"""The annotation in which `kubectl apply` records its configuration, after a server-side apply of kubectl.

Source: k8s.io/apimachinery, pkg/util/managedfields/internal/lastappliedupdater.go.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.manifests import LAST_APPLIED
from batchyard.api.meta import annotation, with_metadata
from batchyard.api.validation.rules import annotation_errors

_KUBECTL: Final = "kubectl"
#: The characters that Go's JSON encoder escapes.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def with_last_applied(obj: dict[str, Any], config: Mapping[str, Any], manager: str) -> dict[str, Any]:
    """Return the result of a server-side apply; if kubectl applied it, an existing annotation has the configuration.

    The annotation is removed if the annotations become too long.
    """
    if manager != _KUBECTL or not annotation(obj, LAST_APPLIED):
        return obj
    annotations = {**obj["metadata"]["annotations"], LAST_APPLIED: _encode(config)}
    if any(annotation_errors(annotations, "")):
        del annotations[LAST_APPLIED]
    return with_metadata(obj, annotations=annotations)


def _encode(config: Mapping[str, Any]) -> str:
    metadata = dict(config.get("metadata") or {})
    if metadata.get("annotations") is not None:
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != LAST_APPLIED}
    text = json.dumps({**config, "metadata": metadata}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES) + "\n"
