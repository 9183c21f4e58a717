"""Environments of scenes: this process in virtual time, or two processes over HTTP."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from batchyard.api import scheme
from batchyard.api.manifests import decode, read_manifests
from batchyard.api.meta import Obj, key_of
from batchyard.api.scheme import kind_info
from batchyard.base.instant import SECOND, Instant
from batchyard.client.transport import kind_path, object_path
from batchyard.cloud.catalog import instances
from batchyard.interfaces.client import UpdateStatus
from batchyard.scheduling.queue_manager import KUEUE_REQUEUE_BATCH_PERIOD
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World
from contract.final_state import differences, outcome
from contract.scenes import Scene, SceneStep
from e2e_platform.kill_rounds import ask
from e2e_platform.operator_process import OperatorRun, plain_kubeconfig
from e2e_platform.platform_process import UpProcess

_LOOKS_EVERY = 0.05  # seconds
_LOOKS_MAX = 1200
_SCENE = """
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {{name: scene}}
spec: {{fairSharing: {fair_sharing}}}
"""


#: A simulated world does not wait for ready pods either. The environments differ in short periods of readiness.
_KUEUE = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
featureGates: {DisableWaitForPodsReady: true}
"""


class SimulatedEnvironment:
    """A simulated world."""

    def __init__(self, scene: Scene) -> None:
        texts = [] if scene.cluster is None else [(str(scene.cluster), scene.cluster.read_text("utf-8"))]
        texts.append(("scene.yaml", _SCENE.format(fair_sharing=str(scene.fair_sharing).lower())))
        # A simulation without a Topology among its documents does not schedule by topology.
        texts += [("topology.yaml", yaml.safe_dump(dict(scene.topology)))] if scene.topology else []
        self.world = World(make_scenario(read_manifests(texts)))
        self.world.platform.index.queue_manager.requeue_batch_period = KUEUE_REQUEUE_BATCH_PERIOD  # as an operator does
        self._until = 0
        self.play(SceneStep(lasts=1))

    def play(self, step: SceneStep) -> dict[str, Any]:
        """Perform a step, and return the outcome."""
        for given in step.objects:
            decoded = decode(given)
            assert decoded.obj is not None, decoded.faults
            self.world.apply(decoded.obj)
        if step.crash:
            victim = victim_of(step.crash, self.world.objects)
            self.world.submit(UpdateStatus(instances.with_phase(victim, instances.CRASHED, self.world.kernel.now())))
        self._until += int(step.lasts * SECOND)
        self.world.run_until(self._until)
        self.world.flush_batched_writes()
        assert not self.world.rejected_writes
        return outcome(self.world.objects)


class HttpEnvironment:
    """A platform and an operator, two processes connected over HTTP."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        self._scene = scene
        self._folder = folder
        self._started = ExitStack()
        self.port = 0
        self.running = self._run()
        self.port = int(self.running.url.rpartition(":")[2])
        self.operator = self._operate(self.running.url)

    def kill_platform(self) -> None:
        """Kill the platform, and restart it on the same port."""
        self.running.kill()
        self.running = self._run()

    def kill_operator(self) -> None:
        """Kill the operator, and start another one."""
        self.operate_at(self.running.url)

    def operate_at(self, url: str) -> None:
        """Replace the operator by one that connects to this URL."""
        self.operator.kill()
        self.operator = self._operate(url)

    def play(self, step: SceneStep, wanted: Mapping[str, Any]) -> None:
        """Perform a step, and wait for the expected outcome."""
        self.apply(step)
        self.wait_for(wanted)

    def apply(self, step: SceneStep) -> None:
        """Perform a step."""
        for obj in step.objects:
            self._send("POST", place_of(obj), obj, {201})
        if step.crash:
            self._crash(victim_of(step.crash, self.objects))

    def wait_for(self, wanted: Mapping[str, Any]) -> None:
        """Wait for the expected outcome."""
        result: dict[str, Any] = {}
        for _ in range(_LOOKS_MAX):
            result = outcome(self.objects)
            if result == wanted:
                return
            threading.Event().wait(_LOOKS_EVERY)
        raise AssertionError("\n".join([*differences(wanted, result), self.operator.log()]))

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind."""
        info = kind_info(kind)
        code, listed = ask(self.running.url, "GET", kind_path(info, info.storage_version))
        assert code == 200, listed
        return [{"apiVersion": info.api_version, "kind": info.kind, **item} for item in listed["items"]]

    def _crash(self, instance: Obj) -> None:
        now: Instant = ask(self.running.url, "GET", "/batchyard/status")[1]["instant"]
        place = f"{object_path(kind_info(scheme.INSTANCE), 'v1alpha1', '', instance['metadata']['name'])}/status"
        self._send("PUT", place, instances.with_phase(instance, instances.CRASHED, now), {200})

    def _send(self, method: str, path: str, obj: Obj, wanted: set[int]) -> None:
        code, answer = ask(self.running.url, method, path, obj)
        assert code in wanted, answer

    def _run(self) -> UpProcess:
        rest = ",".join(["*", *[f"-{name}" for name in self._scene.controllers.split(",")]])
        options = ["--insecure-loopback", "--speed", f"{self._scene.speed}x", "--controllers", rest]
        options += [] if self._scene.cluster is None else ["--cluster", str(self._scene.cluster)]
        return self._started.enter_context(UpProcess(self._folder, "--port", str(self.port), *options))

    def _operate(self, url: str) -> OperatorRun:
        kubeconfig = plain_kubeconfig(self._folder, url)
        config = self._folder / "kueue.yaml"
        config.write_text(_KUEUE, "utf-8")
        options = ["--no-leader-elect", "--controllers", self._scene.controllers, "--config", str(config)]
        options += self._scene.options
        return self._started.enter_context(OperatorRun(kubeconfig, *options)).wait_until("this replica runs")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()


def play_both(scene: Scene, folder: Path) -> None:
    """Play a scene in both environments; raise AssertionError if they differ."""
    near = SimulatedEnvironment(scene)
    with HttpEnvironment(folder, scene) as far:
        for step in scene.steps:
            far.play(step, near.play(step))


def victim_of(jobset: str, objects: Callable[[str], Sequence[Obj]]) -> Obj:
    """Return the machine of the first pod of a JobSet."""
    pods = [pod for pod in objects(scheme.POD) if pod["metadata"]["name"].startswith(f"{jobset}-slice-0-0-")]
    node = pods[0]["spec"]["nodeName"]
    return next(result for result in objects(scheme.INSTANCE) if result["metadata"]["name"] == node)


def place_of(obj: Obj) -> str:
    """Return the path at which objects like this one are created."""
    key = key_of({**obj, "metadata": {"namespace": "", **obj["metadata"]}})
    info = kind_info(key.kind)
    return object_path(info, obj["apiVersion"].rpartition("/")[2], key.namespace)
