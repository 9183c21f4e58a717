"""Container engine client: runs the podman or docker command for images and containers."""

import json
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from batchyard.shim import linux, stop
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.cgroups import CgroupPaths
from batchyard.shim.run import CommandResult, format_start_error, run_command

PODMAN, DOCKER = "podman", "docker"
_NODE_LABEL = "batchyard.node"
RUN_LABEL = "batchyard.run"
_COMMAND_SECONDS = 60.0
_PULL_SECONDS = 3600.0
_REMOVAL_ATTEMPTS = 3
#: The engines' messages for a missing image.
_MISSING_IMAGE_MESSAGES = ("No such image", "image not known", "no such image")
#: docker's message for a missing container.
_MISSING_CONTAINER_MESSAGE = "No such container"


class ContainerEngine(NamedTuple):
    """A usable container engine (podman or docker) of this machine, and how its command is invoked."""

    #: `podman` or `docker`.
    kind: str
    program: str
    version: str
    #: Global options that precede each command.
    options: tuple[str, ...]
    environment: Mapping[str, str]
    #: The id of the node directory, with which this node's containers are labeled.
    node_id: str
    #: Whether the engine runs containers in pod sandboxes; otherwise it only provides images.
    runs_containers: bool

    def run_command(self, *arguments: str, seconds: float = _COMMAND_SECONDS) -> CommandResult:
        """Run an engine command such as `ps --all`, given as arguments, for at most `seconds`; return the result."""
        return run_command([self.program, *self.options, *arguments], self.environment, seconds)

    def label_options(self, path: str) -> list[str]:
        """Return the options that label a container with the node's id and `path`, its path in the node directory."""
        return ["--label", f"{_NODE_LABEL}={self.node_id}", "--label", f"{RUN_LABEL}={path}"]

    def container_name(self, path: str) -> str:
        """Return the engine's name for a container, derived from `path`, its path in the node directory."""
        _, uid, kind, container, attempt = path.split("/")
        kind_infix = "" if kind == "runs" else "image-"
        return f"batchyard-{self.node_id}-{uid}-{kind_infix}{container}-{attempt}"

    def remove_containers(self, *names: str) -> None:
        """Kill and remove containers of the engine by name, in at most three attempts; failures are ignored."""
        podman_options = ["--ignore", "--time", "0"] if self.kind == PODMAN else []
        for _ in range(_REMOVAL_ATTEMPTS if names else 0):
            result = self.run_command("rm", "--force", *podman_options, "--volumes", *names)
            if result.exit_code == 0 or (
                result.exit_code and all(_MISSING_CONTAINER_MESSAGE in line for line in result.errors.splitlines())
            ):
                return

    def list_containers(self) -> dict[str, str]:
        """Return the engine's ids of this node's containers, by their paths in the node directory."""
        label_template = f'index .Labels "{RUN_LABEL}"' if self.kind == PODMAN else f'.Label "{RUN_LABEL}"'
        fields = f"{{{{{label_template}}}}} {{{{.ID}}}}"
        result = self.run_command("ps", "--all", "--filter", f"label={_NODE_LABEL}={self.node_id}", "--format", fields)
        id_and_path_pairs = (line.split() for line in result.output.splitlines())
        return {entry[0]: entry[1] for entry in id_and_path_pairs if len(entry) == 2 and entry[0].count("/") == 4}

    def inspect_image(self, reference: str) -> dict[str, Any] | None:
        """Return an image's metadata; None if the engine lacks it. Raises OSError if the engine fails."""
        result = self.run_command("image", "inspect", reference)
        if result.exit_code != 0:
            if result.exit_code is not None and any(text in result.errors for text in _MISSING_IMAGE_MESSAGES):
                return None
            raise OSError(extract_error_message(result.errors))
        return _parse_image(json.loads(result.output)[0])

    def pull(self, reference: str, credentials: Mapping[str, Any], config_folder: str) -> CommandResult:
        """Pull an image with registry credentials (an auth.json document); return the result of the engine's command.

        `config_folder` is a directory in which docker's configuration file can be created.
        """
        if not credentials:
            return self.run_command("pull", "--quiet", reference, seconds=_PULL_SECONDS)
        auth_fd = os.memfd_create("auth", 0)  # not visible to other users of the machine
        os.write(auth_fd, json.dumps(credentials).encode())
        os.lseek(auth_fd, 0, os.SEEK_SET)
        auth_path = f"/proc/self/fd/{auth_fd}"
        try:
            if self.kind == PODMAN:
                return self.run_command("pull", "--quiet", "--authfile", auth_path, reference, seconds=_PULL_SECONDS)
            os.symlink(auth_path, f"{config_folder}/config.json")
            authenticated_engine = self._replace(environment={**self.environment, "DOCKER_CONFIG": config_folder})
            return authenticated_engine.run_command("pull", "--quiet", reference, seconds=_PULL_SECONDS)
        finally:
            os.close(auth_fd)


