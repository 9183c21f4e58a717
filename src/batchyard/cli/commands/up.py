"""`batchyard up`: starts the embedded platform, in the foreground or the background."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Final, TypeAlias

import typer
import uvloop

from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, with_path
from batchyard.api.scheme import CLUSTER, kind_info
from batchyard.cli import output
from batchyard.cli.background import UpOptions, start_behind
from batchyard.cli.kueue_configuration import kept_in
from batchyard.cli.options import (
    DATA_DIR,
    ConfigFile,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    Otlp,
    PlatformDir,
    Runtime,
    SyncMode,
    chosen_of_platform,
    speed,
)
from batchyard.scheduling.kueue_configuration import parse_kueue_settings
from batchyard.server.forecasting.service import ForecastFunctions
from batchyard.server.logging import logs
from batchyard.server.logging.logs import LogSettings
from batchyard.server.platform.credentials import CredentialsError
from batchyard.server.platform.data_dir import (
    KUBECONFIG,
    LOG,
    LOOPBACK,
    DirectoryError,
    PlatformOptions,
    prepare,
    process_in,
)
from batchyard.server.platform.serve import PortError, serve
from batchyard.sim.forecast import ForecastAnswers
from batchyard.store.journal import SyncMode as Promise
from batchyard.store.journal_file import JournalError

_ENGINES: Final = ("podman", "docker")
#: The options of `up` that need this machine as a node.
_OF_PODS: Final = "--image, --host-path and --host-network"
#: The value of `--cluster` for a Cluster whose only node is this machine.
_LOCAL: Final = Path("local")
_LOCAL_CLUSTER: Final = """\
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: local}
spec: {zones: [local], local: {}}
"""


def start(wanted: UpOptions, *, detach: bool) -> None:
    """Run the platform until a termination signal; with `detach` in the background, returning once it listens."""
    if detach:
        _prepare(wanted.place.folder)
        _run_behind(wanted)
        return
    cluster, place = cluster_of(wanted), configured(wanted)
    _prepare(wanted.place.folder)
    logs.begin(wanted.logs)
    run(place, cluster, wanted.speed, partial(_print_ready, wanted.place))


def _prepare(folder: Path) -> None:
    """Create a data directory; ends the command if that fails or a platform already runs in it."""
    try:
        prepare(folder)
    except DirectoryError as error:
        output.fail(f"batchyard: {error}")
    running = process_in(folder)
    if running is not None:
        message = f"batchyard: {folder}: a platform already runs here, pid {running.pid}, {running.url}"
        output.fail(f"{message}; end it with: batchyard down --data-dir {quote(str(folder))}")


def _run_behind(wanted: UpOptions) -> None:
    """Start the same command in the background, and wait until it listens or ends."""
    _, running = start_behind(wanted)
    _print_ready(wanted.place, running.url)
    output.report_line(f"batchyard: pid {running.pid}, in the background; log: {wanted.place.folder / LOG}")


def _print_ready(place: PlatformOptions, url: str) -> None:
    output.report_line(f"batchyard: listening on {url}, its data in {place.folder}")
    if not place.is_insecure:
        output.report_line(f"batchyard: export KUBECONFIG={quote(str((place.folder / KUBECONFIG).resolve()))}")


def run(place: PlatformOptions, cluster: Obj | None, speed: float, ready: Callable[[str], None]) -> None:
    """Run a platform until a termination signal; call `ready` with its URL once it listens."""
    answering = (
        ForecastAnswers() if place.configuration is None else ForecastAnswers(parse_kueue_settings(place.configuration))
    )
    foresight = ForecastFunctions(answering.forecast_of, answering.samples_of, answering.warnings_for)
    try:
        uvloop.run(serve(place, cluster, speed, ready, foresight))
    except (JournalError, PortError, CredentialsError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"{error.filename or place.folder}: {error.strerror}"
        output.fail(f"batchyard: {message}; check its free disk space and permissions")
    output.report_line("batchyard: ended, its data is kept")


def configured(wanted: UpOptions) -> PlatformOptions:
    """The place with Kueue's Configuration added; ends the command if the file is invalid."""
    return wanted.place if wanted.config is None else replace(wanted.place, configuration=kept_in(wanted.config))


def cluster_of(wanted: UpOptions) -> Obj | None:
    """The requested Cluster, None if none was requested; ends the command if it is invalid."""
    is_about_pods = bool(wanted.images or wanted.host_paths or wanted.host_network)
    if wanted.cluster is None:
        if is_about_pods:
            output.fail(f"batchyard: {_OF_PODS} are for pods of this machine: add --cluster local")
        return None
    cluster = _read(wanted.cluster)
    local = cluster["spec"].get("local")
    if local is None:
        if is_about_pods:
            message = f"batchyard: {wanted.cluster}: {_OF_PODS} are for pods of this machine"
            output.fail(f"{message}, which is not a node of this Cluster; add spec.local to it")
        return cluster
    if wanted.speed != 1:
        output.fail("batchyard: real processes cannot be sped up: leave out --speed if this machine is a node")
    images = [*map(_image, wanted.images), *(local.get("images") or ())]
    paths = [*(str(path.expanduser().resolve()) for path in wanted.host_paths), *(local.get("hostPaths") or ())]
    own = {**local, "images": images, "hostPaths": paths}
    return with_path(cluster, ("spec", "local"), {**own, "hostNetwork": True} if wanted.host_network else own)


