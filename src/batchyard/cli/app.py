"""The commands and their options. A command's work is imported when it is called: help and usage errors are quick."""

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
from batchyard.cli.options import Form, LogForm, LogLevel, OnLoop, Output, Sync
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
    from batchyard.base.instant import parse_duration  # noqa: PLC0415 - as the rest

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
    from urllib.parse import urlsplit  # noqa: PLC0415 - only where one is named

    try:
        url = urlsplit(text)
        is_one = url.scheme in {"http", "https"} and bool(url.hostname)
    except ValueError:
        is_one = False
    if text and not is_one:
        raise typer.BadParameter(f"'{text}' is no URL of a collector; write it as http://localhost:4318")
    return text


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only here

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
        help="How long pods run that do not say it.",
        show_default="what the Cluster says, else 1m",
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
        typer.Option(metavar="FILE", help="The nodes there are: pools, limits, capacity, prices."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Replay a trace of a cluster, its nodes and pods as CSV; print a report."),
    ] = None,
    load: Annotated[
        Fraction | None,
        typer.Option(parser=_load, metavar="FACTOR", help="Let the pods of a trace come so many times as fast."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(parser=_run_length, metavar="DURATION", help="Stop after this virtual time, such as 2h or 90s."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes whatever is drawn, such as uids.")] = 0,
    events: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the event log as JSON lines; - for stdout, instead of the tables."),
    ] = None,
    on_loop: Annotated[
        OnLoop, typer.Option(help="When Workloads preempt each other for ever: leave them and go on, or end.")
    ] = OnLoop.CONTINUE,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="How to print the objects.")] = None,
    report: Report = None,
    runtime: _Runtime = None,
) -> None:
    """Run manifests in virtual time; print the queues, Workloads and Jobs as they stand at the end."""
    if events == "-" and output is not None:
        raise typer.BadParameter("with --events - the event log takes standard output: leave out --output")
    if not paths and trace is None:
        raise typer.BadParameter("Missing argument 'PATH...'; give manifests, a trace with --trace DIR, or both")
    if load is not None and trace is None:
        raise typer.BadParameter("--load is for the pods of a trace: give one with --trace DIR")
    from batchyard.cli import simulate as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli import trace as replay  # noqa: PLC0415 - loads the platform

    request = command.Request(
        paths or [], cluster, until, seed, events, on_loop, output or Output.TABLE, report, runtime
    )
    if report is not None and trace is not None:
        raise typer.BadParameter("--report is of manifests: a trace has a report of its own, which it prints")
    if trace is None:
        command.run(request)
    else:
        replay.run(trace, load or Fraction(1), request)


app.command()(lint)
app.command()(compare)


app.command()(guide)


_DataDir: TypeAlias = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Where all is kept.")]
_DATA_DIR = Path(".batchyard")
_LogLevel: TypeAlias = Annotated[
    LogLevel, typer.Option("--log-level", help="How much is logged: info tells each decision.")
]
_LogForm: TypeAlias = Annotated[LogForm, typer.Option("--log-format", help="Lines for people, or JSON lines.")]
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
    typer.Option(metavar="FILE", help="The nodes there are: simulated pools, limits; `local`: this machine, for real."),
]
_Port: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="Where to listen; 0: any port that is free.")
]
_Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Kueue's Configuration, to decide by.")
]
_Images: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--image", metavar="NAME=DIR", help="What stands for an image: a virtualenv, a root folder, / for the machine."
    ),
]
_HostPaths: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--host-path", metavar="DIR", help="A folder of the machine that pods may have by hostPath."),
]


_Listen: TypeAlias = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Listen at this address of the machine, for others to reach.")
]


_AuditLog: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write down who did what, as JSON lines; 100 MB, and the last.")
]
_Controllers: TypeAlias = Annotated[
    str, typer.Option(metavar="LIST", help="Which controllers run: *, name, -name; an operator does the rest.")
]