def extract_error_message(text: str) -> str:
    """Return the error message in a container engine's error output: its last line, without the prefix `Error: `.

    Lines that only refer to the help are skipped. If no line remains, return a message that no reason was reported.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("See '")]
    return lines[-1].removeprefix("Error: ") if lines else "the container engine reported no reason"


def format_entrypoint(argv: list[str]) -> str:
    """Format a command as JSON for the engine option `--entrypoint`."""
    return json.dumps(argv)


def find_program(name: str) -> str | None:
    """Return the path of an executable program in PATH; None if it is not installed."""
    paths = (f"{folder}/{name}" for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _parse_image(image: Mapping[str, Any]) -> dict[str, Any]:
    image_config = image.get("Config") or {}
    repo_tags, repo_digests = image.get("RepoTags") or (), image.get("RepoDigests") or ()
    hex_digest = image["Id"].removeprefix("sha256:")
    return {
        "id": image["Id"],
        "name": repo_tags[0] if repo_tags else "",
        "digest": repo_digests[0] if repo_digests else f"sha256:{hex_digest}",
        "size": image.get("Size") or 0,
        "entrypoint": image_config.get("Entrypoint") or [],
        "command": image_config.get("Cmd") or [],
        "environment": dict(pair.split("=", 1) for pair in image_config.get("Env") or () if "=" in pair),
        "workingDir": image_config.get("WorkingDir") or "",
        "user": image_config.get("User") or "",
        "stopSignal": image_config.get("StopSignal") or "",
    }


# A container that an engine runs, and its subreaper: the parent process that starts the engine and cleans up.
#
# The subreaper is a child of the shim. It adopts the engine's monitor process (conmon), and the container itself if the
# monitor is killed. It reports to the shim in the format of bubblewrap's `--json-status-fd`: `child-pid`, then
# `exit-code` with `oom`, or `error` if the container could not be started.


_START_SECONDS = 120.0
#: How long the engine may take to clean up after a container.
_CLEANUP_SECONDS = 30.0
_KILLED_EXIT_CODE = 128 + signal.SIGKILL
#: The engine's exit codes if it did not start the container. With a terminal, other codes may be the container's.
_NOT_STARTED_CODES = (125, 126, 127)
_POLL_SECONDS = 0.005
#: Command lines of a container's first process before it executes the command.
_RUNTIME_SETUP_PREFIXES = (b"/proc/self/exe\0init\0", b"runc\0init\0", b"/proc/self/fd/")


class EngineContainer(NamedTuple):
    """A container that podman runs for a shim: its name, the arguments of `podman run`, and its control group."""

    engine: ContainerEngine
    name: str
    #: The arguments of `podman run`.
    options: Sequence[str]
    #: A descriptor of the run's directory, where the engine writes the pid file.
    run_fd: int
    #: Whether the container has a terminal, whose data the engine forwards.
    has_terminal: bool
    #: The parent control group of the container's own group.
    group: CgroupPaths


def run_engine_subreaper(container: EngineContainer, status_fd: int) -> NoReturn:
    """Start a podman container, report its start and end on the pipe `status_fd`, clean up, and exit.

    This process is the subreaper: it adopts the container's processes, and ends when the shim ends.
    """
    linux.adopt_orphans()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    oom_eventfd = cgroups.open_oom_eventfd(container.group)
    engine_pid = _start_engine_command(container)
    signal.signal(signal.SIGTERM, lambda *_: _remove_container_after_shim_end(container, engine_pid))
    linux.die_with_parent(signal.SIGTERM)
    exit_codes: dict[int, int] = {}
    pid = _wait_for_command(container, engine_pid, exit_codes)
    if pid is None:
        if engine_pid in exit_codes:  # the engine is cleaning up: interrupting it would leave more to remove
            _reap_children(exit_codes)
        container.engine.remove_containers(container.name)
        _report_status(
            status_fd,
            **(
                {}
                if exit_codes.get(engine_pid)
                else {"error": format_start_error("the container engine did not start the container")}
            ),
        )
        os._exit(1)
    _report_status(status_fd, **{"child-pid": pid})
    with suppress(ProcessLookupError):
        _wait_for_process(os.pidfd_open(pid))
    _reap_children(exit_codes)
    exit_code, is_oom = _read_exit_status(container, exit_codes.get(pid))
    container.engine.remove_containers(container.name)
    _report_status(status_fd, **{"exit-code": exit_code, "oom": is_oom or _was_oom_notified(oom_eventfd)})
    stop.kill_descendants()
    os._exit(0)


def _start_engine_command(container: EngineContainer) -> int:
    engine = container.engine
    engine_pid = os.fork()
    if engine_pid == 0:
        try:
            linux.reset_signal_handlers()
            argv = [engine.program, *engine.options, "run", *container.options]
            os.execve(engine.program, argv, dict(engine.environment))
        finally:
            os._exit(127)
    for fd in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), fd)
    return engine_pid


def _wait_for_command(container: EngineContainer, engine_pid: int, exit_codes: dict[int, int]) -> int | None:
    deadline = linux.monotonic() + _START_SECONDS
    while linux.monotonic() < deadline:
        _reap_exited_children(exit_codes)
        pid = _read_container_pid(container.run_fd)
        exit_code = exit_codes.get(engine_pid)
        if exit_code is not None and (
            exit_code in _NOT_STARTED_CODES or not (container.has_terminal or exit_code == 0)
        ):
            return None
        if (container.has_terminal or exit_code == 0) and pid is not None and _is_command_executed(pid):
            return pid
        select.select([], [], [], _POLL_SECONDS)
    return None


def _read_container_pid(run_fd: int) -> int | None:
    with suppress(OSError, ValueError), open(os.open("pid", os.O_RDONLY, dir_fd=run_fd), encoding="utf-8") as file:
        return int(file.read())
    return None


def _is_command_executed(pid: int) -> bool:
    """Return whether process `pid` executes the container's command (or has ended), not the OCI runtime's setup."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return True
    return bool(line) and not line.startswith(_RUNTIME_SETUP_PREFIXES)


