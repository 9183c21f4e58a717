"""Names of Workloads. Clients look them up by name, so they are made as Kueue makes them.

Source: pkg/controller/jobframework/workload_names.go.
"""

import hashlib
from typing import Final

_NAME_MAX: Final = 253
_HASH_LENGTH: Final = 5


def workload_name(kind: str, group: str, owner: str, uid: str) -> str:
    """`<kind>-<owner>-<hash>`, where the hash tells owners apart that share the rest."""
    prefix = f"{kind.lower()}-{owner}"[: _NAME_MAX - 1 - _HASH_LENGTH]
    content = "\n".join((kind, group, owner, uid)).encode()
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return f"{prefix}-{digest[:_HASH_LENGTH]}"
