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
from batchyard.shim import run as error_texts
from batchyard.shim.event_loop import ShimEventLoop
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.capabilities import NodeIsolation
from batchyard.shim.logs import LogLineSplitter, RotatingLog
from batchyard.shim.probes import ContainerHealth, ProbeCallbacks, ProbeOutcome, ProbeWorkers
from batchyard.shim.run import ShimRun
from batchyard.shim.stop import ContainerTermination, parse_stop_signal, signal_first_process, signal_process_group

# The shim sends the output of a container to attached clients in addition to its log.
#
# A client connects to the unix socket (SEQPACKET) `attach` in the run's directory. Its message lists the outputs, with
# a descriptor to write to for each. The reply is `started`, with a descriptor of the container's terminal if it has
# one, to which the client writes. Without a terminal the client writes to the pipe `stdin` in the directory, and sends
# `end_input` to close the container's input. As with containerd, a slow client blocks the container's output.


_REQUEST_BYTES_MAX = 4096
_SOCKET_BACKLOG = 16


class AttachedClients:
    """The clients attached to one container (kubectl attach); `set_reading` pauses or resumes reading an output."""

    def __init__(self, loop: ShimEventLoop, run_fd: int, set_reading: Callable[[str, bool], None]) -> None:
        self._loop = loop
        self._set_reading = set_reading
        self._terminal: int | None = None
        self._input: int | None = None
        self._attachments: list[_AttachedClient] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(state_dir.socket_address(run_fd, "attach"))

    def start_accepting(self, terminal: int | None, stdin: int | None) -> None:
        """Start to accept attach clients, which can write to the container's terminal or stdin pipe, if any."""
        self._terminal, self._input = terminal, stdin
        self._socket.listen(_SOCKET_BACKLOG)
        self._loop.when_readable(self._socket.fileno(), self._accept_client)

    def send_output(self, name: str, data: bytes) -> None:
        """Send data of stdout or stderr (`name`) to the attached clients that requested this output."""
        for attachment in list(self._attachments):
            attachment.send_output(name, data)

    def close_output(self, name: str) -> None:
        """Close stdout or stderr (`name`) for all attached clients."""
        for attachment in list(self._attachments):
            attachment.close_output(name)

    def update_reading(self, name: str) -> None:
        """Pause reading stdout or stderr (`name`) while a client has unsent data of that output; else resume it."""
        self._set_reading(name, not any(attachment.has_pending_data(name) for attachment in self._attachments))

    def _accept_client(self) -> None:
        connection, _ = self._socket.accept()
        message, fds = state_dir.receive_fds(connection, _REQUEST_BYTES_MAX, 2)
        try:
            names = json.loads(message)["outputs"]
        except (ValueError, KeyError, TypeError):
            names = []
        if len(names) != len(fds):
            connection.close()
            return
        with suppress(OSError):
            socket.send_fds(connection, [b'{"started": true}'], [] if self._terminal is None else [self._terminal])
        attached_client = _AttachedClient(self, self._loop, dict(zip(names, fds, strict=True)))
        self._attachments.append(attached_client)
        self._loop.when_readable(connection.fileno(), partial(self._handle_message, connection, attached_client))

    def _handle_message(self, connection: socket.socket, attached_client: "_AttachedClient") -> None:
        message = b""
        with suppress(OSError):
            message = connection.recv(_REQUEST_BYTES_MAX)
        if b"end_input" in message:
            if self._input is not None:
                os.close(self._input)
                self._input = None
        elif not message:
            self._loop.unregister(connection.fileno())
            connection.close()
            self._attachments.remove(attached_client)
            attached_client.close()


