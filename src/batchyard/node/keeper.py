"""The keeper of a container's run: it starts the command, writes its log, ends it when told, and tells its end."""

import json
import os
import signal
from functools import partial
from typing import Any

from batchyard.node import cgroups, clock, folder, launch, messages, words
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
_FIRST_LOOK_SECONDS = 0.001
_START_ERROR = 128
_KILLED = 128 + signal.SIGKILL


def keep(run: Run, features: Features) -> None:
    """Keep a claimed run of a container until it has ended."""
    Keeper(run, features).keep()


class Keeper:
    """One run of a container, from its start to its end."""

    def __init__(self, run: Run, features: Features) -> None:
        self._run = run
        self._features = features
        self._loop = Loop()
        self._log = _opened_log(run)
        self._group = launch.pods_group(run)
        self._outputs: dict[int, Stream] = {}
        self._open = 0
        self._said = b""
        #: How the keeper's child has ended, which stands for the command.
        self._ended = 0
        #: The first process of the container, and when it was heard of.
        self._child: int | None = None
        self._began = 0
        self._code: int | None = None
        self._error: str | None = None
        self._is_over = False
        self._is_stopped = False

    def keep(self) -> None:
        """Start the command, and return when nothing of it is left and its end is told."""
        self._write(keeper=os.getpid(), phase="Starting", warnings=[])
        self._loop.when_signalled(signal.SIGTERM, self._look)
        self._loop.when_signalled(signal.SIGCHLD, self._reap)
        self._loop.after(_GONE_SECONDS, self._watch_folder)
        try:
            self._start()
        except OSError as failure:
            self._error = words.start_error(str(failure))
        else:
            self._loop.run()
        self._finish()

    def _start(self) -> None:
        """Start the command, and listen to it."""
        launched = launch.launch(self._run, self._features, self._group)
        self._launched = launched
        self._open = 1 + len(launched.outputs)
        for name, file in launched.outputs.items():
            self._outputs[file] = Stream(self._log, name)
            self._loop.when_readable(file, partial(self._pump, file))
        self._loop.when_readable(launched.status, partial(self._hear, launched.status))

    def _pump(self, file: int) -> None:
        """Take what the command wrote."""
        try:
            data = os.read(file, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that nobody has open any more
            data = b""
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
            self._child, self._began = told["child-pid"], clock.now()
            self._launched.let_start(self._child, self._run.spec["limits"]["pids"])
            self._await_start(_FIRST_LOOK_SECONDS)
        self._code = told.get("exit-code", self._code)
        self._error = told.get("error", self._error)

    def _await_start(self, patience: float) -> None:
        """Look whether the command has taken the place of what prepares it, until it has."""
        if self._is_over or self._child is None or self._code is not None:
            return
        if not self._features.bubblewrap or launch.has_started(self._launched.pid, self._child):
            self._tell(phase="Running", pid=self._child, startedAt=clock.now(), started=True, ready=True)
            self._look()
        else:
            self._loop.after(patience, partial(self._await_start, patience * 1.5))

    def _reap(self) -> None:
        """Reap children, those that were adopted too: when there are none, nothing of the command is left."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._launched.pid:
                    self._ended = ended[1]
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
        if not self._is_stopped:
            self._is_stopped = True
            self._terminate()
        left = wish["at"] / 1e6 + wish["grace"] - clock.now() / 1e6
        self._loop.after(max(0.0, left), self._kill)

    def _terminate(self) -> None:
        """Ask the processes of the command to end."""
        if self._child is not None:
            try:
                os.killpg(self._child, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                return

    def _kill(self) -> None:
        """End the command now: what is around it ends what else there is."""
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
        """Tell the end, and leave nothing behind."""
        for stream in self._outputs.values():
            stream.end()
        end = self._end()
        cgroups.remove(self._group)
        self._write(phase="Exited", finishedAt=clock.now(), **end)
        self._run.announce(_ANNOUNCE_SECONDS)
        folder.remove_tree(self._run.folder, "root")

    def _end(self) -> dict[str, object]:
        """How it ended, in the fields of the state."""
        began = self._run.state.get("startedAt")
        if self._code is None and not os.WIFSIGNALED(self._ended) and began is None:
            said = words.said_by_bubblewrap(self._log.take_back().decode(errors="replace"))
            message = self._error or words.start_error(said)
            return {"exitCode": _START_ERROR, "reason": "StartError", "message": message}
        code = _KILLED if self._code is None else self._code
        reason = "OOMKilled" if cgroups.oom_kills(self._group) else "Error" if code else "Completed"
        message = messages.last_words(self._run, self._log, code)
        return {"startedAt": began or self._began, "exitCode": code, "reason": reason, "message": message}

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


def _opened_log(run: Run) -> Log:
    logs = folder.open_folder("../../../logs", run.folder)
    os.makedirs(f"/proc/self/fd/{logs}/{run.spec['container']}", 0o700, exist_ok=True)
    here = folder.open_folder(run.spec["container"], logs)
    os.close(logs)
    limits = run.spec["log"]
    return Log(here, f"{run.spec['attempt']}.log", limits["maxBytes"], limits["maxFiles"])
