"""A small data-parallel trainer in PyTorch that can be stopped at any step and goes on as if nothing had been.

    torchrun --nproc_per_node 2 train.py --steps 200 --checkpoints /checkpoints

On the same number of ranks the last loss is the same bit for bit, however often it was stopped: all that is drawn is
fixed by the seed and the step, and a checkpoint holds the rest. SIGTERM to any rank stops all of them after the same
step, with a checkpoint and exit code 143; once all steps are done the code is 0. It learns what a fixed random network
says of random points: no data set is needed.
"""

import argparse
import hashlib
import io
import os
import signal
import sys
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import checkpoints

# Must be said before CUDA starts, for sums that always come out the same.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # nothing here needs it

import torch  # noqa: E402 - after the above
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

#: The exit code of what SIGTERM ended: 128 + 15.
STOPPED = 143
SAMPLES, FEATURES, CLASSES, HIDDEN = 4096, 32, 10, 64
#: How long ranks wait for one that says nothing.
_PATIENCE = timedelta(minutes=5)


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="how many there are in all")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step on each rank")
    parser.add_argument("--seconds-per-step", type=float, default=0.0, help="wait so long in each step")
    parser.add_argument("--seed", type=int, default=0, help="fixes all that is drawn")
    folder = os.environ.get("CHECKPOINT_DIR", "")
    parser.add_argument(
        "--checkpoints", default=folder, metavar="DIR", help="by default $CHECKPOINT_DIR; none: no checkpoints"
    )
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="N", help="besides, after each N steps")
    return parser.parse_args()


def tell(line: str) -> None:
    """Write a line, at once and as a whole: several processes write to one place."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Ranks:
    """All processes of the training, and which of them this is."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        local, here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.has_gpu = torch.cuda.device_count() >= here  # one for each; NCCL takes no less
        self.device = torch.device("cuda", local) if self.has_gpu else torch.device("cpu")
        if self.has_gpu:
            torch.cuda.set_device(self.device)
        self.backend = "nccl" if self.has_gpu else "gloo"
        alone = dist.HashStore() if self.count == 1 else None  # without torchrun: nobody to find
        dist.init_process_group(self.backend, store=alone, rank=self.rank, world_size=self.count, timeout=_PATIENCE)

    def reported(self, loss: float, stops: bool) -> tuple[float, bool]:
        """The mean loss, and whether any rank was told to stop: every rank gets the same answer after the same step."""
        both = torch.tensor([loss, float(stops)], dtype=torch.float64, device=self.device)
        dist.all_reduce(both)
        return both[0].item() / self.count, both[1].item() > 0

    def from_first(self, content: bytes | None) -> bytes | None:
        """What rank 0 has, on every rank: the others need not see its folder."""
        size = torch.tensor([-1 if content is None else len(content)], device=self.device)
        dist.broadcast(size, 0)
        if size.item() < 0:
            return None
        own = torch.zeros(int(size.item()), dtype=torch.uint8) if content is None else _tensor_of(content)
        carried = own.to(self.device)
        dist.broadcast(carried, 0)
        return _bytes_of(carried)


