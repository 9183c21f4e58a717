"""The machine that a platform is on as a node of a cluster: what runs its pods, as a platform is wired with it."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.live.facts import facts_of
from batchyard.live.kernel import LiveKernel
from batchyard.live.local_containers import LocalContainers
from batchyard.live.local_machine import LocalMachine
from batchyard.ports.controller import Controller
from batchyard.runtime.local.kubelet import LocalKubelet
from batchyard.runtime.local.node import LocalNode
from batchyard.runtime.local.volumes import Token
from batchyard.runtime.local.wishes import Wishes, settings_of

#: The folder of the node in the data directory.
FOLDER: Final = "node"


class LocalNodeParts:
    """What a platform needs that runs pods on this machine; `local` is `spec.local` of its Cluster.

    Made within the event loop that it is to run in.
    """

    def __init__(self, local: Mapping[str, Any], folder: Path, kernel: LiveKernel, token: Token) -> None:
        loop = asyncio.get_running_loop()
        facts = facts_of(local, folder)
        self.name = facts.name
        self.machine = LocalMachine(folder / FOLDER, kernel, loop)
        self.containers = LocalContainers(self.machine, self.machine.folders, loop)
        wishes = Wishes(facts.name, settings_of(local), token)
        self.controllers: Sequence[Controller] = (LocalKubelet(facts.name, wishes), LocalNode(facts))


def local_of(cluster: Obj | None) -> Mapping[str, Any] | None:
    """What a Cluster says of this machine as a node; None if it is none."""
    if cluster is None or "local" not in cluster["spec"]:
        return None
    local: Mapping[str, Any] = cluster["spec"]["local"] or {}
    return local
