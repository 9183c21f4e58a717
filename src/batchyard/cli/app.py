"""The commands and their options. The work of a command is imported on call, so help and usage errors are fast."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from batchyard.base.instant import HOUR, SECOND, Duration
from batchyard.cli.chosen import chosen_of_operator, chosen_of_platform
from batchyard.cli.commands import shadow as of_shadow
from batchyard.cli.commands.compare import compare
from batchyard.cli.commands.cost import cost
from batchyard.cli.commands.decisions import decisions
from batchyard.cli.commands.eta import eta
from batchyard.cli.commands.fault import app as fault
from batchyard.cli.commands.guide import guide
from batchyard.cli.commands.install import install
from batchyard.cli.commands.lint import lint
from batchyard.cli.commands.monitoring import monitoring
from batchyard.cli.commands.page import page
from batchyard.cli.commands.platform_drive import app as platform
from batchyard.cli.commands.runs import Report, speed
from batchyard.cli.commands.snapshot import snapshot
from batchyard.cli.commands.whatif import whatif
from batchyard.cli.commands.why import why
from batchyard.cli.options import DocumentFormat, LogFormat, LogLevel, LoopAction, Output, SyncMode
from batchyard.cli.submit import options as of

app = typer.Typer(
    name="batchyard",
    help="A multi-tenant batch platform: decides which workload runs where and when.",
    epilog="Exit codes: 0 done, 1 the input or the run failed, 2 wrong usage.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _run_length(text: str) -> Duration:
    from batchyard.sim.scenario import run_length  # noqa: PLC0415 - loads the platform

    try:
        return run_length(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _duration(text: str | int) -> Duration:
    from batchyard.base.instant import parse_duration  # noqa: PLC0415 - loads the platform

    try:
        return text if isinstance(text, int) else parse_duration(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _load(text: str) -> Fraction:
    from batchyard.sim.traces import load_of  # noqa: PLC0415 - loads the platform

    try:
        return load_of(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _collector(text: str) -> str:
    from urllib.parse import urlsplit  # noqa: PLC0415 - only if a collector is given

    try:
        url = urlsplit(text)
        is_one = url.scheme in {"http", "https"} and bool(url.hostname)
    except ValueError:
        is_one = False
    if text and not is_one:
        raise typer.BadParameter(f"'{text}' is not a collector URL; use a form such as http://localhost:4318")
    return text


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only for this option

        typer.echo(f"batchyard {version('batchyard')}")
        raise typer.Exit


@app.callback()
def batchyard(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A multi-tenant batch platform: decides which workload runs where and when."""


_Runtime: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=_duration,
        metavar="DURATION",
        help="Run time of pods that set none.",
        show_default="from the Cluster, else 1m",
    ),
]


@app.command()
def simulate(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The nodes: pools, limits, capacity, prices."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Replay a cluster trace (CSV of nodes and pods); print a report."),
    ] = None,
    load: Annotated[
        Fraction | None,
        typer.Option(parser=_load, metavar="FACTOR", help="Multiply the arrival rate of the trace's pods."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(parser=_run_length, metavar="DURATION", help="Stop after this virtual time, such as 2h or 90s."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random values, such as uids.")] = 0,
    events: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the event log as JSON lines; - for stdout, instead of the tables."),
    ] = None,
    on_loop: Annotated[
        LoopAction, typer.Option(help="On an endless preemption loop: continue, or stop.")
    ] = LoopAction.CONTINUE,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="How to print the objects.")] = None,
    report: Report = None,
    runtime: _Runtime = None,
) -> None:
    """Run manifests in virtual time; print the final state of queues, Workloads and Jobs."""
    if events == "-" and output is not None:
        raise typer.BadParameter("--events - writes the event log to standard output: leave out --output")
    if not paths and trace is None:
        raise typer.BadParameter("Missing argument 'PATH...'; give manifests, a trace with --trace DIR, or both")
    if load is not None and trace is None:
        raise typer.BadParameter("--load scales a trace: add --trace DIR")
    from batchyard.cli import simulate as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli import trace as replay  # noqa: PLC0415 - loads the platform

    request = command.SimulateRequest(
        paths or [], cluster, until, seed, events, on_loop, output or Output.TABLE, report, runtime
    )
    if report is not None and trace is not None:
        raise typer.BadParameter("--report is for manifests only: --trace prints its own report")
    if trace is None:
        command.run(request)
    else:
        replay.run(trace, load or Fraction(1), request)