class Training:
    """The network, what it learns from, and how far it has come."""

    def __init__(self, wanted: argparse.Namespace, ranks: Ranks) -> None:
        self._wanted = wanted
        self._ranks = ranks
        torch.manual_seed(wanted.seed)
        self._samples = torch.randn(SAMPLES, FEATURES)
        self._labels = (self._samples @ torch.randn(FEATURES, CLASSES)).argmax(1)
        layers = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, CLASSES))
        self._model = layers.to(ranks.device)
        self._parallel = DistributedDataParallel(self._model, device_ids=[ranks.device] if ranks.has_gpu else None)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-2)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)
        self.step = 0
        self.loss = float("nan")
        self._lay_out_buckets()

    def advance(self) -> float:
        """Do one step; this rank's loss."""
        chosen = self._indices()
        # What dropout draws depends on the step, not on what was drawn before.
        torch.manual_seed(hash((self._wanted.seed, self.step, self._ranks.rank)))
        samples, labels = self._samples[chosen].to(self._ranks.device), self._labels[chosen].to(self._ranks.device)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._parallel(samples), labels)
        loss.backward()
        self._optimizer.step()
        self.step += 1
        return loss.item()

    def saved(self) -> bytes:
        """All that a later process needs to go on from here."""
        file = io.BytesIO()
        state = {"step": self.step, "loss": self.loss, "run": self._run()}
        torch.save({**state, "model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, file)
        return file.getvalue()

    def resume(self, content: bytes) -> None:
        """Go on from what was saved; exits where it is of another run."""
        state = torch.load(io.BytesIO(content), map_location=self._ranks.device, weights_only=True)
        if state["run"] != self._run():
            sys.exit(
                f"the checkpoint is of another run: {state['run']}, and this is {self._run()}; name another folder"
            )
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.loss = state["step"], state["loss"]

    def digest(self) -> str:
        """The weights in a few letters: the same where every bit is."""
        whole = hashlib.sha256()
        for tensor in self._model.state_dict().values():
            whole.update(_bytes_of(tensor))
        return whole.hexdigest()[:16]

    def _indices(self) -> torch.Tensor:
        """The samples of this step on this rank: each epoch has an order of its own, which the ranks share out."""
        size = self._wanted.batch * self._ranks.count
        steps = max(1, SAMPLES // size)
        epoch, place = divmod(self.step, steps)
        if epoch != self._epoch:
            drawn = torch.Generator().manual_seed(hash((self._wanted.seed, epoch)))
            self._epoch, self._order = epoch, torch.randperm(SAMPLES, generator=drawn)
        first = place * size + self._ranks.rank * self._wanted.batch
        return self._order[first : first + self._wanted.batch]

    def _run(self) -> dict[str, int]:
        """What must be the same for the numbers to be."""
        return {"seed": self._wanted.seed, "batch": self._wanted.batch, "ranks": self._ranks.count}

    def _lay_out_buckets(self) -> None:
        """One backward pass for nothing.

        DDP lays out its buckets anew after the first one, and with three ranks or more sums depend on the layout: so
        what goes on from a checkpoint has the layout that it had before.
        """
        self._parallel(torch.zeros(1, FEATURES, device=self._ranks.device)).sum().backward()


def train(wanted: argparse.Namespace, ranks: Ranks, told_to_stop: threading.Event) -> int:
    """Train to the end, or until told to stop; the exit code."""
    folder = Path(wanted.checkpoints) if wanted.checkpoints else None
    say = tell if ranks.rank == 0 else _silent
    training = Training(wanted, ranks)
    found = checkpoints.newest(folder, say) if folder is not None and ranks.rank == 0 else None
    content = ranks.from_first(None if found is None else found[1])
    if content is not None:
        training.resume(content)
        say(f"resumed from step {training.step}")
    say(f"step {training.step} of {wanted.steps} ranks {ranks.count} backend {ranks.backend}")
    while training.step < wanted.steps:
        began = time.perf_counter()
        loss = training.advance()
        told_to_stop.wait(wanted.seconds_per_step)
        training.loss, stops = ranks.reported(loss, told_to_stop.is_set())
        took = time.perf_counter() - began
        say(f"step {training.step} loss {training.loss!r} ranks {ranks.count} seconds {took:.3f}")
        is_last = training.step >= wanted.steps
        if folder is not None and (stops or is_last or training.step % wanted.checkpoint_every == 0):
            if ranks.rank == 0:
                checkpoints.save(folder, training.step, training.saved())
            dist.barrier()  # nobody ends before it is saved
        if stops and not is_last:
            say(f"stopped: step {training.step} loss {training.loss!r} weights {training.digest()}")
            return STOPPED
    say(f"done: step {training.step} loss {training.loss!r} weights {training.digest()}")
    return 0


def _tensor_of(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """What a tensor is made of (without NumPy, which need not be there)."""
    flat = tensor.cpu().contiguous().flatten().view(torch.uint8)
    return bytes(flat.tolist())


def _silent(_line: str) -> None:
    pass


def main() -> None:
    """Join the others and train."""
    wanted = options()
    torch.set_num_threads(1)  # so that sums do not depend on how many cores there are
    torch.use_deterministic_algorithms(True)
    ranks = Ranks()  # until here SIGTERM just ends it: there is nothing to save
    told_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())
    code = train(wanted, ranks, told_to_stop)
    dist.destroy_process_group()
    sys.exit(code)


if __name__ == "__main__":
    main()
