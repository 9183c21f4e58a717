"""Secrets as they are kept. Source: Kubernetes's pkg/apis/core/v1/conversion.go."""

import base64
from typing import Any

from batchyard.api.meta import Obj


def secret_defaults(secret: Obj) -> dict[str, Any]:
    """What is given as text becomes data, in place of data of the same key; `stringData` itself is never kept."""
    kept = {field: value for field, value in secret.items() if field != "stringData"}
    texts = secret.get("stringData")
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        kept["data"] = {**(secret.get("data") or {}), **encoded}
    return kept
