"""`batchyard monitoring`: starts and ends Prometheus and Grafana for a platform."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import join, quote
from types import FrameType
from typing import Any, Final, NamedTuple

from batchyard.cli import output
from batchyard.cli.monitoring.files import (
    MonitoringFolder,
    monitoring_folder,
    write_grafana_files,
    write_prometheus_files,
)
from batchyard.cli.monitoring.processes import (
    Program,
    ProgramError,
    end,
    end_served,
    ended_error,
    free_port,
    served,
    served_in,
    start,
    url_of,
    wait_until_ready,
    write_served,
)
from batchyard.cli.options import DocumentFormat
from batchyard.cli.tables import render_json, render_yaml
from batchyard.cli.up import process_of
from batchyard.server.platform.credentials import CredentialsError
from batchyard.server.platform.data_dir import LOOPBACK

_PROMETHEUS: Final = "Prometheus"
_GRAFANA: Final = "Grafana"
_LOOKS_EVERY: Final = 0.5  # seconds
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
        programs = [_prometheus(found, folder, port)]
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


def _prometheus(found: str, folder: MonitoringFolder, port: int) -> Program:
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
                process.wait(_LOOKS_EVERY)
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
