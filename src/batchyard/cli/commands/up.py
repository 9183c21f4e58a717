"""The command `batchyard up`: runs a platform on this machine, in the foreground or the background."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Final, TypeAlias

import typer
import uvloop

from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, with_path
from batchyard.api.scheme import CLUSTER, kind_info
from batchyard.api.well_known import DEFAULT_SERVICE_CIDR
from batchyard.cli import options as cli_options
from batchyard.cli import output
from batchyard.cli.background import UpOptions, start_in_background
from batchyard.cli.kueue_configuration import read_supported_configuration
from batchyard.cloud.cluster_objects import catalog_errors
from batchyard.controller_groups import without_upstream
from batchyard.scheduling.kueue_configuration import platform_kueue_settings
from batchyard.server.forecasting.service import ForecastFunctions
from batchyard.server.local_node.spawner_client import SpawnerError
from batchyard.server.logging import logs
from batchyard.server.logging.logs import LogSettings
from batchyard.server.platform.credentials import CredentialsError
from batchyard.server.platform.data_dir import (
    DEFAULT_KUEUE_VERSION,
    JOURNAL_FILE,
    KUBECONFIG_FILE,
    KUEUE_VERSION_SETTING,
    LOG_FILE,
    LOOPBACK,
    REPLICATION_FILE,
    UPSTREAM_SETTING,
    DirectoryError,
    PlatformOptions,
    prepare_data_dir,
    running_process_in,
)
from batchyard.server.platform.provided_objects import ClusterConflictError
from batchyard.server.platform.serve import PortError, serve_platform
from batchyard.sim.forecast import ForecastAnswers
from batchyard.store.journal import SyncMode as JournalSyncMode
from batchyard.store.journal_file import JournalError, read_setting

_CONTAINER_ENGINES: Final = ("podman", "docker")
#: The options of `up` that require this machine as a node.
_LOCAL_NODE_OPTIONS: Final = "--image, --host-path and --host-network"
#: The value of `--cluster` for a Cluster whose only node is this machine.
_LOCAL_CLUSTER_NAME: Final = Path("local")
_LOCAL_CLUSTER: Final = """\
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: local}
spec: {zones: [local], local: {}}
"""


def start(options: UpOptions, *, detach: bool) -> None:
    """Run the platform until a termination signal; with `detach`, start it in the background and return."""
    if detach:
        _prepare_data_directory(options.platform_options.folder)
        _run_in_background(options)
        return
    cluster, platform_options = read_requested_cluster(options), with_kueue_configuration(options)
    _prepare_data_directory(options.platform_options.folder)
    logs.configure_logging(options.logs)
    run(platform_options, cluster, options.speed, partial(_print_ready_message, options.platform_options))


def _prepare_data_directory(folder: Path) -> None:
    try:
        prepare_data_dir(folder)
    except DirectoryError as error:
        output.fail(f"batchyard: {error}")
    platform_process = running_process_in(folder)
    if platform_process is not None:
        message = f"batchyard: a platform already runs in {folder}, pid {platform_process.pid}, {platform_process.url}"
        output.fail(f"{message}; end it with: batchyard down --data-dir {quote(str(folder))}")


def _run_in_background(options: UpOptions) -> None:
    _, platform_process = start_in_background(options)
    if options.platform_options.follow:
        output.report_line(f"batchyard: follows {platform_process.url}")
    else:
        _print_ready_message(options.platform_options, platform_process.url)
    log = options.platform_options.folder / LOG_FILE
    output.report_line(f"batchyard: running in the background, pid {platform_process.pid}; log: {log}")


def _print_ready_message(options: PlatformOptions, url: str) -> None:
    output.report_line(f"batchyard: listening on {url}, its data is in {options.folder}")
    if not options.is_insecure:
        output.report_line(f"batchyard: export KUBECONFIG={quote(str((options.folder / KUBECONFIG_FILE).resolve()))}")


def _with_recorded_settings(options: PlatformOptions) -> PlatformOptions:
    """Return the options with the version of Kueue and the upstream projects that the data directory records.

    An option for the version takes precedence. A change of the version is reported.
    """
    journal = options.folder / JOURNAL_FILE
    recorded = read_setting(journal, KUEUE_VERSION_SETTING) or DEFAULT_KUEUE_VERSION
    version = options.kueue_version or recorded
    if version != recorded and journal.exists():
        output.report_line(f"batchyard: decides by the rules of Kueue {version} now; before, by those of {recorded}")
    upstream = _upstream_projects(options)
    return replace(
        options, kueue_version=version, upstream=upstream, controllers=without_upstream(options.controllers, upstream)
    )


def _upstream_projects(options: PlatformOptions) -> Sequence[str]:
    """Return the projects of `--upstream`, or those that the data directory records; raise JournalError if they differ.

    The stored objects of a project follow either the built-in kinds or its own definitions.
    """
    journal = options.folder / JOURNAL_FILE
    recorded = cli_options.parse_upstream_projects(read_setting(journal, UPSTREAM_SETTING) or "")
    if journal.exists() and options.upstream and set(options.upstream) != set(recorded):
        option = f"with --upstream {','.join(recorded)}" if recorded else "without --upstream"
        raise JournalError(f"{options.folder} was created {option}; set another folder with --data-dir")
    return options.upstream or recorded


def _select_server(options: PlatformOptions) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return the function that serves the platform. The command exits if the folder is shared with a standby."""
    if options.standby:
        from batchyard.server.replication.standby import serve_replicated  # noqa: PLC0415 - rarely needed

        return serve_replicated
    if (options.folder / REPLICATION_FILE).exists():
        from batchyard.server.replication.terms import read_state  # noqa: PLC0415 - rarely needed

        state = read_state(options.folder)
        if state.is_shared or state.has_claim:
            problem = f"{options.folder} is shared with a standby or primary, which may serve"
            remedy = "add --standby or --follow, or run `batchyard promote` if no other platform serves"
            raise JournalError(f"{problem}; {remedy}")
    return serve_platform