@app.command()
def up(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    data_dir: _DataDir = _DATA_DIR,
    cluster: _Cluster = None,
    config: _Config = None,
    image: _Images = None,
    host_path: _HostPaths = None,
    host_network: Annotated[
        bool, typer.Option("--host-network", help="Let pods of this machine ask for its network (hostNetwork).")
    ] = False,
    speed: Annotated[
        float, typer.Option(parser=speed, metavar="FACTOR", show_default="1x", help="How fast time runs: 1x, 60x.")
    ] = 1.0,
    port: _Port = 0,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="No TLS and no credentials, for whoever is on this machine.")
    ] = False,
    sync: Annotated[
        Sync,
        typer.Option(
            help="What an answered change survives: full, the loss of power; process, the end of the process."
        ),
    ] = Sync.FULL,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on from a journal that has lost what was acknowledged.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it listens; it goes on in the background.")
    ] = False,
    listen: _Listen = None,
    audit_log: _AuditLog = None,
    controllers: _Controllers = "*",
    log_level: _LogLevel = LogLevel.WARNING,
    log_form: _LogForm = LogForm.TEXT,
    otlp: _Otlp = "",
    runtime: _Runtime = None,
) -> None:
    """Run the platform on this machine, for kubectl to talk to, until it is told to end."""
    if insecure_loopback and listen is not None:
        raise typer.BadParameter("--insecure-loopback is for this machine alone: leave out --listen")
    from batchyard.cli import up as command  # noqa: PLC0415 - loads the platform
    from batchyard.server.logging.logs import LogSettings  # noqa: PLC0415 - loads the platform
    from batchyard.server.platform.data_dir import LOOPBACK, Place  # noqa: PLC0415 - loads the platform
    from batchyard.store.journal import Sync as Promise  # noqa: PLC0415 - loads the platform

    place = Place(
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
    logs = LogSettings(log_level.value, log_form is LogForm.JSON)
    wanted = command.Wanted(place, cluster, speed, image or (), host_path or (), logs, config, host_network)
    command.up(wanted, detach=detach)


def _lease_option(name: str, told: str, default: str) -> Any:
    option = f"--leader-elect-{name}"
    return typer.Option(option, parser=_duration, metavar="DURATION", help=told, show_default=default)


_Kubeconfig: TypeAlias = Annotated[
    str,
    typer.Option(envvar="KUBECONFIG", metavar="FILE", help="The cluster; by default as pods find it, or as kubectl."),
]
_LeaseName: TypeAlias = Annotated[str, typer.Option("--leader-elect-resource-name", metavar="NAME", help="The Lease.")]
_LeaseNamespace: TypeAlias = Annotated[
    str, typer.Option("--leader-elect-resource-namespace", metavar="NS", help="Where it is; by default the context's.")
]
_LeaseDuration: TypeAlias = Annotated[Duration, _lease_option("lease-duration", "When others may take it.", "15s")]
_RenewDeadline: TypeAlias = Annotated[
    Duration, _lease_option("renew-deadline", "Who has not renewed it by then ends.", "10s")
]
_RetryPeriod: TypeAlias = Annotated[Duration, _lease_option("retry-period", "How often it is renewed.", "2s")]


_WebhookPort: TypeAlias = Annotated[
    int, typer.Option("--webhook-port", min=0, max=65535, help="Where the API server asks about objects; 0: nowhere.")
]
_WebhookService: TypeAlias = Annotated[
    str, typer.Option("--webhook-service", metavar="NAME", help="The Service that leads there.")
]
_WebhookSecret: TypeAlias = Annotated[
    str, typer.Option("--webhook-certificates", metavar="NAME", help="The Secret of its certificates.")
]
_WebhookLifetime: TypeAlias = Annotated[
    Duration,
    typer.Option(
        "--webhook-certificate-lifetime",
        parser=_duration,
        metavar="DURATION",
        help="How long one is good.",
        show_default="8760h",
    ),
]


@app.command()
def operator(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    kubeconfig: _Kubeconfig = "",
    context: Annotated[str, typer.Option(metavar="NAME", help="Which context of the kubeconfig.")] = "",
    controllers: Annotated[
        str, typer.Option(metavar="LIST", help="Which run: *, name, -name; by default what Kubernetes does not do.")
    ] = "",
    leader_elect: Annotated[
        bool, typer.Option("--leader-elect/--no-leader-elect", help="Work only while holding a Lease.")
    ] = True,
    lease_name: _LeaseName = "batchyard",
    lease_namespace: _LeaseNamespace = "",
    lease_duration: _LeaseDuration = 15 * SECOND,
    renew_deadline: _RenewDeadline = 10 * SECOND,
    retry_period: _RetryPeriod = 2 * SECOND,
    qps: Annotated[float, typer.Option("--kube-api-qps", min=0.1, help="Requests a second in the long run.")] = 300.0,
    burst: Annotated[int, typer.Option("--kube-api-burst", min=1, help="Requests at once.")] = 500,
    config: _Config = None,
    fair_sharing: Annotated[bool, typer.Option("--fair-sharing", help="Share what is borrowed by weights.")] = False,
    install_crds: Annotated[
        bool, typer.Option("--install-crds", help="First install the kinds that the cluster does not serve.")
    ] = False,
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Where health and metrics are told.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of health and metrics; 0: none.")] = 0,
    log_level: _LogLevel = LogLevel.WARNING,
    log_form: _LogForm = LogForm.TEXT,
    otlp: _Otlp = "",
    beside_upstream: Annotated[
        bool, typer.Option("--beside-upstream", help="Decide even where Kueue or JobSet's own controllers do.")
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
    """Run controllers against a Kubernetes API server elsewhere, until told to end."""
    if of_shadow.looks_on(shadow, lasts, patience, form):
        where, listens = (kubeconfig, context), (listen, port)
        of_shadow.look_on(where, listens, lasts, patience, kueue=(config, fair_sharing), form=form)
        return
    if not lease_duration > renew_deadline > retry_period * 6 // 5 > 0:
        raise typer.BadParameter("a lease is longer than its renew deadline, and that than 1.2 retry periods")
    chosen = chosen_of_operator(controllers)
    from batchyard.cli import operator as command  # noqa: PLC0415 - loads the platform
    from batchyard.server.logging.logs import LogSettings  # noqa: PLC0415 - loads the platform
    from batchyard.server.operator.webhooks import WebhookTerms  # noqa: PLC0415 - loads the platform

    lease = command.Lease(lease_name, lease_namespace, lease_duration, renew_deadline, retry_period)
    options = command.Options(kubeconfig, context, chosen, lease if leader_elect else None, qps, burst)
    options = options._replace(logs=LogSettings(log_level.value, log_form is LogForm.JSON), traces_to=otlp)
    options = options._replace(
        beside_upstream=beside_upstream,
        webhooks=WebhookTerms(webhook_port, webhook_service, webhook_certificates, webhook_lifetime),
    )
    options = options._replace(config=config, fair_sharing=fair_sharing)
    command.operator(options._replace(installs=install_crds, address=listen, port=port))


@app.command()
def status(
    data_dir: _DataDir = _DATA_DIR,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Say how the platform of a data directory is: health, time, counts, queues, nodes, journal."""
    from batchyard.cli.status import status as command  # noqa: PLC0415 - loads the platform

    command(data_dir, output)


@app.command()
def down(
    data_dir: _DataDir = _DATA_DIR,
    end_pods: Annotated[
        bool, typer.Option("--end-pods", help="End the pods of this machine too, which else go on.")
    ] = False,
) -> None:
    """Tell the platform of a data directory to end, and wait until it has."""
    from batchyard.cli.up import down as command  # noqa: PLC0415 - loads the platform

    command(data_dir, end_pods=end_pods)


@app.command()
def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the user.")],
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group that the user is in, such as a team; repeatable.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAMESPACE", help="Where kubectl is to work for the user.")
    ] = "",
    days: Annotated[
        int, typer.Option(metavar="N", min=1, max=365, help="For how long it is good; it cannot be taken back.")
    ] = 30,
    data_dir: _DataDir = _DATA_DIR,
) -> None:
    """Write a kubeconfig for another user of the platform; what he may do is said by RoleBindings."""
    from batchyard.cli import user as command  # noqa: PLC0415 - loads the platform

    command.user(data_dir, command.NewUser(name, group or [], namespace, days))


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; it must not be there.")],
    data_dir: _DataDir = _DATA_DIR,
) -> None:
    """Write all that a platform holds into a file, while it runs or not."""
    from batchyard.cli.backup import backup as command  # noqa: PLC0415 - loads the platform

    command(file, data_dir)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `batchyard backup` wrote.")],
    data_dir: _DataDir = _DATA_DIR,
) -> None:
    """Make a data directory from a backup; what is there is never overwritten."""
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
    """Run a command under a queue: make its Job, tell what becomes of it, show its logs, end with its exit code."""
    argv = of.command_line(context)
    if output is Form.YAML and not dry_run:
        raise typer.BadParameter("--output yaml is of --dry-run: say --output json for events as JSON lines")
    from batchyard.cli.submit import command  # noqa: PLC0415 - loads the object model
    from batchyard.cli.submit.manifests import Asked  # noqa: PLC0415 - as above
    from batchyard.cli.submit.wanted import Request  # noqa: PLC0415 - as above

    asked = Asked(argv, name, queue, image, namespace, priority, cpu, memory, {gpu_resource: gpus} if gpus else {})
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
    request = Request(asked, folder, cluster, kube_context, data_dir or _DATA_DIR, dry_run, detach, output)
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
