"""`batchyard monitoring`: starts and stops Prometheus and Grafana for a platform."""

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
from batchyard.cli.background import process_of
from batchyard.cli.options import DATA_DIR, DocumentFormat
from batchyard.cli.output import render_json, render_yaml
from batchyard.package_data import read_folder
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import AUTHORITY, CertificateAuthority, CredentialsError
from batchyard.server.platform.data_dir import LOOPBACK, beginning_of, write_private

# --- files ---
#
# The generated files of Prometheus and Grafana, in the folder `monitoring` of a data directory.
#
# All files except the programs' own data are rewritten at each start, from `deploy/monitoring`.


_SHIPPED: Final = "deploy/monitoring"
#: Prometheus' user and group on the platform; the group may only read /metrics and the health endpoints.
USER: Final = "system:batchyard:prometheus"
GROUP: Final = "system:monitoring"
_VALID_FOR: Final[Duration] = 365 * 24 * HOUR
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
    """The paths of the monitoring folder."""

    path: Path

    @property
    def state(self) -> Path:
        """The state file of the running processes."""
        return self.path / "monitoring.json"

    @property
    def prometheus(self) -> Path:
        """Prometheus' folder."""
        return self.path / "prometheus"

    @property
    def configuration(self) -> Path:
        """Prometheus' configuration."""
        return self.prometheus / "prometheus.yml"

    @property
    def grafana(self) -> Path:
        """Grafana's folder."""
        return self.path / "grafana"

    @property
    def settings(self) -> Path:
        """Grafana's settings."""
        return self.grafana / "grafana.ini"

    @property
    def provisioning(self) -> Path:
        """Grafana's provisioning of the data source and the dashboards."""
        return self.grafana / "provisioning"

    @property
    def dashboards(self) -> Path:
        """The dashboards."""
        return self.grafana / "dashboards"


def monitoring_folder(data_dir: Path) -> MonitoringFolder:
    """The folder of a platform's data directory."""
    return MonitoringFolder(data_dir.resolve() / "monitoring")


def write_prometheus_files(folder: MonitoringFolder, data_dir: Path, url: str) -> None:
    """Write the rules, the configuration for the platform at `url`, and a client certificate for /metrics."""
    own = folder.prometheus
    own.mkdir(parents=True, exist_ok=True)
    is_secure = url.startswith("https:")
    if is_secure:
        authority = CertificateAuthority(data_dir, wall_clock())
        signed = authority.client(USER, [GROUP], _VALID_FOR)
        write_private(own / "ca.crt", (data_dir / AUTHORITY).read_bytes())
        write_private(own / "client.crt", signed.certificate)
        write_private(own / "client.key", signed.key)
    rules = read_folder(f"{_SHIPPED}/prometheus", ".rules.yml")
    for name, text in rules.items():
        write_private(own / name, text.encode())
    text = read_folder(f"{_SHIPPED}/prometheus", "prometheus.yml")["prometheus.yml"]
    write_private(folder.configuration, _dumped(_prometheus(text, url, list(rules))))


def _prometheus(text: str, url: str, rules: list[str]) -> Mapping[str, Any]:
    """The configuration of `deploy/monitoring`, adapted to a platform at this URL."""
    place = urlsplit(url)
    configuration: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    configuration["rule_files"] = rules
    for job in configuration["scrape_configs"]:
        del job["authorization"], job["tls_config"]
        job["scheme"] = place.scheme
        if place.scheme == "https":
            job["tls_config"] = {"ca_file": "ca.crt", "cert_file": "client.crt", "key_file": "client.key"}
        job["static_configs"] = [{"targets": [place.netloc]}]
    return configuration


def write_grafana_files(folder: MonitoringFolder, prometheus: str, port: int) -> None:
    """Write Grafana's settings, dashboards and data source; `prometheus` is the URL of the latter."""
    folder.dashboards.mkdir(parents=True, exist_ok=True)
    for kind in ("datasources", "dashboards"):
        (folder.provisioning / kind).mkdir(parents=True, exist_ok=True)
        for name, text in read_folder(f"{_SHIPPED}/grafana/provisioning/{kind}", ".yml").items():
            found: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
            for source in found.get("datasources", ()):
                source["url"] = prometheus
            for provider in found.get("providers", ()):
                provider["options"]["path"] = str(folder.dashboards)
            write_private(folder.provisioning / kind / name, _dumped(found))
    for name, text in read_folder(f"{_SHIPPED}/grafana/dashboards", ".json").items():
        write_private(folder.dashboards / name, text.encode())
    settings = _GRAFANA_SETTINGS.format(address=LOOPBACK, port=port, folder=folder.grafana)
    write_private(folder.settings, settings.encode())