app.command()(lint)
app.command()(compare)


app.command()(guide)


_DataDir: TypeAlias = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data directory.")]
_DATA_DIR = Path(".batchyard")
_LogLevel: TypeAlias = Annotated[LogLevel, typer.Option("--log-level", help="The log level; info logs each decision.")]
_LogForm: TypeAlias = Annotated[LogFormat, typer.Option("--log-format", help="Text or JSON lines.")]
_Otlp: TypeAlias = Annotated[
    str,
    typer.Option(
        "--otlp",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        parser=_collector,
        metavar="URL",
        help="Send traces to this collector (OTLP over HTTP), such as http://localhost:4318.",
    ),
]
_Cluster: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The nodes: simulated pools and limits, or `local` for this machine."),
]
_Port: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="The port to listen on; 0: any free port.")
]
_Config: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Kueue's Configuration.")]
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


@app.command()
def up(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    data_dir: _DataDir = _DATA_DIR,
    cluster: _Cluster = None,
    config: _Config = None,
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
    log_level: _LogLevel = LogLevel.WARNING,
    log_form: _LogForm = LogFormat.TEXT,
    otlp: _Otlp = "",
    runtime: _Runtime = None,
) -> None:
    """Run the platform on this machine until it receives a termination signal; use kubectl to talk to it."""
    if insecure_loopback and listen is not None:
        raise typer.BadParameter("--insecure-loopback serves this machine only: leave out --listen")
    from batchyard.cli import up as command  # noqa: PLC0415 - loads the platform
    from batchyard.server.logging.logs import LogSettings  # noqa: PLC0415 - loads the platform
    from batchyard.server.platform.data_dir import LOOPBACK, PlatformOptions  # noqa: PLC0415 - loads the platform
    from batchyard.store.journal import SyncMode as Promise  # noqa: PLC0415 - loads the platform

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
    wanted = command.UpOptions(place, cluster, speed, image or (), host_path or (), logs, config, host_network)
    command.up(wanted, detach=detach)


def _lease_option(name: str, reported: str, default: str) -> Any:
    option = f"--leader-elect-{name}"
    return typer.Option(option, parser=_duration, metavar="DURATION", help=reported, show_default=default)


_Kubeconfig: TypeAlias = Annotated[
    str,
    typer.Option(envvar="KUBECONFIG", metavar="FILE", help="The cluster; default: in-cluster, else as kubectl."),
]
_LeaseName: TypeAlias = Annotated[
    str, typer.Option("--leader-elect-resource-name", metavar="NAME", help="Name of the Lease.")
]
_LeaseNamespace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--leader-elect-resource-namespace", metavar="NS", help="Namespace of the Lease; default: the context's."
    ),
]
_LeaseDuration: TypeAlias = Annotated[
    Duration, _lease_option("lease-duration", "When other replicas may acquire the Lease.", "15s")
]
_RenewDeadline: TypeAlias = Annotated[
    Duration, _lease_option("renew-deadline", "The leader exits if it cannot renew in this time.", "10s")
]
_RetryPeriod: TypeAlias = Annotated[Duration, _lease_option("retry-period", "Interval between renewals.", "2s")]


_WebhookPort: TypeAlias = Annotated[
    int, typer.Option("--webhook-port", min=0, max=65535, help="The port of the webhooks; 0: no webhooks.")
]
_WebhookService: TypeAlias = Annotated[
    str, typer.Option("--webhook-service", metavar="NAME", help="The Service of the webhooks.")
]
_WebhookSecret: TypeAlias = Annotated[
    str, typer.Option("--webhook-certificates", metavar="NAME", help="The Secret with the webhook certificates.")
]
_WebhookLifetime: TypeAlias = Annotated[
    Duration,
    typer.Option(
        "--webhook-certificate-lifetime",
        parser=_duration,
        metavar="DURATION",
        help="Validity of a webhook certificate.",
        show_default="8760h",
    ),
]