def _follow(options: PlatformOptions) -> PlatformOptions | None:
    """Follow the primary until this platform must serve; return the options to serve with, and None if it must end."""
    from batchyard.server.replication.standby import follow_until_takeover  # noqa: PLC0415 - rarely needed

    return uvloop.run(follow_until_takeover(options))


def run(options: PlatformOptions, cluster: Obj | None, speed: float, report_ready: Callable[[str], None]) -> None:
    """Run a platform until a termination signal; call `report_ready` with its URL once it listens."""
    try:
        followed = _follow(options) if options.follow else options
        if followed is not None:
            _serve(_with_recorded_settings(followed), cluster, speed, report_ready)
    except (JournalError, PortError, CredentialsError, ClusterConflictError, SpawnerError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"{error.filename or options.folder}: {error.strerror}"
        output.fail(f"batchyard: {message}; check the path, its permissions and the free disk space")
    output.report_line("batchyard: the platform has ended; its data is kept")


def _serve(options: PlatformOptions, cluster: Obj | None, speed: float, report_ready: Callable[[str], None]) -> None:
    answers = ForecastAnswers(platform_kueue_settings(options.configuration, options.kueue_version))
    forecast_functions = ForecastFunctions(answers.forecast_of, answers.sample_forecasts, answers.warnings_for)
    uvloop.run(_select_server(options)(options, cluster, speed, report_ready, forecast_functions))


def with_kueue_configuration(options: UpOptions) -> PlatformOptions:
    """Return the platform options with Kueue's Configuration added; exit if its file is invalid."""
    return (
        options.platform_options
        if options.config is None
        else replace(options.platform_options, configuration=read_supported_configuration(options.config))
    )


def read_requested_cluster(options: UpOptions) -> Obj | None:
    """Return the Cluster that `--cluster` names, with the images, folders and host network of other options.

    Return None if `--cluster` is not set. The command exits if the Cluster is invalid, or if
    other options conflict with `--cluster`.
    """
    has_local_options = bool(options.images or options.host_paths or options.host_network)
    if options.cluster is None:
        if has_local_options:
            output.fail(f"batchyard: {_LOCAL_NODE_OPTIONS} require this machine as a node: add --cluster local")
        return None
    cluster = _read_cluster(options.cluster)
    local_spec = cluster["spec"].get("local")
    if local_spec is None:
        if has_local_options:
            message = f"batchyard: {options.cluster}: {_LOCAL_NODE_OPTIONS} require this machine as a node"
            output.fail(f"{message}: add spec.local to the Cluster")
        return cluster
    if options.speed != 1:
        output.fail("batchyard: --speed must be 1x if this machine is a node, because its pods are real processes")
    images = [*map(_parse_image, options.images), *(local_spec.get("images") or ())]
    paths = [*map(_existing_host_path, options.host_paths), *(local_spec.get("hostPaths") or ())]
    spec = {**local_spec, "images": images, "hostPaths": paths}
    return with_path(cluster, ("spec", "local"), {**spec, "hostNetwork": True} if options.host_network else spec)


def _existing_host_path(path: Path) -> str:
    """Return the absolute path of a file or folder; the command exits if it does not exist or is not accessible."""
    absolute_path = path.expanduser().resolve()
    try:
        absolute_path.stat()
    except OSError as error:
        message = f"batchyard: --host-path {path}: {absolute_path}: {error.strerror}"
        output.fail(f"{message}; create the folder before the platform starts, or correct the path")
    return str(absolute_path)


def _parse_image(text: str) -> dict[str, object]:
    name, equals_sign, replacement = text.partition("=")
    if not equals_sign or not name or not replacement:
        examples = "such as 'pytorch/*=.venv' or 'busybox=/', or as NAME=podman: or NAME=docker:"
        output.fail(f"batchyard: --image {text}: use NAME=DIRECTORY, {examples}")
    engine, colon_sign, image = replacement.partition(":")
    if colon_sign and engine in _CONTAINER_ENGINES:
        return {"match": name, "engine": engine, **({"image": image} if image else {})}
    path = Path(replacement).expanduser().resolve()
    if path == Path("/"):
        return {"match": name, "machine": True}
    if not path.is_dir():
        output.fail(f"batchyard: --image {text}: {path} is not a folder; use a virtualenv, a root folder, or /")
    return {"match": name, "environment" if (path / "pyvenv.cfg").exists() else "root": str(path)}


def _read_cluster(path: Path) -> Obj:
    try:
        text = _LOCAL_CLUSTER if path == _LOCAL_CLUSTER_NAME else path.read_text("utf-8")
        manifests = read_manifests([(str(path), text)])
    except OSError as error:
        output.fail(f"batchyard: {path}: {error.strerror}; set --cluster to a readable file with a Cluster")
    except UnicodeDecodeError as error:
        output.fail(f"batchyard: {path}: the file is not text: byte {error.start} is not UTF-8; save the file as UTF-8")
    cluster_manifests = [each for each in manifests.objects if each.obj["kind"] == kind_info(CLUSTER).kind]
    clusters = [manifest.obj for manifest in cluster_manifests]
    catalog_faults = [each.fault(error) for each in cluster_manifests for error in catalog_errors(each.obj)]
    if faults := [*manifests.faults, *catalog_faults]:
        output.fail("\n".join(map(str, faults)))
    if len(clusters) != 1:
        output.fail(f"batchyard: {path}: the file must contain exactly one Cluster; it contains {len(clusters)}")
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
        "--image", metavar="NAME=DIR", help="Run an image from a virtualenv, a root folder, or / of this machine."
    ),
]
_HostPaths: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--host-path", metavar="DIR", help="A folder of this machine that pods may mount by hostPath."),
]
_HostNetwork: TypeAlias = Annotated[
    bool, typer.Option("--host-network", help="Allow hostNetwork for pods on this machine.")
]
_Listen: TypeAlias = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Listen on this address, for clients on other machines.")
]
_AuditLog: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write an audit log as JSON lines; rotated at 100 MB, one old file is kept."),
]
_AuthenticationConfig: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Accept tokens of the issuers in this AuthenticationConfiguration.")
]
_TokenWebhook: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Authenticate other tokens by the webhook in this kubeconfig.")
]
_Speed: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=cli_options.parse_speed,
        metavar="FACTOR",
        show_default="1x",
        help="Speed of the platform's clock: 1x, 60x.",
    ),
]
_Standby: TypeAlias = Annotated[
    cli_options.StandbyChoice | None,
    typer.Option(help="Serve a standby; acknowledge a write after (sync) or before (async) it has the write."),
]
_Follow: TypeAlias = Annotated[
    str, typer.Option(metavar="URL|DIR", help="Be the standby of this platform: a URL, or its folder on this machine.")
]
_Witness: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A folder of both platforms that decides which one serves.")
]
_ApiName: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="A DNS name of the API, for its certificate and the kubeconfig.")
]
_AcceptLoss: TypeAlias = Annotated[
    bool, typer.Option("--accept-loss", help="Start from a journal that lost acknowledged writes.")
]
_Archive: TypeAlias = Annotated[
    str, typer.Option(metavar="URL|DIR", help="Archive every change there, to restore the state of any time.")
]
_ArchiveKeep: TypeAlias = Annotated[
    str, typer.Option(metavar="DURATION", help="Keep archived states restorable for this time, such as 7d.")
]
_Controllers: TypeAlias = Annotated[
    str, typer.Option(metavar="LIST", help="Controllers to run: *, name, -name; an operator runs the rest.")
]
_Upstream: TypeAlias = Annotated[
    str, typer.Option(metavar="LIST", help="Leave the APIs of these projects to their own operators: kueue, jobset.")
]
_JobControllers: TypeAlias = Annotated[
    str, typer.Option(metavar="LIST", help="Run jobs of these projects without their controllers: kubeflow, ray.")
]
_ServiceCidr: TypeAlias = Annotated[
    str,
    typer.Option(
        "--service-cluster-ip-range",
        metavar="CIDR",
        callback=cli_options.check_service_cidr,
        help="The IPv4 range of the cluster IPs of Services.",
    ),
]


