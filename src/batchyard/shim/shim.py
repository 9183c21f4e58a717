"""Container shim: the process that starts a container, writes its log, runs probes, stops it, and reports its end."""

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from batchyard.shim import launch, linux, state_dir, stop
from batchyard.shim import run as words
from batchyard.shim.event_loop import Loop
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.capabilities import Features
from batchyard.shim.logs import LogLineSplitter, RotatingLog
from batchyard.shim.probes import Health, ProbeCallbacks, ProbeOutcome, ProbeWorkers
from batchyard.shim.run import ShimRun
from batchyard.shim.stop import ContainerTermination, signal_first_process, signal_process_group, stop_signal

# --- attach ---
#
# The shim sends the output of a container to attached clients in addition to its log.
#
# A client connects to the unix socket (SEQPACKET) `attach` in the run's directory. Its message lists the outputs, with
# a descriptor to write to for each. The reply is `started`, with a descriptor of the container's terminal if it has
# one, to which the client writes. Without a terminal the client writes to the pipe `stdin` in the directory, and sends
# `end_input` to close the container's input. As with containerd, a slow client blocks the container's output.


_ASKED_BYTES = 4096
_WAITING_MAX = 16


class AttachedClients:
    """The clients attached to one container; the callback `set_reading` pauses or resumes the reading of an output."""

    def __init__(self, loop: Loop, run: int, wants_more: Callable[[str, bool], None]) -> None:
        self._loop = loop
        self._wants_more = wants_more
        self._terminal: int | None = None
        self._input: int | None = None
        self._open: list[_Attachment] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(state_dir.address(run, "attach"))

    def begin(self, terminal: int | None, stdin: int | None) -> None:
        """Start to accept clients, which can write to the container's terminal or to its input pipe, if any."""
        self._terminal, self._input = terminal, stdin
        self._socket.listen(_WAITING_MAX)
        self._loop.when_readable(self._socket.fileno(), self._accept)

    def give(self, name: str, written: bytes) -> None:
        """Send data of one of the container's outputs to all attached clients."""
        for attachment in list(self._open):
            attachment.give(name, written)

    def end(self, name: str) -> None:
        """Close an output for all attached clients."""
        for attachment in list(self._open):
            attachment.end(name)

    def update_reading(self, name: str) -> None:
        """Resume the reading of an output if no client has pending data of it; otherwise pause it."""
        self._wants_more(name, not any(attachment.waits(name) for attachment in self._open))

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        message, files = state_dir.take_files(connection, _ASKED_BYTES, 2)
        try:
            names = json.loads(message)["outputs"]
        except (ValueError, KeyError, TypeError):
            names = []
        if len(names) != len(files):
            connection.close()
            return
        with suppress(OSError):
            socket.send_fds(connection, [b'{"started": true}'], [] if self._terminal is None else [self._terminal])
        attachment = _Attachment(self, self._loop, dict(zip(names, files, strict=True)))
        self._open.append(attachment)
        self._loop.when_readable(connection.fileno(), partial(self._hear, connection, attachment))

    def _hear(self, connection: socket.socket, attachment: "_Attachment") -> None:
        message = b""
        with suppress(OSError):
            message = connection.recv(_ASKED_BYTES)
        if b"end_input" in message:
            if self._input is not None:
                os.close(self._input)
                self._input = None
        elif not message:
            self._loop.forget(connection.fileno())
            connection.close()
            self._open.remove(attachment)
            attachment.close()


class _Attachment:
    """One attached client: its descriptors by output, and the data that is pending for each."""

    def __init__(self, attached: AttachedClients, loop: Loop, files: dict[str, int]) -> None:
        self._attached = attached
        self._loop = loop
        self._files = files
        self._waiting: dict[str, bytes] = {}
        for file in files.values():
            os.set_blocking(file, False)

    def give(self, name: str, written: bytes) -> None:
        """Write data of an output to the client; data that the client does not accept yet stays pending."""
        if name in self._files:
            self._waiting[name] = self._waiting.get(name, b"") + written
            self._write(name)

    def waits(self, name: str) -> bool:
        """Report whether data of an output is pending."""
        return bool(self._waiting.get(name))

    def end(self, name: str) -> None:
        """Close the client's descriptor of an output."""
        file = self._files.pop(name, None)
        self._waiting.pop(name, None)
        if file is not None:
            self._loop.forget(file)
            os.close(file)

    def close(self) -> None:
        """Close all descriptors of the client after it has disconnected."""
        for name in list(self._files):
            self.end(name)
            self._attached.update_reading(name)

    def _write(self, name: str) -> None:
        file, waiting = self._files[name], self._waiting[name]
        try:
            self._waiting[name] = waiting[os.write(file, waiting) :]
        except BlockingIOError:
            pass
        except OSError:
            self.end(name)
        self._loop.forget(file)
        if self.waits(name):
            self._loop.when_writable(file, partial(self._write, name))
        self._attached.update_reading(name)


