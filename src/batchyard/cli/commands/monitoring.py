"""The command `batchyard monitoring`: runs the installed Prometheus and Grafana for a platform, and configures both."""

import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import join, quote
from types import FrameType
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import typer
import yaml

from batchyard.base.instant import HOUR, Duration
from batchyard.cli import output
from batchyard.cli.background import require_running_platform
from batchyard.cli.options import DATA_DIR, DocumentFormat
from batchyard.cli.output import render_document
from batchyard.package_data import read_folder
from batchyard.server.clocks.wall import monotonic_seconds, wall_clock
from batchyard.server.platform.credentials import CA_FILE, CertificateAuthority, CredentialsError
from batchyard.server.platform.data_dir import LOOPBACK, process_start_time, write_private

# The generated files of Prometheus and Grafana, in the folder `monitoring` of a data directory.
#
# All files except the data of both programs are rewritten at each start, from `deploy/monitoring`.


_SHIPPED_MONITORING_FOLDER: Final = "deploy/monitoring"
#: The user of Prometheus on the platform; its group may only read /metrics and the health endpoints.
PROMETHEUS_USER: Final = "system:batchyard:prometheus"
PROMETHEUS_GROUP: Final = "system:monitoring"
_CERTIFICATE_LIFETIME: Final[Duration] = 365 * 24 * HOUR
_GRAFANA_SETTINGS: Final = """\
# Written by `batchyard monitoring` at each start.
[server]
http_addr = {address}
http_port = {port}

[paths]
data = {folder}/data
logs = {folder}/logs
plugins = {folder}/plugins
provisioning = {folder}/provisioning

[analytics]
reporting_enabled = false
check_for_updates = false
check_for_plugin_updates = false
"""


class MonitoringFolder(NamedTuple):
    """Paths of the files that `batchyard monitoring` generates or stores in a platform's data directory."""

    path: Path

    @property
    def state_file(self) -> Path:
        """The state file, which records the running Prometheus and Grafana processes."""
        return self.path / "monitoring.json"

    @property
    def prometheus_folder(self) -> Path:
        """The folder with Prometheus' configuration, rules, data and log."""
        return self.path / "prometheus"

    @property
    def prometheus_configuration_file(self) -> Path:
        """The configuration file of Prometheus."""
        return self.prometheus_folder / "prometheus.yml"

    @property
    def grafana_folder(self) -> Path:
        """The folder with Grafana's settings, dashboards, data and log."""
        return self.path / "grafana"

    @property
    def grafana_settings_file(self) -> Path:
        """The settings file of Grafana."""
        return self.grafana_folder / "grafana.ini"

    @property
    def provisioning(self) -> Path:
        """The folder that provisions Grafana's data source and dashboards."""
        return self.grafana_folder / "provisioning"

    @property
    def dashboards(self) -> Path:
        """The folder of the Grafana dashboards."""
        return self.grafana_folder / "dashboards"


def monitoring_folder(data_dir: Path) -> MonitoringFolder:
    """Return the paths of the monitoring folder of a data directory."""
    return MonitoringFolder(data_dir.resolve() / "monitoring")


def write_prometheus_files(folder: MonitoringFolder, data_dir: Path, url: str) -> None:
    """Write Prometheus' rules, its configuration for the platform at `url`, and for https a client certificate."""
    prometheus_folder = folder.prometheus_folder
    prometheus_folder.mkdir(parents=True, exist_ok=True)
    is_secure = url.startswith("https:")
    if is_secure:
        authority = CertificateAuthority(data_dir, wall_clock())
        client_identity = authority.issue_client_certificate(PROMETHEUS_USER, [PROMETHEUS_GROUP], _CERTIFICATE_LIFETIME)
        write_private(prometheus_folder / "ca.crt", (data_dir / CA_FILE).read_bytes())
        write_private(prometheus_folder / "client.crt", client_identity.certificate)
        write_private(prometheus_folder / "client.key", client_identity.key)
    rule_files = read_folder(f"{_SHIPPED_MONITORING_FOLDER}/prometheus", ".rules.yml")
    for name, text in rule_files.items():
        write_private(prometheus_folder / name, text.encode())
    text = read_folder(f"{_SHIPPED_MONITORING_FOLDER}/prometheus", "prometheus.yml")["prometheus.yml"]
    write_private(
        folder.prometheus_configuration_file, _dump_yaml(_prometheus_configuration(text, url, list(rule_files)))
    )