def _check_listen(address: str | None, *, is_insecure: bool) -> None:
    if is_insecure and address is not None:
        raise typer.BadParameter("--insecure-loopback serves this machine only: remove --listen or --insecure-loopback")


def _controller_fields(controllers: str, upstream: str, job_controllers: str, service_cidr: str) -> dict[str, Any]:
    """Return the fields of PlatformOptions about controllers, upstream projects, and the addresses of Services."""
    return {
        "controllers": cli_options.parse_platform_controllers(controllers),
        "upstream": cli_options.parse_upstream_projects(upstream),
        "job_controllers": cli_options.parse_job_controllers(job_controllers),
        "service_cidr": service_cidr,
    }


def _standby_fields(
    standby: cli_options.StandbyChoice | None, follow: str, witness: Path | None, *, is_insecure: bool
) -> dict[str, Any]:
    """Return the fields of PlatformOptions that concern a standby. Raises BadParameter if they do not fit together."""
    has_partner = standby is not None or bool(follow)
    if has_partner and is_insecure:
        raise typer.BadParameter("a standby needs TLS and credentials: remove --insecure-loopback")
    if witness is not None and not has_partner:
        raise typer.BadParameter("--witness requires --standby or --follow")
    if "://" in follow and not follow.startswith("https://"):
        raise typer.BadParameter(f"--follow {follow}: use a URL that begins with https://, or a folder")
    return {"standby": "" if standby is None else standby.value, "follow": follow, "witness": witness}