# --- state reports ---
# The state of a run is written to disk immediately. The platform is notified as soon as it accepts the message.


#: How long a notification is retried while the platform does not accept it.
_ANNOUNCE_SECONDS = 1.0
_ANNOUNCE_AGAIN_SECONDS = 0.02
_WARNINGS_MAX = 16


class StateReporter:
    """Reports the state of a run: writes its state file and notifies the platform, without waiting for it."""

    def __init__(self, run: ShimRun, loop: Loop) -> None:
        self._run = run
        self._loop = loop
        self._warned = 0
        self._warnings: list[dict[str, object]] = []

    def report_state(self, **changes: object) -> None:
        """Write changed fields of the state and notify the platform."""
        self.write(**changes)
        self._announce(linux.monotonic() + _ANNOUNCE_SECONDS)

    def report_final(self, **changes: object) -> None:
        """Write the final fields of the state and notify the platform; wait up to a second until it accepts that."""
        self.write(**changes)
        self._run.announce(_ANNOUNCE_SECONDS)

    def warn(self, reason: str, message: str) -> None:
        """Report a warning, which the kubelet records as an Event of the pod."""
        self._warned += 1
        warning: dict[str, object] = {"n": self._warned, "reason": reason, "message": message}
        self._warnings = [*self._warnings, warning][-_WARNINGS_MAX:]
        self.report_state(warnings=self._warnings)

    def write(self, **changes: object) -> None:
        """Write changed fields of the state; retry every second on failure, unless the run's directory was removed."""
        while not self._run.write(**changes) and not self._run.is_gone():
            signal.sigtimedwait([], 1.0)

    def _announce(self, end: float) -> None:
        if not self._run.announce() and linux.monotonic() < end:
            self._loop.after(_ANNOUNCE_AGAIN_SECONDS, partial(self._announce, end))


# --- termination message ---
# Source: pkg/kubelet/kuberuntime/kuberuntime_container.go.


_FILE_BYTES = 4096
_LOG_BYTES = 2048
_LOG_LINES = 80


def termination_message(run: ShimRun, log: RotatingLog, code: int) -> str:
    """Return a container's termination message: the end of its file, or of its log if it failed and policy allows."""
    text = _tail_of_file(run) if run.spec["terminationMessagePath"] else b""
    wants_log = run.spec["terminationMessagePolicy"] == "FallbackToLogsOnError" and code != 0
    if not text and wants_log:
        text = log.tail(_LOG_LINES, _LOG_BYTES)
    return text.decode(errors="replace")


def _tail_of_file(run: ShimRun) -> bytes:
    try:
        file = os.open("termination-log", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=run.folder)
    except OSError:
        return b""
    try:
        return os.pread(file, _FILE_BYTES, max(0, os.fstat(file).st_size - _FILE_BYTES))
    finally:
        os.close(file)


_GONE_SECONDS = 2.0
_READ_BYTES = 16 * 1024
#: How long the outputs are read after the command has ended, while its remaining processes are killed.
_DRAIN_SECONDS = 1.0
_FIRST_LOOK_SECONDS = 0.001
#: How often and at which interval OOM kills are counted after an out-of-memory notification, which comes first.
_OOM_LOOKS, _OOM_LOOK_SECONDS = 20, 0.01
_START_ERROR = 128
_KILLED = 128 + signal.SIGKILL


def keep(run: ShimRun, features: Features) -> None:
    """Supervise a claimed container run until it ends."""
    ContainerShim(run, features).keep()


