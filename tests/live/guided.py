"""The guide on a platform whose controllers are operators beside it, with the rights that they are installed with."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from batchyard.cli.live_guide import Started, platform
from batchyard.controllers.groups import GROUPS, ON_KUBERNETES
from batchyard.install import Settings
from batchyard.sim.guide import Guide
from live.granted import granted
from live.operating import Operating
from live.running import kubectl

SETTINGS = Settings(webhooks=False, page=False)
SPEED = 60.0


class Guided(NamedTuple):
    """A platform without those controllers, and the kubeconfig of the operators' account."""

    started: Started
    kubeconfig: Path
    audit_log: Path

    def operator(self, *options: str) -> Operating:
        """One more operator."""
        return Operating(self.kubeconfig, "--leader-elect-resource-name", SETTINGS.name, *options)

    def versions(self, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """How objects were, one after the other: by namespace and name."""
        asked = f"{path}?watch=1&resourceVersion=1&timeoutSeconds=1"
        for line in kubectl(self.started.folder / "kubeconfig", "get", "--raw", asked).splitlines():
            obj = json.loads(line)["object"]
            yield f"{obj['metadata'].get('namespace')}/{obj['metadata']['name']}", obj


@contextmanager
def guided(guide: Guide, folder: Path) -> Iterator[Guided]:
    """A platform for the guide, in which the account of operators has its rights."""
    others = [group for group in GROUPS if group not in ON_KUBERNETES]
    audit_log = folder / "audit.log"
    with platform(guide.cluster, SPEED, others, audit_log) as started:
        yield Guided(started, granted(started.folder / "kubeconfig", folder, SETTINGS), audit_log)


def times_true(guided: Guided, path: str, condition: str) -> dict[str, int]:
    """How often each object came to have a condition, by all that was ever written of it."""
    seen: dict[str, list[bool]] = {}
    for name, obj in guided.versions(path):
        conditions = (obj.get("status") or {}).get("conditions") or ()
        has = any(c["type"] == condition and c["status"] == "True" for c in conditions)
        seen.setdefault(name, [False]).append(has)
    return {name: sum(now and not before for before, now in pairwise(states)) for name, states in seen.items()}