def _wait_for_process(process_fd: int) -> None:
    select.select([process_fd], [], [])
    os.close(process_fd)


def _reap_children(exit_codes: dict[int, int]) -> None:
    deadline = linux.monotonic() + _CLEANUP_SECONDS
    while _reap_exited_children(exit_codes) and linux.monotonic() < deadline:
        select.select([], [], [], _POLL_SECONDS)


def _reap_exited_children(exit_codes: dict[int, int]) -> bool:
    """Record the exit codes of ended children in `exit_codes`, by pid; return whether other children still run."""
    try:
        while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
            exit_codes[reaped[0]] = os.waitstatus_to_exitcode(reaped[1])
    except ChildProcessError:
        return False
    return True


def _read_exit_status(container: EngineContainer, reaped_exit_code: int | None) -> tuple[int, bool]:
    output_format = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
    fields = container.engine.run_command(
        "container", "inspect", "--format", output_format, container.name
    ).output.split()
    is_oom = fields[-1:] == ["true"]
    if reaped_exit_code is not None:  # the engine's monitor was killed
        return (128 - reaped_exit_code if reaped_exit_code < 0 else reaped_exit_code), is_oom
    if fields[:1] in (["exited"], ["stopped"]):
        return int(fields[1]) % 256, is_oom
    return _KILLED_EXIT_CODE, is_oom


def _was_oom_notified(oom_eventfd: int | None) -> bool:
    with suppress(BlockingIOError):
        return oom_eventfd is not None and os.eventfd_read(oom_eventfd) > 0
    return False


def _remove_container_after_shim_end(container: EngineContainer, engine_pid: int) -> NoReturn:
    """After the shim was killed: kill podman and all descendants, remove the container, and exit."""
    with suppress(ProcessLookupError):
        os.kill(engine_pid, signal.SIGKILL)
    container.engine.remove_containers(container.name)
    stop.kill_descendants()
    os._exit(1)


def _report_status(status_fd: int, **status_fields: object) -> None:
    os.write(status_fd, json.dumps(status_fields).encode() + b"\n")