class _AttachedClient:
    def __init__(self, clients: AttachedClients, loop: ShimEventLoop, fds: dict[str, int]) -> None:
        self._clients = clients
        self._loop = loop
        self._fds = fds
        self._pending: dict[str, bytes] = {}
        for fd in fds.values():
            os.set_blocking(fd, False)

    def send_output(self, name: str, data: bytes) -> None:
        if name in self._fds:
            self._pending[name] = self._pending.get(name, b"") + data
            self._send_pending_data(name)

    def has_pending_data(self, name: str) -> bool:
        return bool(self._pending.get(name))

    def close_output(self, name: str) -> None:
        fd = self._fds.pop(name, None)
        self._pending.pop(name, None)
        if fd is not None:
            self._loop.unregister(fd)
            os.close(fd)

    def close(self) -> None:
        for name in list(self._fds):
            self.close_output(name)
            self._clients.update_reading(name)

    def _send_pending_data(self, name: str) -> None:
        fd, pending_data = self._fds[name], self._pending[name]
        try:
            self._pending[name] = pending_data[os.write(fd, pending_data) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close_output(name)
        self._loop.unregister(fd)
        if self.has_pending_data(name):
            self._loop.when_writable(fd, partial(self._send_pending_data, name))
        self._clients.update_reading(name)


# The state of a container is written to disk immediately. The server is notified as soon as it accepts the message.


#: How long a notification is retried while the server does not accept it.
_ANNOUNCE_SECONDS = 1.0
_ANNOUNCE_RETRY_SECONDS = 0.02
_WARNINGS_MAX = 16


class StateReporter:
    """Reports a container's state: writes state.json, and notifies batchyard's server."""

    def __init__(self, run: ShimRun, loop: ShimEventLoop) -> None:
        self._run = run
        self._loop = loop
        self._warning_count = 0
        self._warnings: list[dict[str, object]] = []

    def report_state(self, **changed_fields: object) -> None:
        """Write changed fields of the container's state, and notify batchyard's server without waiting for it."""
        self.write_state(**changed_fields)
        self._announce_state(linux.monotonic() + _ANNOUNCE_SECONDS)

    def report_final(self, **changed_fields: object) -> None:
        """Write the container's final state; wait up to a second until batchyard's server accepts the notification."""
        self.write_state(**changed_fields)
        self._run.announce(_ANNOUNCE_SECONDS)

    def warn(self, reason: str, message: str) -> None:
        """Report a warning, which the kubelet records as an Event of the pod; the state holds the last 16 warnings."""
        self._warning_count += 1
        warning: dict[str, object] = {"n": self._warning_count, "reason": reason, "message": message}
        self._warnings = [*self._warnings, warning][-_WARNINGS_MAX:]
        self.report_state(warnings=self._warnings)

    def write_state(self, **changed_fields: object) -> None:
        """Write changed fields of the container's state; on failure, retry every second while its directory exists."""
        while not self._run.write_state(**changed_fields) and not self._run.is_gone():
            signal.sigtimedwait([], 1.0)

    def _announce_state(self, deadline: float) -> None:
        if not self._run.announce() and linux.monotonic() < deadline:
            self._loop.call_later(_ANNOUNCE_RETRY_SECONDS, partial(self._announce_state, deadline))


# Source: pkg/kubelet/kuberuntime/kuberuntime_container.go.


_MESSAGE_FILE_BYTES = 4096
_MESSAGE_LOG_BYTES = 2048
_MESSAGE_LOG_LINES = 80


def read_termination_message(run: ShimRun, log: RotatingLog, exit_code: int) -> str:
    """Return a container's termination message: at most the last 4,096 bytes of the termination-message file.

    If it is empty, the policy is FallbackToLogsOnError, and the container failed: at most the last 80 lines and 2,048
    bytes of the log.
    """
    text = _read_termination_message_file(run) if run.spec["terminationMessagePath"] else b""
    falls_back_to_log = run.spec["terminationMessagePolicy"] == "FallbackToLogsOnError" and exit_code != 0
    if not text and falls_back_to_log:
        text = log.tail(_MESSAGE_LOG_LINES, _MESSAGE_LOG_BYTES)
    return text.decode(errors="replace")


def _read_termination_message_file(run: ShimRun) -> bytes:
    try:
        fd = os.open("termination-log", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=run.folder_fd)
    except OSError:
        return b""
    try:
        return os.pread(fd, _MESSAGE_FILE_BYTES, max(0, os.fstat(fd).st_size - _MESSAGE_FILE_BYTES))
    finally:
        os.close(fd)


_FOLDER_CHECK_SECONDS = 2.0
_OUTPUT_READ_BYTES = 16 * 1024
#: How long the outputs are read after the command has ended, while its remaining processes are killed.
_OUTPUT_DRAIN_SECONDS = 1.0
_FIRST_START_POLL_SECONDS = 0.001
#: How often and at which interval OOM kills are counted after an out-of-memory notification, which comes first.
_OOM_POLLS, _OOM_POLL_SECONDS = 20, 0.01
_START_ERROR_EXIT_CODE = 128
_KILLED_CODE = 128 + signal.SIGKILL


def supervise_container(run: ShimRun, isolation: NodeIsolation) -> None:
    """Run a container as its shim, from the start of the command to its end."""
    ContainerShim(run, isolation).supervise()


class ContainerShim:
    """Supervises one container, from the start of its command to the end: log, probes, attached clients and state."""

    def __init__(self, run: ShimRun, isolation: NodeIsolation) -> None:
        self._run = run
        self._isolation = isolation
        self._loop = ShimEventLoop()
        self._reporter = StateReporter(run, self._loop)
        self._probe_workers = ProbeWorkers(run, self._loop)
        self._log = _open_log(run)
        self._group = launch.control_group_of(run)
        self._outputs: dict[int, LogLineSplitter] = {}
        self._attached_clients = AttachedClients(self._loop, run.folder_fd, self._set_output_reading)
        self._open_pipe_count = 0
        self._status_data = b""
        #: The wait status of the shim's child process, which is bubblewrap or the subreaper.
        self._wait_status = 0
        #: The first process of the container, and when its pid was reported.
        self._first_pid: int | None = None
        self._pid_reported_at = 0
        self._exit_code: int | None = None
        self._start_error: str | None = None
        self._is_oom = False
        self._has_no_children = False
        #: The probes; None until the command runs.
        self._health: ContainerHealth | None = None
        self._termination: ContainerTermination | None = None

    def supervise(self) -> None:
        """Run the container's command, and report its state until it has ended or failed to start."""
        self._reporter.write_state(keeper=os.getpid(), phase="Starting", warnings=[])
        self._loop.when_signalled(signal.SIGTERM, self._check_stop_request)
        self._loop.when_signalled(signal.SIGCHLD, self._reap_children)
        self._loop.call_later(_FOLDER_CHECK_SECONDS, self._stop_if_folder_removed)
        try:
            self._start_command()
        except OSError as failure:
            self._start_error = error_texts.format_start_error(str(failure))
        else:
            self._loop.run()
        self._report_end()

    def _start_command(self) -> None:
        process = launch.launch_container(self._run, self._isolation, self._group)
        self._launched_process = process
        self._open_pipe_count = 1 + len(process.outputs)
        for name, fd in process.outputs.items():
            self._outputs[fd] = LogLineSplitter(self._log, name)
            self._loop.when_readable(fd, partial(self._forward_output, fd, name))
        self._watch_for_oom()
        self._attached_clients.start_accepting(
            process.outputs["stdout"] if self._run.spec["tty"] else None, process.stdin
        )
        self._loop.when_readable(process.status_pipe, partial(self._read_status, process.status_pipe))

    def _watch_for_oom(self) -> None:
        """With cgroup v1, watch for OOM kills: the shim then kills the whole container, as cgroup v2 does itself."""
        oom_eventfd = cgroups.open_oom_eventfd(self._group)
        if oom_eventfd is not None:
            self._loop.when_readable(oom_eventfd, partial(self._check_oom, oom_eventfd, _OOM_POLLS))

    def _check_oom(self, oom_eventfd: int, polls_left: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(oom_eventfd)
        if cgroups.count_oom_kills(self._group):
            self._loop.unregister(oom_eventfd)
            self._kill_container()
        elif polls_left:
            self._loop.call_later(_OOM_POLL_SECONDS, partial(self._check_oom, oom_eventfd, polls_left - 1))

    def _kill_container(self) -> None:
        if self._first_pid is not None and self._exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self._first_pid, signal.SIGKILL)

    def _set_output_reading(self, name: str, is_reading: bool) -> None:
        fd = self._launched_process.outputs[name]
        if fd in self._outputs:
            self._loop.unregister(fd)
            if is_reading:
                self._loop.when_readable(fd, partial(self._forward_output, fd, name))

    def _forward_output(self, fd: int, name: str) -> None:
        try:
            data = os.read(fd, _OUTPUT_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if data:
            self._outputs[fd].feed(data)
            self._attached_clients.send_output(name, data)
        else:
            self._outputs.pop(fd).end()
            self._attached_clients.close_output(name)
            self._close_pipe(fd)

    def _close_pipe(self, fd: int) -> None:
        self._loop.unregister(fd)
        os.close(fd)
        self._open_pipe_count -= 1
        self._stop_loop_if_finished()

    def _read_status(self, status_fd: int) -> None:
        data = os.read(status_fd, 4096)
        if not data:
            self._close_pipe(status_fd)
        self._status_data += data
        *lines, self._status_data = self._status_data.split(b"\n")
        for line in lines:
            self._handle_status(json.loads(line))

    def _handle_status(self, status_line: dict[str, Any]) -> None:
        if "child-pid" in status_line:
            self._first_pid, self._pid_reported_at = status_line["child-pid"], linux.now()
            self._launched_process.allow_start(self._first_pid, self._run.spec["limits"]["pids"])
            self._await_command_start(_FIRST_START_POLL_SECONDS)
        self._exit_code = status_line.get("exit-code", self._exit_code)
        self._start_error = status_line.get("error", self._start_error)
        self._is_oom = status_line.get("oom", self._is_oom)

    def _await_command_start(self, interval: float) -> None:
        if self._has_no_children or self._first_pid is None or self._exit_code is not None:
            return
        in_bubblewrap = launch.runs_in_bubblewrap(self._run, self._isolation)
        if not in_bubblewrap or launch.has_command_started(self._launched_process.pid, self._first_pid):
            self._report_started(self._first_pid)
        else:
            self._loop.call_later(interval, partial(self._await_command_start, interval * 1.5))

    def _report_started(self, first_pid: int) -> None:
        container = launch.describe_container(self._run, self._isolation, first_pid, self._group)
        attempt = partial(self._probe_workers.start, container)
        hooks = self._run.spec["hooks"]
        callbacks = ProbeCallbacks(self._reporter.warn, self._report_failure, self._report_health)
        self._health = ContainerHealth(self._run.spec["probes"], self._loop, attempt, callbacks)
        signal_number = parse_stop_signal(self._run.spec.get("stopSignal") or "")
        send_stop_signal = partial(
            signal_first_process if launch.runs_in_engine(self._run) else signal_process_group, first_pid, signal_number
        )
        self._termination = ContainerTermination(first_pid, self._loop, hooks.get("preStop"), attempt, send_stop_signal)
        post_start_hook = hooks.get("postStart")
        has_no_hook = post_start_hook is None
        is_started, is_ready = has_no_hook and self._health.started, has_no_hook and self._health.ready
        self._reporter.report_state(
            phase="Running", pid=first_pid, startedAt=linux.now(), started=is_started, ready=is_ready
        )
        if has_no_hook:
            self._health.start_probes()
        else:
            attempt(post_start_hook, None, self._handle_hook_outcome)
        self._check_stop_request()

    def _handle_hook_outcome(self, outcome: ProbeOutcome) -> None:
        if outcome.result in {"success", "warning"} and self._health:
            self._report_health()
            self._health.start_probes()
        elif not self._has_no_children:
            self._reporter.warn("FailedPostStartHook", "PostStartHook failed")
            self._report_failure({"hook": "postStart", "message": outcome.text})

    def _report_failure(self, failure: Mapping[str, str]) -> None:
        self._reporter.report_state(failed=failure)

    def _report_health(self) -> None:
        if self._health:
            self._reporter.report_state(started=self._health.started, ready=self._health.ready)

    def _reap_children(self) -> None:
        try:
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self._launched_process.pid:
                    self._wait_status = reaped[1]
                    self._kill_descendants()
        except ChildProcessError:
            self._has_no_children = True
            self._loop.call_later(_OUTPUT_DRAIN_SECONDS, self._loop.stop)
            self._stop_loop_if_finished()

    def _kill_descendants(self) -> None:
        self._probe_workers.kill_attempts()
        for pid in stop.descendants_of(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _stop_loop_if_finished(self) -> None:
        if self._has_no_children and not self._open_pipe_count:
            self._loop.stop()

    def _check_stop_request(self) -> None:
        stop_request = self._run.read_stop_request()
        if stop_request and self._health and self._termination and self._exit_code is None:
            self._health.stop_for_termination()
            self._termination.request_stop(stop_request, self._reporter.warn)

    def _stop_if_folder_removed(self) -> None:
        if self._run.is_gone() and self._termination:
            self._termination.kill()
        self._loop.call_later(_FOLDER_CHECK_SECONDS, self._stop_if_folder_removed)

    def _report_end(self) -> None:
        for stream in self._outputs.values():
            stream.end()
        final_state = self._final_state()
        cgroups.remove_group(self._group, has_namesakes=launch.runs_in_engine(self._run))
        self._reporter.report_final(phase="Exited", finishedAt=linux.now(), started=False, ready=False, **final_state)
        state_dir.remove_tree(self._run.folder_fd, "root")
        if self._exit_code is None:
            launch.remove_engine_container(self._run, self._isolation)

    def _final_state(self) -> dict[str, object]:
        started_at = self._run.state.get("startedAt")
        if self._exit_code is None and not os.WIFSIGNALED(self._wait_status) and started_at is None:
            log_text = self._log.truncate().decode(errors="replace")
            parse_error = (
                error_texts.parse_engine_error
                if launch.runs_in_engine(self._run)
                else error_texts.parse_bubblewrap_error
            )
            message = self._start_error or error_texts.format_start_error(parse_error(log_text))
            return {"exitCode": _START_ERROR_EXIT_CODE, "reason": "StartError", "message": message}
        is_oom = self._is_oom or cgroups.count_oom_kills(self._group) > 0
        # Kubernetes kills the whole container on an OOM kill (memory.oom.group), so the exit code is never 0.
        exit_code = _KILLED_CODE if self._exit_code is None or (is_oom and self._exit_code == 0) else self._exit_code
        reason = "OOMKilled" if is_oom else "Error" if exit_code else "Completed"
        message = read_termination_message(self._run, self._log, exit_code)
        return {
            "startedAt": started_at or self._pid_reported_at,
            "exitCode": exit_code,
            "reason": reason,
            "message": message,
        }


def _open_log(run: ShimRun) -> RotatingLog:
    logs_fd = state_dir.open_folder("../../../logs", run.folder_fd)
    os.makedirs(f"/proc/self/fd/{logs_fd}/{run.spec['container']}", 0o700, exist_ok=True)
    folder_fd = state_dir.open_folder(run.spec["container"], logs_fd)
    os.close(logs_fd)
    log_limits = run.spec["log"]
    return RotatingLog(folder_fd, f"{run.spec['attempt']}.log", log_limits["maxBytes"], log_limits["maxFiles"])