def _archive_fields(archive: str, keep: str) -> dict[str, Any]:
    """Return the fields of PlatformOptions that concern an archive. Raises BadParameter if they are invalid."""
    if not archive:
        if keep:
            raise typer.BadParameter("--archive-keep requires --archive")
        return {}
    from batchyard.server.archive.storage import StorageError, open_storage  # noqa: PLC0415 - rarely needed

    try:
        open_storage(archive)
    except StorageError as error:
        raise typer.BadParameter(str(error)) from error
    return {"archive": archive, "archive_keep": cli_options.parse_retention(keep) if keep else 0}


def up(
    data_dir: cli_options.PlatformDir = cli_options.DATA_DIR,
    cluster: _Cluster = None,
    config: cli_options.ConfigFile = None,
    kueue_version: cli_options.RecordedVersionOption = None,
    image: _Images = None,
    host_path: _HostPaths = None,
    host_network: _HostNetwork = False,
    speed: _Speed = 1.0,
    port: _Port = 0,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="Serve without TLS and credentials, on this machine only.")
    ] = False,
    sync: Annotated[
        cli_options.SyncMode,
        typer.Option(help="Acknowledged writes survive a power failure (full) or only a crash (process)."),
    ] = cli_options.SyncMode.FULL,
    accept_loss: _AcceptLoss = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; return once it listens.")] = False,
    listen: _Listen = None,
    audit_log: _AuditLog = None,
    authentication_config: _AuthenticationConfig = None,
    authentication_token_webhook_config_file: _TokenWebhook = None,
    standby: _Standby = None,
    follow: _Follow = "",
    witness: _Witness = None,
    api_name: _ApiName = "",
    archive: _Archive = "",
    archive_keep: _ArchiveKeep = "",
    controllers: _Controllers = "*",
    upstream: _Upstream = "",
    job_controllers: _JobControllers = "",
    service_cidr: _ServiceCidr = DEFAULT_SERVICE_CIDR,
    log_level: cli_options.LogLevelOption = cli_options.LogLevel.WARNING,
    log_format: cli_options.LogFormatOption = cli_options.LogFormat.TEXT,
    otlp: cli_options.Otlp = "",
    runtime: cli_options.Runtime = None,
) -> None:
    """Run the platform, which you control with kubectl, on this machine until a termination signal arrives."""
    _check_listen(listen, is_insecure=insecure_loopback)
    options = PlatformOptions(
        data_dir,
        port,
        insecure_loopback,
        listen or LOOPBACK,
        audit_log,
        JournalSyncMode(sync.value),
        accept_loss=accept_loss,
        **_controller_fields(controllers, upstream, job_controllers, service_cidr),
        traces_to=otlp,
        runtime=runtime,
        kueue_version="" if kueue_version is None else kueue_version.value,
        authentication_config=authentication_config,
        token_webhook_config=authentication_token_webhook_config_file,
        **_standby_fields(standby, follow, witness, is_insecure=insecure_loopback) | {"api_name": api_name},
        **_archive_fields(archive, archive_keep),
    )
    logs = LogSettings(log_level.value, log_format is cli_options.LogFormat.JSON)
    up_options = UpOptions(options, cluster, speed, image or (), host_path or (), logs, config, host_network)
    start(up_options, detach=detach)