def _prometheus_configuration(text: str, url: str, rules: list[str]) -> Mapping[str, Any]:
    url_parts = urlsplit(url)
    configuration: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    configuration["rule_files"] = rules
    for job in configuration["scrape_configs"]:
        del job["authorization"], job["tls_config"]
        job["scheme"] = url_parts.scheme
        if url_parts.scheme == "https":
            job["tls_config"] = {"ca_file": "ca.crt", "cert_file": "client.crt", "key_file": "client.key"}
        job["static_configs"] = [{"targets": [url_parts.netloc]}]
    return configuration


def write_grafana_files(folder: MonitoringFolder, prometheus: str, port: int) -> None:
    """Write Grafana's settings, dashboards and data source; `prometheus` is the URL of the data source."""
    folder.dashboards.mkdir(parents=True, exist_ok=True)
    for kind in ("datasources", "dashboards"):
        (folder.provisioning / kind).mkdir(parents=True, exist_ok=True)
        for name, text in read_folder(f"{_SHIPPED_MONITORING_FOLDER}/grafana/provisioning/{kind}", ".yml").items():
            document: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
            for source in document.get("datasources", ()):
                source["url"] = prometheus
            for provider in document.get("providers", ()):
                provider["options"]["path"] = str(folder.dashboards)
            write_private(folder.provisioning / kind / name, _dump_yaml(document))
    for name, text in read_folder(f"{_SHIPPED_MONITORING_FOLDER}/grafana/dashboards", ".json").items():
        write_private(folder.dashboards / name, text.encode())
    settings = _GRAFANA_SETTINGS.format(address=LOOPBACK, port=port, folder=folder.grafana_folder)
    write_private(folder.grafana_settings_file, settings.encode())


def _dump_yaml(document: Mapping[str, Any]) -> bytes:
    file_header = "# Written by `batchyard monitoring` at each start.\n"
    return (file_header + yaml.safe_dump(document, sort_keys=False)).encode()


# Local programs that serve HTTP: start, readiness check, termination, and the state file of running processes.


#: The time limits for a program to become ready, and to end after SIGTERM.
READY_TIMEOUT: Final = 60  # seconds
END_TIMEOUT: Final = 30  # seconds
_READY_POLL_INTERVAL: Final = 0.1  # seconds
_READY_REQUEST_TIMEOUT: Final = 5  # seconds
_LOG_TAIL_LINES: Final = 4  # lines of a log


class ProgramError(Exception):
    """Prometheus or Grafana failed; the message has the reason and the remedy."""


class HttpProgram(NamedTuple):
    """Prometheus or Grafana: its command line, its port, the URL path that reports readiness, and its log file."""

    #: The name in messages.
    name: str
    command: Sequence[str]
    port: int
    #: The URL path that returns status 200 once the program is ready.
    ready_path: str
    log: Path

    @property
    def url(self) -> str:
        """The URL at which the program serves HTTP."""
        return url_of(self.port)


class ServedProcess(NamedTuple):
    """A running process that serves HTTP: its pid, URL and start time."""

    pid: int
    url: str
    #: The start time of the process as recorded by the kernel.
    began: str


def url_of(port: int) -> str:
    """Return the URL of a port on the loopback address."""
    return f"http://{LOOPBACK}:{port}"


def find_free_port(port: int, option: str) -> int:
    """Return `port`, or any free port for 0; raise ProgramError, which names `option`, if the port cannot be used."""
    try:
        with socket.create_server((LOOPBACK, port)) as server_socket:
            bound_port: int = server_socket.getsockname()[1]
            return bound_port
    except OSError as error:
        problem = f"cannot use port {port} on {LOOPBACK}: {error.strerror}"
        raise ProgramError(f"{problem}; choose another with {option} N, or 0 for any free port") from error


