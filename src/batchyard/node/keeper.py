"""The keeper of a container's run: it starts the command, writes its log, ends it when told, and tells its end."""

import json
import os
import signal
from functools import partial
from typing import Any, NoReturn

from batchyard.node import clock, folder, plain
from batchyard.node.logs import Log, Stream
from batchyard.node.loop import Loop
from batchyard.node.run import Run

_GONE_SECONDS = 2.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ_BYTES = 16 * 1024
#: How long the outputs are read after the end of the command: what still holds them is being killed.
_DRAIN_SECONDS = 1.0
_START_ERROR = 128


def keep(run: Run) -> None:
    """Keep a claimed run of a container until it has ended."""
    Keeper(run).keep()


class Keeper:
    """One run of a container, from its start to its end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._spec = run.spec
        self._loop = Loop()
        self._log = self._opened_log()
        self._outputs: dict[int, Stream] = {}
        self._said = b""
        self._child: int | None = None
        self._code: int | None = None
        self._error: str | None = None
        self._is_over = False
        self._stopped_at: int | None = None

    def keep(self) -> None:
        """Start the command, and return when nothing of it is left and its end is told."""
        self._tell(keeper=os.getpid(), phase="Starting", warnings=[])
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
        outputs = {"stdout": os.pipe2(os.O_CLOEXEC), "stderr": os.pipe2(os.O_CLOEXEC)}
        status, telling = os.pipe2(os.O_CLOEXEC)
        if os.fork() == 0:
            self._become_warden(outputs["stdout"][1], outputs["stderr"][1], telling)
        os.close(telling)
        for name, (reads, writes) in outputs.items():
            os.close(writes)
            os.set_blocking(reads, False)
            self._outputs[reads] = Stream(self._log, name)
            self._loop.when_readable(reads, partial(self._pump, reads))
        self._loop.when_readable(status, partial(self._hear, status))

    def _become_warden(self, stdout: int, stderr: int, telling: int) -> NoReturn:
        self._run.release()
        nothing = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        plain.warden(command(self._spec), telling)

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
            self._loop.forget(file)
            os.close(file)
            self._end_if_over()

    def _hear(self, status: int) -> None:
        """Take what is told of the command: that it runs, its exit code, or why it could not be started."""
        data = os.read(status, 4096)
        if not data:
            self._loop.forget(status)
        self._said += data
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            self._hear_line(json.loads(line))

    def _hear_line(self, told: dict[str, Any]) -> None:
        if "child-pid" in told:
            self._child = told["child-pid"]
            self._tell(phase="Running", pid=self._child, startedAt=clock.now(), started=True, ready=True)
            self._look()
        self._code = told.get("exit-code", self._code)
        self._error = told.get("error", self._error)

    def _reap(self) -> None:
        """Reap children. The first one that was forked stands for the command."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            self._is_over = True
            self._loop.after(_DRAIN_SECONDS, self._loop.stop)
            self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_over and not self._outputs:
            self._loop.stop()

    def _look(self) -> None:
        """See whether the run is to end: TERM at once, KILL when the grace has passed."""
        wish = self._run.stop_wish()
        if wish is None or self._child is None:
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
        self._tell(phase="Exited", finishedAt=clock.now(), **self._end())

    def _end(self) -> dict[str, object]:
        """How it ended, in the fields of the state."""
        if self._error is not None:
            return {"exitCode": _START_ERROR, "reason": "StartError", "message": self._error}
        code = 137 if self._code is None else self._code
        return {"exitCode": code, "reason": "Error" if code else "Completed", "message": ""}

    def _tell(self, **changes: object) -> None:
        """Write the state; while there is no room for it, wait: what happened must not be forgotten."""
        while not self._run.tell(**changes) and not self._run.is_gone():
            signal.sigtimedwait([], 1.0)


def command(spec: dict[str, Any]) -> plain.Command:
    """A container's command as a plain process."""
    environment = {"PATH": _PATH, "HOME": "/root"} | spec["environment"]
    venv = spec["image"].get("environment")
    if venv:
        environment = {"PATH": f"{venv}/bin:{_PATH}", "VIRTUAL_ENV": venv, "HOME": "/root"} | spec["environment"]
    user = spec["user"] and (spec["user"]["uid"], spec["user"]["gid"])
    return plain.Command(spec["argv"], environment, spec["workingDir"] or "/", user)
