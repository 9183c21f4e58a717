"""What a kubelet wants of its machine for a pod: a sandbox, and the start of a container, in all that they need."""

from collections.abc import Sequence
from typing import Any

from batchyard.api.meta import Obj
from batchyard.ports.client import Create, Reader, Write
from batchyard.runtime.local.next_steps import Start
from batchyard.runtime.local.runs import container_run, sandbox_run
from batchyard.runtime.local.situation import Situation
from batchyard.runtime.local.status import Trouble


class Wishes:
    """See the module."""

    def refusal(self, pod: Obj, others: Sequence[Obj], reader: Reader) -> tuple[str, str] | None:
        """Reason and message of why this node does not take a pod; None if it does."""
        return None

    def sandbox(self, pod: Obj, reader: Reader) -> Obj | Trouble:
        """The sandbox of a pod."""
        spec: dict[str, Any] = {"kind": "sandbox", "hostname": pod["spec"].get("hostname") or pod["metadata"]["name"]}
        return sandbox_run(pod, {**spec, "network": "pod"})

    def container(self, situation: Situation, start: Start, reader: Reader) -> Obj | Trouble:
        """A start of a container."""
        container = start.container.spec
        spec: dict[str, Any] = {
            "kind": "container",
            "container": container["name"],
            "attempt": start.attempt,
            "restartsInRow": start.restarts_in_row,
            "argv": [*(container.get("command") or ()), *(container.get("args") or ())],
            "environment": {each["name"]: each.get("value", "") for each in container.get("env") or ()},
            "image": {"name": container.get("image", ""), "machine": True},
        }
        return container_run(situation.pod, spec)

    def create(self, wish: Obj) -> Write:
        """The write that asks for it."""
        return Create(wish)
