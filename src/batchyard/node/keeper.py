"""The keeper of a container's run: it starts the command, writes its log, ends it when told, and tells its end."""

import json
import os
import signal
from functools import partial
from typing import Any

from batchyard.node import clock, folder, launch, words
from batchyard.node.features import Features
from batchyard.node.logs import Log, Stream
from batchyard.node.loop import Loop
from batchyard.node.run import Run

_GONE_SECONDS = 2.0
_READ_BYTES = 16 * 1024
#: How long the outputs are read after the end of the command: what still holds them is being killed.
_DRAIN_SECONDS = 1.0
#: How long the platform may be too busy to hear of a change.
_ANNOUNCE_SECONDS = 1.0
_ANNOUNCE_AGAIN_SECONDS = 0.02
_START_ERROR = 128
_FIRST_LOOK_SECONDS = 0.001


def keep(run: Run, features: Features) -> None:
    """Keep a claimed run of a container until it has ended."""
    Keeper(run, features).keep()


class Keeper:
    """One run of a container, from its start to its end."""

    def __init__(self, run: Run, features: Features) -> None:
        self._run = run
        self._features = features
        self._spec = run.spec
        self._loop = Loop()
        self._log = self._opened_log()
        self._outputs: dict[int, Stream] = {}
        self._open = 3
        self._said = b""
        self._outer = 0
        self._outer_status = 0
        self._child: int | None = None
        self._code: int | None = None
        self._began = 0
        self._error: str | None = None
        self._is_over = False
        self._stopped_at: int | None = None

    def keep(self) -> None:
        """Start the command, and return when nothing of it is left and its end is told."""
        self._write(keeper=os.getpid(), phase="Starting", warnings=[])
        self._loop.when_signalled(signal.SIGTERM, self._look)
        self._loop.when_signalled(signal.SIGCHLD, self._reap)
        self._loop.after(_GONE_SECONDS, self._watch_folder)
        self._start()
        self._loop.run()
        self._finish()

    def _opened_log(self) -> Log:
        container, attempt = self._spec["container"], self._spec["attempt"]
        logs = folder.open_folder("../../../logs", self._run.folder)
        os.makedirs(f"/proc/self/fd/{logs}/{container}", 0o700, exist_ok=True)
        limits = self._spec["log"]
        here = folder.open_folder(container, logs)
        os.close(logs)
        return Log(here, f"{attempt}.log", limits["maxBytes"], limits["maxFiles"])

    def _start(self) -> None:
        """Fork what runs the command, with pipes for its outputs and for what is told of it."""
        self._make_places()
        stdout, stderr, status = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
        nothing = os.open("/dev/null", os.O_RDONLY)
        self._outer = os.fork()
        if self._outer == 0:
            launch.become(self._run, self._features, launch.Files(nothing, stdout[1], stderr[1], status[1]))
        for file in (nothing, stdout[1], stderr[1], status[1]):
            os.close(file)
        for name, (reads, _) in {"stdout": stdout, "stderr": stderr}.items():
            os.set_blocking(reads, False)
            self._outputs[reads] = Stream(self._log, name)
            self._loop.when_readable(reads, partial(self._pump, reads))
        self._loop.when_readable(status[0], partial(self._hear, status[0]))

    def _make_places(self) -> None:
        """What the container has for itself: a root to write to, and a file for its last words."""
        os.mkdir("root", 0o755, dir_fd=self._run.folder)
        os.close(os.open("termination-log", os.O_WRONLY | os.O_CREAT, 0o666, dir_fd=self._run.folder))

    def _pump(self, file: int) -> None:
        """Take what the command wrote."""
        try:
            data = os.read(file, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._outputs[file].feed(data)
        else:
            self._outputs.pop(file).end()
            self._close(file)

    def _close(self, file: int) -> None:
        """Wait no longer for a file that has been read to its end."""
        self._loop.forget(file)
        os.close(file)
        self._open -= 1
        self._end_if_over()

    def _hear(self, status: int) -> None:
        """Take what is told of the command: that it runs, its exit code, or why it could not be started."""
        data = os.read(status, 4096)
        if not data:
            self._close(status)
        self._said += data
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            self._hear_line(json.loads(line))

    def _hear_line(self, told: dict[str, Any]) -> None:
        if "child-pid" in told:
            self._child = told["child-pid"]
            self._began = clock.now()
            self._await_start(_FIRST_LOOK_SECONDS)
        self._code = told.get("exit-code", self._code)
        self._error = told.get("error", self._error)

    def _await_start(self, patience: float) -> None:
        """Look whether the command has taken the place of what prepares it, until it has."""
        if self._is_over or self._child is None or self._code is not None:
            return
        if not self._features.bubblewrap or launch.has_started(self._outer, self._child):
            self._tell(phase="Running", pid=self._child, startedAt=clock.now(), started=True, ready=True)
            self._look()
        else:
            self._loop.after(patience, partial(self._await_start, patience * 1.5))

    def _reap(self) -> None:
        """Reap children. The one that was forked first stands for the command; nothing is left without any."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._outer:
                    self._outer_status = ended[1]
        except ChildProcessError:
            self._is_over = True
            self._loop.after(_DRAIN_SECONDS, self._loop.stop)
            self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_over and not self._open:
            self._loop.stop()

    def _look(self) -> None:
        """See whether the run is to end: TERM at once, KILL when the grace has passed."""
        wish = self._run.stop_wish()
        if wish is None or "startedAt" not in self._run.state:
            return
        if self._stopped_at is None:
            self._stopped_at = wish["at"]
            self._signal_group(signal.SIGTERM)
        left = wish["at"] / 1e6 + wish["grace"] - clock.now() / 1e6
        self._loop.after(max(0.0, left), self._kill)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._child or 0, number)
        except (ProcessLookupError, PermissionError):
            return

    def _kill(self) -> None:
        """End the command now: who watches over it ends what else there is."""
        if self._child is not None and self._code is None:
            try:
                os.kill(self._child, signal.SIGKILL)
            except ProcessLookupError:
                return

    def _watch_folder(self) -> None:
        """End what is kept when the folder is gone."""
        if self._run.is_gone():
            self._kill()
        self._loop.after(_GONE_SECONDS, self._watch_folder)

    def _finish(self) -> None:
        for stream in self._outputs.values():
            stream.end()
        self._write(phase="Exited", finishedAt=clock.now(), **self._end())
        self._run.announce(_ANNOUNCE_SECONDS)
        folder.remove_tree(self._run.folder, "root")

    def _end(self) -> dict[str, object]:
        """How it ended, in the fields of the state."""
        if self._code is None and not os.WIFSIGNALED(self._outer_status) and "startedAt" not in self._run.state:
            said = words.said_by_bubblewrap(self._log.take_back().decode(errors="replace"))
            error = self._error or words.start_error(said)
            return {"exitCode": _START_ERROR, "reason": "StartError", "message": error}
        code = 137 if self._code is None else self._code
        began = self._run.state.get("startedAt", self._began)
        return {"startedAt": began, "exitCode": code, "reason": "Error" if code else "Completed", "message": ""}

    def _tell(self, **changes: object) -> None:
        """Write the state, and announce it as soon as the platform can take that: nothing waits for it."""
        self._write(**changes)
        self._announce(clock.monotonic() + _ANNOUNCE_SECONDS)

    def _write(self, **changes: object) -> None:
        """Write the state; while there is no room for it, wait: what happened must not be forgotten."""
        while not self._run.write(**changes) and not self._run.is_gone():
            signal.sigtimedwait([], 1.0)

    def _announce(self, end: float) -> None:
        if not self._run.announce() and clock.monotonic() < end:
            self._loop.after(_ANNOUNCE_AGAIN_SECONDS, partial(self._announce, end))