def _dumped(document: Mapping[str, Any]) -> bytes:
    head = "# Written by `batchyard monitoring` at each start.\n"
    return (head + yaml.safe_dump(document, sort_keys=False)).encode()


# --- processes ---
#
# Local HTTP programs: start, readiness check and end, and a state file of those that run.


#: The time limits for a program to become ready, and to end.
ANSWERS_WITHIN: Final = 60  # seconds
ENDS_WITHIN: Final = 30  # seconds
_LOOKS_EVERY: Final = 0.1  # seconds
_TAIL: Final = 4  # lines of a log


class ProgramError(Exception):
    """A program failed; the message has the reason and the remedy."""


class Program(NamedTuple):
    """A program to start."""

    #: The display name.
    name: str
    command: Sequence[str]
    port: int
    #: The path that returns 200 once the program is ready.
    ready: str
    log: Path

    @property
    def url(self) -> str:
        """The URL that it serves."""
        return url_of(self.port)


class Served(NamedTuple):
    """A running process that serves HTTP."""

    pid: int
    url: str
    #: The start time of the process as recorded by the kernel.
    began: str


def url_of(port: int) -> str:
    """The URL of a loopback port."""
    return f"http://{LOOPBACK}:{port}"


def free_port(port: int, option: str) -> int:
    """The port, or a free one for 0; ProgramError if the port is in use."""
    try:
        with socket.create_server((LOOPBACK, port)) as listening:
            found: int = listening.getsockname()[1]
            return found
    except OSError as error:
        problem = f"cannot use port {port} of {LOOPBACK}: {error.strerror}"
        raise ProgramError(f"{problem}; choose another with {option} N, or 0 for any free port") from error