def start_program(program: HttpProgram) -> "subprocess.Popen[bytes]":
    """Start Prometheus or Grafana in its own session, so that Ctrl-C does not reach the process."""
    with program.log.open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - Prometheus or Grafana, with fixed arguments
            program.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def wait_until_ready(
    program: HttpProgram, process: "subprocess.Popen[bytes]", timeout_seconds: float = READY_TIMEOUT
) -> None:
    """Wait until the program reports readiness; raise ProgramError if its process ends or is not ready in time."""
    deadline = monotonic_seconds() + timeout_seconds
    while (remaining_seconds := deadline - monotonic_seconds()) > 0:
        if _is_program_ready(program, min(remaining_seconds, _READY_REQUEST_TIMEOUT)):
            return
        try:
            process.wait(_READY_POLL_INTERVAL)
        except subprocess.TimeoutExpired:
            continue
        raise make_ended_error(program, process.returncode)
    raise ProgramError(f"{program.name} was not ready within {timeout_seconds:g} s; read its log {program.log}")


def make_ended_error(program: HttpProgram, exit_code: int) -> ProgramError:
    """Return the error for a program that ended unexpectedly, with its last log lines."""
    lines = program.log.read_text("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
    message = "".join(f"\n  {line}" for line in lines)
    return ProgramError(f"{program.name} ended with exit code {exit_code}; the end of its log {program.log}:{message}")


def _is_program_ready(program: HttpProgram, timeout_seconds: float) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, program.port, timeout=timeout_seconds)
    try:
        connection.request("GET", program.ready_path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to a process; kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def served_process(process: "subprocess.Popen[bytes]", program: HttpProgram) -> ServedProcess:
    """Return the state file's record of a running process: its pid, URL and start time."""
    return ServedProcess(process.pid, program.url, process_start_time(process.pid))


def write_served_processes(state: Path, processes: Mapping[str, ServedProcess]) -> None:
    """Write the state file, which records the running processes by program name."""
    write_private(state, json.dumps({name: process._asdict() for name, process in processes.items()}).encode())


def read_served_processes(state: Path) -> Mapping[str, ServedProcess]:
    """Return the recorded processes that still run, by program name; empty without a valid state file."""
    try:
        rows: Mapping[str, Mapping[str, Any]] = json.loads(state.read_text("utf-8"))
        process_fields = {name: (int(row["pid"]), str(row["url"]), str(row["began"])) for name, row in rows.items()}
        processes = {name: ServedProcess(*values) for name, values in process_fields.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: process for name, process in processes.items() if not _has_process_ended(process, 0)}


def end_served_process(process: ServedProcess) -> bool:
    """Terminate a process that another command started; return whether it ended in time."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    return _has_process_ended(process, END_TIMEOUT)


def _has_process_ended(process: ServedProcess, timeout_seconds: float) -> bool:
    """Return whether a process ends within `timeout_seconds` or has already ended; a zombie counts as ended."""
    try:
        process_fd = os.pidfd_open(process.pid)
    except (ProcessLookupError, OverflowError, ValueError):
        return True
    try:
        is_reused_pid = process_start_time(process.pid) != process.began
        return is_reused_pid or bool(select.select([process_fd], [], [], timeout_seconds)[0])
    finally:
        os.close(process_fd)


_PROMETHEUS: Final = "Prometheus"
_GRAFANA: Final = "Grafana"
_WATCH_INTERVAL: Final = 0.5  # seconds
_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_PROMETHEUS_MISSING_MESSAGE: Final = (
    "batchyard: Prometheus is not installed; run apt-get install prometheus, "
    "or put the program `prometheus` of https://prometheus.io/download on the PATH"
)
#: Where Grafana's packages put its files.
_PACKAGED_GRAFANA_HOME: Final = "/usr/share/grafana"


class MonitoringRequest(NamedTuple):
    """The arguments of `batchyard monitoring`; port 0 selects any free port."""

    data_dir: Path
    port: int
    grafana_port: int
    #: Whether Grafana is started if it is installed.
    starts_grafana: bool
    detach: bool
    output_format: DocumentFormat | None


_ProgramProcesses = list[tuple[HttpProgram, "subprocess.Popen[bytes]"]]


def start_monitoring(request: MonitoringRequest) -> None:
    """Start Prometheus and, if requested and installed, Grafana, with new configuration files.

    Returns after a termination signal, or with `detach` once the programs are ready. The command exits with 1 if one of
    the programs cannot be started or ends.
    """
    platform_process = require_running_platform(request.data_dir)
    prometheus_path = shutil.which("prometheus")
    if prometheus_path is None:
        output.fail(_PROMETHEUS_MISSING_MESSAGE)
    folder = monitoring_folder(request.data_dir)
    _fail_if_running(folder, request.data_dir)
    os.umask(0o077)
    try:
        port = find_free_port(request.port, "--port")
        grafana_port = request.grafana_port
        if _starts_grafana(request):
            grafana_port = find_free_port(grafana_port, "--grafana-port")
        write_prometheus_files(folder, request.data_dir, platform_process.url)
        write_grafana_files(folder, url_of(port), grafana_port)
        programs = [_prometheus_program(prometheus_path, folder, port)]
        programs += [_grafana_http_program(folder, grafana_port)] if _starts_grafana(request) else []
        _run_programs(programs, folder, platform_process.url, request)
    except (ProgramError, CredentialsError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"batchyard: {error.filename or folder.path}: {error.strerror}"
        output.fail(f"{message}; check its permissions and the free disk space")


def end_monitoring(data_dir: Path) -> None:
    """End the Prometheus and Grafana that another `batchyard monitoring` started; exit with 1 on failure."""
    folder = monitoring_folder(data_dir)
    processes = read_served_processes(folder.state_file)
    if not processes:
        remedy = "start it with `batchyard monitoring`, or set its --data-dir"
        output.fail(f"batchyard: no monitoring runs in {data_dir}; {remedy}")
    for name, process in processes.items():
        if not end_served_process(process):
            output.fail(f"batchyard: {name}, pid {process.pid}, did not end; kill it with: kill -9 {process.pid}")
        output.report_line(f"batchyard: {name} at {process.url} has ended; its data is kept in {folder.path}")
    folder.state_file.unlink(missing_ok=True)


def _fail_if_running(folder: MonitoringFolder, data_dir: Path) -> None:
    for name, process in read_served_processes(folder.state_file).items():
        message = f"batchyard: {name} of {data_dir} already runs, pid {process.pid}, {process.url}"
        output.fail(f"{message}; end it with: batchyard monitoring --end --data-dir {quote(str(data_dir))}")


def _prometheus_program(program_path: str, folder: MonitoringFolder, port: int) -> HttpProgram:
    data_folder, listen_address = folder.prometheus_folder / "data", f"{LOOPBACK}:{port}"
    options = {
        "config.file": folder.prometheus_configuration_file,
        "storage.tsdb.path": data_folder,
        "web.listen-address": listen_address,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return HttpProgram(
        _PROMETHEUS, [program_path, *arguments], port, "/-/ready", folder.prometheus_folder / "prometheus.log"
    )


def _starts_grafana(request: MonitoringRequest) -> bool:
    return request.starts_grafana and bool(_grafana_program_command())


def _grafana_program_command() -> Sequence[str]:
    if (program_path := shutil.which("grafana")) is not None:
        return [program_path, "server"]
    old_program_path = shutil.which("grafana-server")
    return [] if old_program_path is None else [old_program_path]


def _grafana_http_program(folder: MonitoringFolder, port: int) -> HttpProgram:
    return HttpProgram(_GRAFANA, _grafana_command(folder), port, "/api/health", folder.grafana_folder / "grafana.log")


def _grafana_command(folder: MonitoringFolder) -> list[str]:
    program = _grafana_program_command() or ("grafana", "server")
    return [*program, f"--homepath={_grafana_home(program[0])}", f"--config={folder.grafana_settings_file}"]


def _grafana_home(program: str) -> Path:
    archive_folder = Path(program).resolve().parents[1] if "/" in program else Path(_PACKAGED_GRAFANA_HOME)
    return archive_folder if (archive_folder / "conf" / "defaults.ini").is_file() else Path(_PACKAGED_GRAFANA_HOME)


def _run_programs(
    programs: Sequence[HttpProgram], folder: MonitoringFolder, platform: str, request: MonitoringRequest
) -> None:
    with _end_on_signal(), _end_processes_on_exit(folder, request) as processes:
        for program in programs:
            process = start_program(program)
            processes.append((program, process))
            wait_until_ready(program, process)
            write_served_processes(
                folder.state_file,
                {
                    started_program.name: served_process(started_process, started_program)
                    for started_program, started_process in processes
                },
            )
        _print_result(_monitoring_document(processes, folder, platform), request)
        if not request.detach:
            _wait_until_one_ends(processes)


class _TerminationRequested(BaseException):
    """Raised by the signal handler to end the command after SIGINT or SIGTERM."""


@contextmanager
def _end_on_signal() -> Iterator[None]:
    """End the `with` block at SIGINT or SIGTERM, so that the command ends in order, with exit code 0."""

    def handle_signal(_signal: int, _frame: FrameType | None) -> None:
        for number in _END_SIGNALS:  # ignore further signals while the programs end
            signal.signal(number, signal.SIG_IGN)
        raise _TerminationRequested

    previous_handlers = {number: signal.signal(number, handle_signal) for number in _END_SIGNALS}
    try:
        yield
    except _TerminationRequested:
        output.report_line("batchyard: monitoring has ended; its data is kept")
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def _end_processes_on_exit(folder: MonitoringFolder, request: MonitoringRequest) -> Iterator[_ProgramProcesses]:
    """Terminate the started processes at the end of the `with` block; with `detach`, only if the block fails."""
    processes: _ProgramProcesses = []
    keeps_running = False
    try:
        yield processes
        keeps_running = request.detach
    finally:
        if not keeps_running:
            for _, process in reversed(processes):
                end_process(process)
            folder.state_file.unlink(missing_ok=True)


def _wait_until_one_ends(processes: _ProgramProcesses) -> None:
    while True:
        for program, process in processes:
            try:
                process.wait(_WATCH_INTERVAL)
            except subprocess.TimeoutExpired:
                continue
            raise make_ended_error(program, process.returncode)


def _monitoring_document(processes: _ProgramProcesses, folder: MonitoringFolder, platform: str) -> Mapping[str, Any]:
    program_by_name = {program.name: (program, process.pid) for program, process in processes}
    prometheus, pid = program_by_name[_PROMETHEUS]
    grafana = program_by_name.get(_GRAFANA)
    return {
        "platform": platform,
        "prometheus": {
            "url": prometheus.url,
            "pid": pid,
            "configuration": str(folder.prometheus_configuration_file),
            "data": str(folder.prometheus_folder / "data"),
            "log": str(prometheus.log),
        },
        "grafana": {
            "url": None if grafana is None else grafana[0].url,
            "pid": None if grafana is None else grafana[1],
            "configuration": str(folder.grafana_settings_file),
            "provisioning": str(folder.provisioning),
            "dashboards": str(folder.dashboards),
            "command": _grafana_command(folder),
        },
    }


def _print_result(document: Mapping[str, Any], request: MonitoringRequest) -> None:
    prometheus, grafana = document["prometheus"], document["grafana"]
    message = f"batchyard: Prometheus listening on {prometheus['url']}, pid {prometheus['pid']}"
    output.report_line(f"{message}, scrapes {document['platform']}; its data is in {prometheus['data']}")
    if grafana["url"] is not None:
        url, pid = grafana["url"], grafana["pid"]
        output.report_line(f"batchyard: Grafana listening on {url}, pid {pid}; log in as admin, admin")
    else:
        grafana_state = "is not started" if _grafana_program_command() else "is not installed"
        output.report_line(
            f"batchyard: Grafana {grafana_state}; this command starts it with the data source and dashboards:"
        )
        output.report_line(f"  {join(grafana['command'])}")
    if request.detach:
        folder = quote(str(request.data_dir))
        output.report_line(
            f"batchyard: running in the background; end it with: batchyard monitoring --end --data-dir {folder}"
        )
    if request.output_format is not None:
        output.write(render_document(document, request.output_format))


def monitoring(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="The platform's data directory.")
    ] = DATA_DIR,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The port of Prometheus; 0: any free port.")
    ] = 9090,
    grafana_port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The port of Grafana; 0: any free port.")
    ] = 3000,
    grafana: Annotated[
        bool, typer.Option("--grafana/--no-grafana", help="Also start Grafana, if it is installed.")
    ] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return once they are ready.")
    ] = False,
    end: Annotated[bool, typer.Option("--end", help="End the programs in the background.")] = False,
    output: Annotated[
        DocumentFormat | None, typer.Option("--output", "-o", help="Print URLs, folders and commands in this format.")
    ] = None,
) -> None:
    """Run the installed Prometheus and Grafana for a platform until a termination signal arrives."""
    if end and detach:
        raise typer.BadParameter("--end and --detach exclude each other: remove one of them")

    if end:
        end_monitoring(data_dir)
        return
    start_monitoring(MonitoringRequest(data_dir, port, grafana_port, grafana, detach, output))