def _image(text: str) -> dict[str, object]:
    """A row of `spec.local.images`."""
    name, equals, place = text.partition("=")
    if not equals or not name or not place:
        examples = "such as 'pytorch/*=.venv' or 'busybox=/', or as NAME=podman: or NAME=docker:"
        output.fail(f"batchyard: --image {text}: use NAME=DIRECTORY, {examples}")
    engine, colon, image = place.partition(":")
    if colon and engine in _ENGINES:
        return {"match": name, "engine": engine, **({"image": image} if image else {})}
    path = Path(place).expanduser().resolve()
    if path == Path("/"):
        return {"match": name, "machine": True}
    if not path.is_dir():
        output.fail(f"batchyard: --image {text}: {path} is not a folder; give a virtualenv, a root folder, or /")
    return {"match": name, "environment" if (path / "pyvenv.cfg").exists() else "root": str(path)}


def _read(path: Path) -> Obj:
    """The Cluster of a file, or for `local` the built-in Cluster of this machine."""
    try:
        text = _LOCAL_CLUSTER if path == _LOCAL else path.read_text("utf-8")
        manifests = read_manifests([(str(path), text)])
    except OSError as error:
        output.fail(f"batchyard: {path}: {error.strerror}; give a file with a Cluster to --cluster")
    except UnicodeDecodeError as error:
        output.fail(f"batchyard: {path}: {error}")
    clusters = [manifest.obj for manifest in manifests.objects if manifest.obj["kind"] == kind_info(CLUSTER).kind]
    if manifests.faults:
        output.fail("\n".join(map(str, manifests.faults)))
    if len(clusters) != 1:
        output.fail(f"batchyard: {path}: contains {len(clusters)} Clusters; give a file with exactly one")
    return clusters[0]


_Cluster: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The nodes: simulated pools and limits, or `local` for this machine."),
]
_Port: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="The port to listen on; 0: any free port.")
]
_Images: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--image", metavar="NAME=DIR", help="Replaces an image: a virtualenv, a root folder, / for the machine."
    ),
]
_HostPaths: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--host-path", metavar="DIR", help="A folder of this machine that pods may mount by hostPath."),
]
_Listen: TypeAlias = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Listen on this address, for clients on other machines.")
]
_AuditLog: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write an audit log as JSON lines; rotated at 100 MB, one old file is kept."),
]
_Controllers: TypeAlias = Annotated[
    str, typer.Option(metavar="LIST", help="Controllers to run: *, name, -name; an operator runs the rest.")
]


def up(
    data_dir: PlatformDir = DATA_DIR,
    cluster: _Cluster = None,
    config: ConfigFile = None,
    image: _Images = None,
    host_path: _HostPaths = None,
    host_network: Annotated[
        bool, typer.Option("--host-network", help="Allow hostNetwork for pods on this machine.")
    ] = False,
    speed: Annotated[
        float,
        typer.Option(parser=speed, metavar="FACTOR", show_default="1x", help="Speed of the platform's clock: 1x, 60x."),
    ] = 1.0,
    port: _Port = 0,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="Serve without TLS and credentials, on this machine only.")
    ] = False,
    sync: Annotated[
        SyncMode,
        typer.Option(help="What acknowledged writes survive: full, a power failure; process, a crash of the process."),
    ] = SyncMode.FULL,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Start from a journal that lost acknowledged writes.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; return once it listens.")] = False,
    listen: _Listen = None,
    audit_log: _AuditLog = None,
    controllers: _Controllers = "*",
    log_level: LogLevelOption = LogLevel.WARNING,
    log_form: LogFormatOption = LogFormat.TEXT,
    otlp: Otlp = "",
    runtime: Runtime = None,
) -> None:
    """Run the platform on this machine until it receives a termination signal; use kubectl to talk to it."""
    if insecure_loopback and listen is not None:
        raise typer.BadParameter("--insecure-loopback serves this machine only: leave out --listen")

    place = PlatformOptions(
        data_dir,
        port,
        insecure_loopback,
        listen or LOOPBACK,
        audit_log,
        Promise(sync.value),
        accept_loss=accept_loss,
        controllers=chosen_of_platform(controllers),
        traces_to=otlp,
        runtime=runtime,
    )
    logs = LogSettings(log_level.value, log_form is LogFormat.JSON)
    wanted = UpOptions(place, cluster, speed, image or (), host_path or (), logs, config, host_network)
    start(wanted, detach=detach)