@app.command()
def operator(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    kubeconfig: _Kubeconfig = "",
    context: Annotated[str, typer.Option(metavar="NAME", help="The context of the kubeconfig.")] = "",
    controllers: Annotated[
        str,
        typer.Option(metavar="LIST", help="Controllers to run: *, name, -name; default: those that Kubernetes lacks."),
    ] = "",
    leader_elect: Annotated[
        bool, typer.Option("--leader-elect/--no-leader-elect", help="Write only while holding the Lease.")
    ] = True,
    lease_name: _LeaseName = "batchyard",
    lease_namespace: _LeaseNamespace = "",
    lease_duration: _LeaseDuration = 15 * SECOND,
    renew_deadline: _RenewDeadline = 10 * SECOND,
    retry_period: _RetryPeriod = 2 * SECOND,
    qps: Annotated[float, typer.Option("--kube-api-qps", min=0.1, help="Average requests per second.")] = 300.0,
    burst: Annotated[int, typer.Option("--kube-api-burst", min=1, help="Burst above --kube-api-qps.")] = 500,
    config: _Config = None,
    fair_sharing: Annotated[bool, typer.Option("--fair-sharing", help="Enable fair sharing by weights.")] = False,
    install_crds: Annotated[
        bool, typer.Option("--install-crds", help="Install the CRDs that the cluster lacks first.")
    ] = False,
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="The address of health and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of health and metrics; 0: none.")] = 0,
    log_level: _LogLevel = LogLevel.WARNING,
    log_form: _LogForm = LogFormat.TEXT,
    otlp: _Otlp = "",
    beside_upstream: Annotated[
        bool, typer.Option("--beside-upstream", help="Run even if Kueue's or JobSet's own controllers run.")
    ] = False,
    webhook_port: _WebhookPort = 0,
    webhook_service: _WebhookService = "batchyard-operator-webhooks",
    webhook_certificates: _WebhookSecret = "batchyard-operator-webhook-certificates",
    webhook_lifetime: _WebhookLifetime = 365 * 24 * HOUR,
    shadow: of_shadow.Shadow = False,
    lasts: of_shadow.Lasts = None,
    patience: of_shadow.Patience = None,
    form: of_shadow.Output = None,
) -> None:
    """Run controllers against an external Kubernetes API server until a termination signal."""
    if of_shadow.is_shadow(shadow, lasts, patience, form):
        where, kueue = (kubeconfig, context), (config, fair_sharing)
        of_shadow.run_shadow(where, (listen, port), lasts, patience, kueue=kueue, form=form)
        return
    if not lease_duration > renew_deadline > retry_period * 6 // 5 > 0:
        raise typer.BadParameter("the lease duration must exceed the renew deadline, and that 1.2 retry periods")
    chosen = chosen_of_operator(controllers)
    from batchyard.cli import operator as command  # noqa: PLC0415 - loads the platform
    from batchyard.server.logging.logs import LogSettings  # noqa: PLC0415 - loads the platform
    from batchyard.server.operator.webhooks import WebhookTerms  # noqa: PLC0415 - loads the platform

    lease = command.LeaseOptions(lease_name, lease_namespace, lease_duration, renew_deadline, retry_period)
    options = command.OperatorOptions(kubeconfig, context, chosen, lease if leader_elect else None, qps, burst)
    options = options._replace(logs=LogSettings(log_level.value, log_form is LogFormat.JSON), traces_to=otlp)
    options = options._replace(
        beside_upstream=beside_upstream,
        webhooks=WebhookTerms(webhook_port, webhook_service, webhook_certificates, webhook_lifetime),
    )
    options = options._replace(config=config, fair_sharing=fair_sharing, installs=install_crds)
    command.operator(options._replace(address=listen, port=port))