def start(program: Program) -> "subprocess.Popen[bytes]":
    """Start a program in its own session, so that Ctrl-C does not reach it."""
    with program.log.open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - Prometheus or Grafana, with fixed arguments
            program.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def wait_until_ready(program: Program, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a program is ready; ProgramError if it times out or ends."""
    for _ in range(round(ANSWERS_WITHIN / _LOOKS_EVERY)):
        if _is_ready(program):
            return
        try:
            process.wait(_LOOKS_EVERY)
        except subprocess.TimeoutExpired:
            continue
        raise ended_error(program, process.returncode)
    raise ProgramError(f"{program.name} was not ready within {ANSWERS_WITHIN} s; see {program.log}")


def ended_error(program: Program, code: int) -> ProgramError:
    """The error for a program that ended unexpectedly."""
    lines = program.log.read_text("utf-8", "replace").splitlines()[-_TAIL:]
    message = "".join(f"\n  {line}" for line in lines)
    return ProgramError(f"{program.name} ended with code {code}; see {program.log}{message}")


def _is_ready(program: Program) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, program.port, timeout=ENDS_WITHIN)
    try:
        connection.request("GET", program.ready)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a process; kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def served(process: "subprocess.Popen[bytes]", program: Program) -> Served:
    """The state of a process that is ready."""
    return Served(process.pid, program.url, beginning_of(process.pid))


# --- state file of running processes ---


def write_served(state: Path, found: Mapping[str, Served]) -> None:
    """Write the state file: the running processes by name."""
    write_private(state, json.dumps({name: each._asdict() for name, each in found.items()}).encode())


def served_in(state: Path) -> Mapping[str, Served]:
    """The processes of the state file that still run, by name."""
    try:
        rows: Mapping[str, Mapping[str, Any]] = json.loads(state.read_text("utf-8"))
        found = {name: Served(int(row["pid"]), str(row["url"]), str(row["began"])) for name, row in rows.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: each for name, each in found.items() if not _has_ended(each, 0)}


def end_served(each: Served) -> bool:
    """Terminate a process of another command; return whether it ended in time."""
    with suppress(ProcessLookupError):
        os.kill(each.pid, signal.SIGTERM)
    return _has_ended(each, ENDS_WITHIN)


def _has_ended(each: Served, within: float) -> bool:
    """Whether a process has ended, or ends within some seconds; a zombie counts as ended."""
    try:
        handle = os.pidfd_open(each.pid)
    except (ProcessLookupError, OverflowError, ValueError):
        return True
    try:
        is_another = beginning_of(each.pid) != each.began
        return is_another or bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


# --- command ---
#
# `batchyard monitoring`: starts and ends Prometheus and Grafana for a platform.


_PROMETHEUS: Final = "Prometheus"
_GRAFANA: Final = "Grafana"
_COMMAND_LOOKS_EVERY: Final = 0.5  # seconds
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_MISSING: Final = (
    "batchyard: Prometheus is not installed; run apt-get install prometheus, "
    "or put the program `prometheus` of https://prometheus.io/download on the PATH"
)
#: Where Grafana's packages put its files.
_GRAFANA_HOME: Final = "/usr/share/grafana"


class MonitoringRequest(NamedTuple):
    """The arguments of the command; port 0 is any free port."""

    data_dir: Path
    port: int
    grafana_port: int
    #: Whether Grafana is started if it is installed.
    starts_grafana: bool
    detach: bool
    form: DocumentFormat | None


_Processes = list[tuple[Program, "subprocess.Popen[bytes]"]]


def start_monitoring(request: MonitoringRequest) -> None:
    """Write the files and start the programs; return when they end, or with `detach` once they are ready."""
    running = process_of(request.data_dir)
    found = shutil.which("prometheus")
    if found is None:
        output.fail(_MISSING)
    folder = monitoring_folder(request.data_dir)
    _fail_if_running(folder, request.data_dir)
    os.umask(0o077)
    try:
        port = free_port(request.port, "--port")
        grafana_port = (
            free_port(request.grafana_port, "--grafana-port") if _starts_grafana(request) else request.grafana_port
        )
        write_prometheus_files(folder, request.data_dir, running.url)
        write_grafana_files(folder, url_of(port), grafana_port)
        programs = [_prometheus_program(found, folder, port)]
        programs += [_grafana(folder, grafana_port)] if _starts_grafana(request) else []
        _run(programs, folder, running.url, request)
    except (ProgramError, CredentialsError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        output.fail(f"batchyard: {error.filename or folder.path}: {error.strerror}; check its permissions")


def end_monitoring(data_dir: Path) -> None:
    """End the programs that another `batchyard monitoring` started."""
    folder = monitoring_folder(data_dir)
    found = served_in(folder.state)
    if not found:
        output.fail(f"batchyard: no monitoring runs in {data_dir}; start it with `batchyard monitoring`")
    for name, each in found.items():
        if not end_served(each):
            output.fail(f"batchyard: {name}, pid {each.pid}, did not end; kill -9 {each.pid} ends it")
        output.report_line(f"batchyard: {name} at {each.url} has ended, its data is kept in {folder.path}")
    folder.state.unlink(missing_ok=True)


def _fail_if_running(folder: MonitoringFolder, data_dir: Path) -> None:
    for name, each in served_in(folder.state).items():
        message = f"batchyard: {name} of {data_dir} already runs, pid {each.pid}, {each.url}"
        output.fail(f"{message}; end it with: batchyard monitoring --end --data-dir {quote(str(data_dir))}")


# --- the programs ---


def _prometheus_program(found: str, folder: MonitoringFolder, port: int) -> Program:
    options = {
        "config.file": folder.configuration,
        "storage.tsdb.path": folder.prometheus / "data",
        "web.listen-address": f"{LOOPBACK}:{port}",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return Program(_PROMETHEUS, [found, *words], port, "/-/ready", folder.prometheus / "prometheus.log")


def _starts_grafana(request: MonitoringRequest) -> bool:
    return request.starts_grafana and bool(_grafana_program())


def _grafana_program() -> Sequence[str]:
    """The command that runs Grafana's server; empty if it is not installed."""
    if (found := shutil.which("grafana")) is not None:
        return [found, "server"]
    older = shutil.which("grafana-server")
    return [] if older is None else [older]


def _grafana(folder: MonitoringFolder, port: int) -> Program:
    return Program(_GRAFANA, _grafana_command(folder), port, "/api/health", folder.grafana / "grafana.log")


def _grafana_command(folder: MonitoringFolder) -> list[str]:
    """The command line of Grafana with our settings; if it is not installed, that of its packages."""
    words = _grafana_program() or ("grafana", "server")
    return [*words, f"--homepath={_grafana_home(words[0])}", f"--config={folder.settings}"]


def _grafana_home(program: str) -> Path:
    """The folder of Grafana's own files: beside the program in an archive, else that of its packages."""
    beside = Path(program).resolve().parents[1] if "/" in program else Path(_GRAFANA_HOME)
    return beside if (beside / "conf" / "defaults.ini").is_file() else Path(_GRAFANA_HOME)


# --- running ---


def _run(programs: Sequence[Program], folder: MonitoringFolder, platform: str, request: MonitoringRequest) -> None:
    """Start the programs in order, print their URLs, and wait for their end unless detached."""
    with _raise_on_signal(), _ended_with_us(folder, request) as processes:
        for program in programs:
            process = start(program)
            processes.append((program, process))
            wait_until_ready(program, process)
            write_served(folder.state, {each.name: served(running, each) for each, running in processes})
        _print_result(_document(processes, folder, platform), request)
        if not request.detach:
            _wait(processes)


class _TerminationRequested(BaseException):
    """The command received a termination signal."""


@contextmanager
def _raise_on_signal() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command in order, with exit code 0."""

    def reported(_signal: int, _frame: FrameType | None) -> None:
        for number in _ENDING:  # ignore further signals while the programs end
            signal.signal(number, signal.SIG_IGN)
        raise _TerminationRequested

    before = {number: signal.signal(number, reported) for number in _ENDING}
    try:
        yield
    except _TerminationRequested:
        output.report_line("batchyard: monitoring has ended, its data is kept")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ended_with_us(folder: MonitoringFolder, request: MonitoringRequest) -> Iterator[_Processes]:
    """Processes that end with this block; with `detach` only if the block fails."""
    processes: _Processes = []
    goes_on = False
    try:
        yield processes
        goes_on = request.detach
    finally:
        if not goes_on:
            for _, process in reversed(processes):
                end(process)
            folder.state.unlink(missing_ok=True)


def _wait(processes: _Processes) -> None:
    """Wait until a process ends, then raise ProgramError."""
    while True:
        for program, process in processes:
            try:
                process.wait(_COMMAND_LOOKS_EVERY)
            except subprocess.TimeoutExpired:
                continue
            raise ended_error(program, process.returncode)


# --- output ---


def _document(processes: _Processes, folder: MonitoringFolder, platform: str) -> Mapping[str, Any]:
    """The JSON document about the processes."""
    by_name = {program.name: (program, process.pid) for program, process in processes}
    prometheus, pid = by_name[_PROMETHEUS]
    grafana = by_name.get(_GRAFANA)
    return {
        "platform": platform,
        "prometheus": {
            "url": prometheus.url,
            "pid": pid,
            "configuration": str(folder.configuration),
            "data": str(folder.prometheus / "data"),
            "log": str(prometheus.log),
        },
        "grafana": {
            "url": None if grafana is None else grafana[0].url,
            "pid": None if grafana is None else grafana[1],
            "configuration": str(folder.settings),
            "provisioning": str(folder.provisioning),
            "dashboards": str(folder.dashboards),
            "command": _grafana_command(folder),
        },
    }


def _print_result(document: Mapping[str, Any], request: MonitoringRequest) -> None:
    prometheus, grafana = document["prometheus"], document["grafana"]
    message = f"batchyard: Prometheus listening on {prometheus['url']}, pid {prometheus['pid']}"
    output.report_line(f"{message}, scrapes {document['platform']}; its data in {prometheus['data']}")
    if grafana["url"] is not None:
        output.report_line(
            f"batchyard: Grafana listening on {grafana['url']}, pid {grafana['pid']}; log in as admin, admin"
        )
    else:
        is_there = "is not started" if _grafana_program() else "is not installed"
        output.report_line(f"batchyard: Grafana {is_there}; this starts it with our data source and dashboards:")
        output.report_line(f"  {join(grafana['command'])}")
    if request.detach:
        folder = quote(str(request.data_dir))
        output.report_line(f"batchyard: in the background; end it with: batchyard monitoring --end --data-dir {folder}")
    if request.form is DocumentFormat.JSON:
        output.write(render_json(document))
    elif request.form is DocumentFormat.YAML:
        output.write(render_yaml(document))


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
    """Run the installed Prometheus and Grafana for a platform until a termination signal."""
    if end and detach:
        raise typer.BadParameter("--end and --detach exclude each other")

    if end:
        end_monitoring(data_dir)
        return
    start_monitoring(MonitoringRequest(data_dir, port, grafana_port, grafana, detach, output))
