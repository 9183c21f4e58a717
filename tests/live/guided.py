"""The guide on a platform whose controllers are operators beside it, with the rights that they are installed with."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from batchyard.cli.live_guide import Started, platform
from batchyard.controllers.groups import GROUPS, ON_KUBERNETES
from batchyard.install import Settings, parts
from batchyard.sim.guide import Guide
from live.operating import Operating
from live.running import kubectl

SETTINGS = Settings(webhooks=False, page=False)
SPEED = 60.0
#: What only a platform whose time runs faster has: the operator asks it what time it is.
CLOCK = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: clock}
rules: [{nonResourceURLs: [/batchyard/status], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: clock}
subjects: [{kind: ServiceAccount, name: batchyard-operator, namespace: batchyard-system}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: clock}
"""
ACCOUNT = f"system:serviceaccount:{SETTINGS.namespace}:{SETTINGS.name}"


class Guided(NamedTuple):
    """A platform without those controllers, and the kubeconfig of the operator's account."""

    started: Started
    kubeconfig: Path
    audit_log: Path

    def operator(self, *options: str) -> Operating:
        """One more operator."""
        return Operating(self.kubeconfig, "--leader-elect-resource-name", SETTINGS.name, *options)

    def audited(self) -> Iterator[Mapping[str, Any]]:
        """All that the operators asked for."""
        for line in self.audit_log.read_text("utf-8").splitlines():
            event = json.loads(line)
            if event["user"]["username"] == ACCOUNT:
                yield event

    def versions(self, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """How objects were, one after the other: by namespace and name."""
        words = kubectl(
            self.started.folder / "kubeconfig", "get", "--raw", f"{path}?watch=1&resourceVersion=1&timeoutSeconds=1"
        )
        for line in words.splitlines():
            obj = json.loads(line)["object"]
            yield f"{obj['metadata'].get('namespace')}/{obj['metadata']['name']}", obj


@contextmanager
def guided(guide: Guide, folder: Path) -> Iterator[Guided]:
    """A platform for the guide, in which the account of operators has its rights."""
    others = [group for group in GROUPS if group not in ON_KUBERNETES]
    with platform(guide.cluster, SPEED, others, folder / "audit.log") as started:
        owner = started.folder / "kubeconfig"
        found = parts(SETTINGS)
        objects = [*found["namespace"], *found["rights"], *yaml.safe_load_all(CLOCK)]
        kubectl(owner, "apply", "-f", "-", sent="\n".join(map(json.dumps, objects)))
        token = kubectl(owner, "create", "token", SETTINGS.name, "-n", SETTINGS.namespace, "--duration=24h").strip()
        yield Guided(started, _kubeconfig(owner, folder, token), folder / "audit.log")


def twice_given(versions: Iterable[tuple[str, Mapping[str, Any]]], condition: str) -> dict[str, int]:
    """How often each object came to have a condition."""
    seen: dict[str, list[bool]] = {}
    for name, obj in versions:
        conditions = (obj.get("status") or {}).get("conditions") or ()
        has = any(c["type"] == condition and c["status"] == "True" for c in conditions)
        seen.setdefault(name, [False]).append(has)
    return {name: sum(now and not before for before, now in pairwise(states)) for name, states in seen.items()}


def _kubeconfig(owner: Path, folder: Path, token: str) -> Path:
    config = yaml.safe_load(owner.read_text("utf-8"))
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"] |= {"user": "operator", "namespace": SETTINGS.namespace}
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path