@app.command()
def status(
    data_dir: _DataDir = _DATA_DIR,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show the state of a platform: health, time, counts, queues, nodes, journal."""
    from batchyard.cli.status import status as command  # noqa: PLC0415 - loads the platform

    command(data_dir, output)


@app.command()
def down(
    data_dir: _DataDir = _DATA_DIR,
    end_pods: Annotated[
        bool, typer.Option("--end-pods", help="Also end the pods of this machine, which otherwise keep running.")
    ] = False,
) -> None:
    """Stop the platform of a data directory and wait for its end."""
    from batchyard.cli.up import down as command  # noqa: PLC0415 - loads the platform

    command(data_dir, end_pods=end_pods)


@app.command()
def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the user.")],
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group of the user, such as a team; repeatable.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAMESPACE", help="The default namespace in the kubeconfig.")
    ] = "",
    days: Annotated[
        int, typer.Option(metavar="N", min=1, max=365, help="Days of validity; it cannot be revoked.")
    ] = 30,
    data_dir: _DataDir = _DATA_DIR,
) -> None:
    """Write a kubeconfig for another user of the platform; RoleBindings grant the user's rights."""
    from batchyard.cli import user as command  # noqa: PLC0415 - loads the platform

    command.user(data_dir, command.NewUser(name, group or [], namespace, days))


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    data_dir: _DataDir = _DATA_DIR,
) -> None:
    """Write the whole state of a platform to a file; the platform may run or not."""
    from batchyard.cli.backup import backup as command  # noqa: PLC0415 - loads the platform

    command(file, data_dir)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `batchyard backup` wrote.")],
    data_dir: _DataDir = _DATA_DIR,
) -> None:
    """Create a data directory from a backup; never overwrites files."""
    from batchyard.cli.backup import restore as command  # noqa: PLC0415 - loads the platform

    command(file, data_dir)


@app.command(cls=of.WithCommand)
def submit(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    context: typer.Context,
    queue: of.Queue,
    folder: of.Folder = None,
    name: of.Name = "",
    namespace: of.Namespace = "",
    image: of.Image = "python:3.12-slim",
    cpu: of.Cpu = "1",
    memory: of.Memory = "",
    gpus: of.Gpus = 0,
    gpu_resource: of.GpuResource = "nvidia.com/gpu",
    priority: of.Priority = "",
    completions: of.Completions = None,
    parallelism: of.Parallelism = None,
    backoff_limit: of.BackoffLimit = 0,
    env: of.Env = None,
    annotation: of.Annotations = None,
    node_selector: of.NodeSelector = None,
    toleration: of.Tolerations = None,
    checkpoint_dir: of.CheckpointDir = None,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    dry_run: of.DryRun = False,
    detach: of.Detach = False,
    output: of.Output = None,
) -> None:
    """Create a Job in a queue, report its progress, print its logs, and exit with its exit code."""
    argv = of.command_line(context)
    if output is DocumentFormat.YAML and not dry_run:
        raise typer.BadParameter("--output yaml requires --dry-run: use --output json for events as JSON lines")
    from batchyard.cli.submit import command  # noqa: PLC0415 - loads the object model
    from batchyard.cli.submit.manifests import JobRequest  # noqa: PLC0415 - loads the object model
    from batchyard.cli.submit.wanted import SubmitRequest  # noqa: PLC0415 - loads the object model

    asked = JobRequest(argv, name, queue, image, namespace, priority, cpu, memory, {gpu_resource: gpus} if gpus else {})
    at_once = parallelism or completions or 1
    asked = replace(
        asked,
        environment=of.pairs("--env", env),
        annotations=of.pairs("--annotation", annotation),
        node_selector=of.pairs("--node-selector", node_selector),
        tolerations=[of.toleration(each) for each in toleration or ()],
        completions=completions or at_once,
        parallelism=at_once,
        backoff_limit=backoff_limit,
        checkpoint_folder="" if checkpoint_dir is None else str(checkpoint_dir.resolve()),
    )
    cluster = of.cluster(context, kubeconfig, data_dir)
    request = SubmitRequest(asked, folder, cluster, kube_context, data_dir or _DATA_DIR, dry_run, detach, output)
    raise typer.Exit(command.submit(request))


app.command()(cost)
app.command()(decisions)
app.command()(eta)
app.command()(install)
app.command()(monitoring)
app.command()(page)
app.add_typer(platform)
app.add_typer(fault)
app.command()(snapshot)
app.command()(whatif)
app.command()(why)