class ContainerShim:
    """Supervises one container run from its start to its end."""

    def __init__(self, run: ShimRun, features: Features) -> None:
        self._run = run
        self._features = features
        self._loop = Loop()
        self._reporter = StateReporter(run, self._loop)
        self._tries = ProbeWorkers(run, self._loop)
        self._log = _opened_log(run)
        self._group = launch.pods_group(run)
        self._outputs: dict[int, LogLineSplitter] = {}
        self._attached = AttachedClients(self._loop, run.folder, self._read)
        self._open = 0
        self._received = b""
        #: The wait status of the shim's child process, which is bubblewrap or the warden.
        self._ended = 0
        #: The first process of the container, and when its pid was reported.
        self._child: int | None = None
        self._began = 0
        self._code: int | None = None
        self._error: str | None = None
        self._is_oom = False
        self._is_over = False
        #: The probes; None until the command runs.
        self._health: Health | None = None
        self._ending: ContainerTermination | None = None

    def keep(self) -> None:
        """Start the command; return when all its processes have ended and the end is reported."""
        self._reporter.write(keeper=os.getpid(), phase="Starting", warnings=[])
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
        """Start the command and register its outputs and status pipe with the event loop."""
        launched = launch.launch(self._run, self._features, self._group)
        self._launched = launched
        self._open = 1 + len(launched.outputs)
        for name, file in launched.outputs.items():
            self._outputs[file] = LogLineSplitter(self._log, name)
            self._loop.when_readable(file, partial(self._pump, file, name))
        self._end_with_a_part()
        self._attached.begin(launched.outputs["stdout"] if self._run.spec["tty"] else None, launched.stdin)
        self._loop.when_readable(launched.status, partial(self._hear, launched.status))

    def _end_with_a_part(self) -> None:
        """With cgroup v1, watch for OOM kills to kill the whole container then; cgroup v2 does that by itself."""
        watch = cgroups.watched_for_oom(self._group)
        if watch is not None:
            self._loop.when_readable(watch, partial(self._look_for_oom, watch, _OOM_LOOKS))

    def _look_for_oom(self, watch: int, looks: int) -> None:
        """Handle an out-of-memory notification: check repeatedly whether Linux has killed a process for it."""
        with suppress(BlockingIOError):
            os.eventfd_read(watch)
        if cgroups.oom_kills(self._group):
            self._loop.forget(watch)
            self._kill_container()
        elif looks:
            self._loop.after(_OOM_LOOK_SECONDS, partial(self._look_for_oom, watch, looks - 1))

    def _kill_container(self) -> None:
        if self._child is not None and self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def _read(self, name: str, wants: bool) -> None:
        """Resume or pause the reading of an output."""
        file = self._launched.outputs[name]
        if file in self._outputs:
            self._loop.forget(file)
            if wants:
                self._loop.when_readable(file, partial(self._pump, file, name))

    def _pump(self, file: int, name: str) -> None:
        """Read data from an output, and write it to the log and to attached clients."""
        try:
            data = os.read(file, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if data:
            self._outputs[file].feed(data)
            self._attached.give(name, data)
        else:
            self._outputs.pop(file).end()
            self._attached.end(name)
            self._close(file)

    def _close(self, file: int) -> None:
        """Close a descriptor that was read to its end."""
        self._loop.forget(file)
        os.close(file)
        self._open -= 1
        self._end_if_over()

    def _hear(self, status: int) -> None:
        """Read status lines from the pipe: the command's pid, its exit code, or why it could not be started."""
        data = os.read(status, 4096)
        if not data:
            self._close(status)
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._hear_line(json.loads(line))

    def _hear_line(self, status_line: dict[str, Any]) -> None:
        if "child-pid" in status_line:
            self._child, self._began = status_line["child-pid"], linux.now()
            self._launched.let_start(self._child, self._run.spec["limits"]["pids"])
            self._await_start(_FIRST_LOOK_SECONDS)
        self._code = status_line.get("exit-code", self._code)
        self._error = status_line.get("error", self._error)
        self._is_oom = status_line.get("oom", self._is_oom)

    def _await_start(self, patience: float) -> None:
        """Poll until bubblewrap has executed the command; `patience` is the interval in seconds, which grows."""
        if self._is_over or self._child is None or self._code is not None:
            return
        if not launch.is_wrapped(self._run, self._features) or launch.has_started(self._launched.pid, self._child):
            self._live(self._child)
        else:
            self._loop.after(patience, partial(self._await_start, patience * 1.5))

    def _live(self, child: int) -> None:
        """Report that the command runs (its first process is `child`), and start its postStart hook or its probes."""
        container = launch.container(self._run, self._features, child, self._group)
        attempt = partial(self._tries.start, container)
        hooks = self._run.spec["hooks"]
        report = ProbeCallbacks(self._reporter.warn, self._fail, self._report_health)
        self._health = Health(self._run.spec["probes"], self._loop, attempt, report)
        number = stop_signal(self._run.spec.get("stopSignal") or "")
        ask = partial(signal_first_process if launch.is_contained(self._run) else signal_process_group, child, number)
        self._ending = ContainerTermination(child, self._loop, hooks.get("preStop"), attempt, ask)
        hook = hooks.get("postStart")
        is_up = hook is None
        started, ready = is_up and self._health.started, is_up and self._health.ready
        self._reporter.report_state(phase="Running", pid=child, startedAt=linux.now(), started=started, ready=ready)
        if is_up:
            self._health.begin()
        else:
            attempt(hook, None, self._after_hook)
        self._look()

    def _after_hook(self, outcome: ProbeOutcome) -> None:
        """Start the probes if the postStart hook succeeded; otherwise report the failed hook."""
        if outcome.result in {"success", "warning"} and self._health:
            self._report_health()
            self._health.begin()
        elif not self._is_over:
            self._reporter.warn("FailedPostStartHook", "PostStartHook failed")
            self._fail({"hook": "postStart", "message": outcome.text})

    def _fail(self, failed: Mapping[str, str]) -> None:
        self._reporter.report_state(failed=failed)

    def _report_health(self) -> None:
        if self._health:
            self._reporter.report_state(started=self._health.started, ready=self._health.ready)

    def _reap(self) -> None:
        """Reap ended child processes, including adopted orphans; end the run when none is left."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._launched.pid:
                    self._ended = ended[1]
                    self._clear()
        except ChildProcessError:
            self._is_over = True
            self._loop.after(_DRAIN_SECONDS, self._loop.stop)
            self._end_if_over()

    def _clear(self) -> None:
        """After the end of the command: end its probe and hook attempts, and kill all remaining descendants."""
        self._tries.end()
        for pid in stop.below(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _end_if_over(self) -> None:
        if self._is_over and not self._open:
            self._loop.stop()

    def _look(self) -> None:
        """Check whether a stop was requested; if so, start or update the container's termination."""
        stop_request = self._run.stop_request()
        if stop_request and self._health and self._ending and self._code is None:
            self._health.leave()
            self._ending.obey(stop_request, self._reporter.warn)

    def _watch_folder(self) -> None:
        """Check periodically whether the run's directory was removed; if so, kill the container."""
        if self._run.is_gone() and self._ending:
            self._ending.kill()
        self._loop.after(_GONE_SECONDS, self._watch_folder)

    def _finish(self) -> None:
        """Report the end of the run, and remove its control group, its files and its container in the engine."""
        for stream in self._outputs.values():
            stream.end()
        end = self._end()
        cgroups.remove(self._group, has_namesakes=launch.is_contained(self._run))
        self._reporter.report_final(phase="Exited", finishedAt=linux.now(), started=False, ready=False, **end)
        state_dir.remove_tree(self._run.folder, "root")
        if self._code is None:
            launch.forget(self._run, self._features)

    def _end(self) -> dict[str, object]:
        """Return the state fields that describe the end of the run: exit code, reason and message."""
        began = self._run.state.get("startedAt")
        if self._code is None and not os.WIFSIGNALED(self._ended) and began is None:
            log_text = self._log.truncate().decode(errors="replace")
            says = words.parse_engine_error if launch.is_contained(self._run) else words.parse_bubblewrap_error
            message = self._error or words.start_error(says(log_text))
            return {"exitCode": _START_ERROR, "reason": "StartError", "message": message}
        is_oom = self._is_oom or cgroups.oom_kills(self._group) > 0
        # Kubernetes kills the whole container on an OOM kill (memory.oom.group), so the exit code is never 0.
        code = _KILLED if self._code is None or (is_oom and self._code == 0) else self._code
        reason = "OOMKilled" if is_oom else "Error" if code else "Completed"
        message = termination_message(self._run, self._log, code)
        return {"startedAt": began or self._began, "exitCode": code, "reason": reason, "message": message}


def _opened_log(run: ShimRun) -> RotatingLog:
    logs = state_dir.open_folder("../../../logs", run.folder)
    os.makedirs(f"/proc/self/fd/{logs}/{run.spec['container']}", 0o700, exist_ok=True)
    here = state_dir.open_folder(run.spec["container"], logs)
    os.close(logs)
    limits = run.spec["log"]
    return RotatingLog(here, f"{run.spec['attempt']}.log", limits["maxBytes"], limits["maxFiles"])
