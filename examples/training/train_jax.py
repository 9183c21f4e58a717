"""The same in JAX: a small data-parallel trainer that can be stopped at any step and goes on as if nothing had been.

    python train_jax.py --steps 200 --checkpoints /checkpoints

Alone it uses all devices that it sees; with WORLD_SIZE processes, each with its RANK (in an Indexed Job: its index),
they find each other at MASTER_ADDR:MASTER_PORT. What is promised of steps, signals and exit codes is that of train.py.
"""

import argparse
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import checkpoints
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: The exit code of what SIGTERM ended: 128 + 15.
STOPPED = 143
SAMPLES, FEATURES, CLASSES, HIDDEN = 4096, 32, 10, 64
RATE, MOMENTUM = 0.1, 0.9


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="how many there are in all")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step on each device")
    parser.add_argument("--seconds-per-step", type=float, default=0.0, help="wait so long in each step")
    parser.add_argument("--seed", type=int, default=0, help="fixes all that is drawn")
    folder = os.environ.get("CHECKPOINT_DIR", "")
    parser.add_argument("--checkpoints", default=folder, metavar="DIR", help="by default $CHECKPOINT_DIR; or none")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="N", help="besides, after each N steps")
    return parser.parse_args()


def join() -> None:
    """Find the other processes, where there are any."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1:
        rank = int(os.environ.get("RANK") or os.environ["JOB_COMPLETION_INDEX"])
        address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '29500')}"
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, count, rank)


def loss_of(weights: Any, samples: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy."""
    hidden = jax.nn.relu(samples @ weights["first"] + weights["bias"])
    reported = jax.nn.log_softmax(hidden @ weights["second"])
    return -jnp.take_along_axis(reported, labels[:, None], 1).mean()


@jax.jit
def advanced(state: Any, samples: jax.Array, labels: jax.Array, stops: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
    """The state after a step, its loss, and how many were told to stop: the same everywhere, after the same step."""
    loss, slopes = jax.value_and_grad(loss_of)(state["weights"], samples, labels)
    speeds = jax.tree.map(lambda speed, slope: MOMENTUM * speed + slope, state["speeds"], slopes)
    weights = jax.tree.map(lambda weight, speed: weight - RATE * speed, state["weights"], speeds)
    return {"weights": weights, "speeds": speeds}, loss, stops.sum()


class Training:
    """What is learned, from what, and how far it has come."""

    def __init__(self, wanted: argparse.Namespace) -> None:
        self._wanted = wanted
        mesh = Mesh(np.array(jax.devices()), ("all",))
        self._shared, self._whole = NamedSharding(mesh, PartitionSpec("all")), NamedSharding(mesh, PartitionSpec())
        drawn = np.random.default_rng(wanted.seed)
        self._samples = drawn.standard_normal((SAMPLES, FEATURES), dtype=np.float32)
        self._labels = (self._samples @ drawn.standard_normal((FEATURES, CLASSES), dtype=np.float32)).argmax(1)
        shapes = {"first": (FEATURES, HIDDEN), "bias": (HIDDEN,), "second": (HIDDEN, CLASSES)}
        weights = {name: 0.1 * drawn.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
        self._state = self._placed({"weights": weights, "speeds": jax.tree.map(np.zeros_like, weights)})
        self.step = 0
        self.loss = float("nan")

    def advance(self, *, stops: bool) -> bool:
        """Do one step; whether anybody was told to stop."""
        size = self._wanted.batch * jax.device_count()
        epoch, place = divmod(self.step, max(1, SAMPLES // size))
        order = np.random.default_rng((self._wanted.seed, epoch)).permutation(SAMPLES)
        here = self._wanted.batch * jax.local_device_count()
        first = place * size + jax.process_index() * here
        chosen = order[first : first + here]
        reported = np.full(jax.local_device_count(), stops, np.int32)
        parts = [self._part(each) for each in (self._samples[chosen], self._labels[chosen], reported)]
        self._state, loss, stopping = advanced(self._state, *parts)
        self.step += 1
        self.loss = float(loss)
        return int(stopping) > 0

    def saved(self) -> bytes:
        """All that a later process needs to go on from here."""
        file = io.BytesIO()
        arrays = {f"{kind}.{name}": np.asarray(each) for kind, of in self._state.items() for name, each in of.items()}
        np.savez(file, run=self._run(), step=self.step, loss=self.loss, **arrays)
        return file.getvalue()

    def resume(self, content: bytes) -> None:
        """Go on from what was saved; exits where it is of another run."""
        with np.load(io.BytesIO(content)) as found:
            if found["run"].tolist() != self._run():
                sys.exit("the checkpoint is of another seed, batch or number of devices; name another folder")
            state = {kind: {name: found[f"{kind}.{name}"] for name in of} for kind, of in self._state.items()}
            self._state = self._placed(state)
            self.step, self.loss = int(found["step"]), float(found["loss"])

    def _placed(self, state: Any) -> Any:
        return jax.tree.map(lambda each: jax.device_put(each, self._whole), state)

    def _part(self, own: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(self._shared, own)

    def _run(self) -> list[int]:
        """What must be the same for the numbers to be."""
        return [self._wanted.seed, self._wanted.batch, jax.device_count()]


def from_first(content: bytes | None) -> bytes | None:
    """What the first process has, in every one: the others need not see its folder."""
    if jax.process_count() == 1:
        return content
    size = int(multihost_utils.broadcast_one_to_all(np.int32(-1 if content is None else len(content))))
    if size < 0:
        return None
    own = np.zeros(size, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(own)).tobytes()


def train(wanted: argparse.Namespace, told_to_stop: threading.Event) -> int:
    """Train to the end, or until told to stop; the exit code."""
    folder = Path(wanted.checkpoints) if wanted.checkpoints else None
    is_first = jax.process_index() == 0

    def say(line: str) -> None:
        if is_first:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    training = Training(wanted)
    found = checkpoints.newest(folder, say) if folder is not None and is_first else None
    content = from_first(None if found is None else found[1])
    if content is not None:
        training.resume(content)
        say(f"resumed from step {training.step}")
    say(f"step {training.step} of {wanted.steps} ranks {jax.device_count()} backend {jax.default_backend()}")
    while training.step < wanted.steps:
        began = time.perf_counter()
        told_to_stop.wait(wanted.seconds_per_step)
        stops = training.advance(stops=told_to_stop.is_set())
        took = time.perf_counter() - began
        say(f"step {training.step} loss {training.loss!r} ranks {jax.device_count()} seconds {took:.3f}")
        is_last = training.step >= wanted.steps
        if folder is not None and (stops or is_last or training.step % wanted.checkpoint_every == 0):
            if is_first:
                checkpoints.save(folder, training.step, training.saved())
            multihost_utils.sync_global_devices("saved")  # nobody ends before it is
        if stops and not is_last:
            say(f"stopped: step {training.step} loss {training.loss!r}")
            return STOPPED
    say(f"done: step {training.step} loss {training.loss!r}")
    return 0


def main() -> None:
    """Join the others and train."""
    wanted = options()
    join()
    told_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())
    sys.exit(train(wanted, told_to_stop))


if __name__ == "__main__":
    main()
