"""The command `batchyard operator`: runs the controllers or shadow mode against an external API server.

Shadow mode changes nothing: it predicts the decisions of the cluster's Kueue and reports each divergence.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import typer
import uvloop

from batchyard.base.counts import count_with_noun
from batchyard.base.instant import HOUR, SECOND, Duration
from batchyard.base.primitives import uid_for
from batchyard.cli import options as cli_options
from batchyard.cli import output
from batchyard.cli.kueue_configuration import read_kueue_settings, read_shadow_settings
from batchyard.client.leader_election import LeaseSettings
from batchyard.controller_groups import ADMISSION
from batchyard.operator_manifests.deployment import InstallSettings
from batchyard.operator_manifests.rights import crd_names
from batchyard.scheduling.decisions import DEFAULT_VERSION, KueueVersion
from batchyard.scheduling.kueue_configuration import KueueSettings
from batchyard.scheduling.queue_manager import KUEUE_REQUEUE_BATCH_PERIOD
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.kubeconfig.access import KubeconfigError, KubeconfigSource
from batchyard.server.logging.logs import LogSettings, configure_logging
from batchyard.server.operator.operator import ClientRateLimits, OperatorConfig, OperatorError, run_operator
from batchyard.server.operator.shadow import ShadowConfig, compare_with_kueue
from batchyard.server.operator.webhooks import WebhookOptions
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.state import ShadowSettings
from batchyard.wiring import PlatformSettings

# `batchyard operator --shadow`: reports divergences between Kueue's decisions and ours.
#
# Each divergence is one line of JSON on standard output, followed by a summary, or text lines with `-o text`.
# Everything else goes to standard error. The exit code is 1 after a divergence.


_encode_json = msgspec.json.Encoder().encode


def shadow(config: ShadowConfig, output_format: cli_options.ProgressFormat) -> None:
    """Run shadow mode until a termination signal or for the configured duration, and print the divergences.

    Exits with 1 on failure, and at the end of the run if there was a divergence.
    """
    try:
        write_divergence = (
            _write_divergence_as_text if output_format is cli_options.ProgressFormat.TEXT else _write_divergence_as_json
        )
        comparison_counts = uvloop.run(_run_until_signal(config, write_divergence))
    except (KubeconfigError, OSError) as error:
        output.fail(f"batchyard: {error}")
    if output_format is cli_options.ProgressFormat.TEXT:
        output.write(comparison_summary(comparison_counts) + "\n")
    else:
        output.write(_encode_json(comparison_counts.document()).decode() + "\n")
        output.report_line(f"batchyard: {comparison_summary(comparison_counts)}")
    if comparison_counts.divergence_count:
        raise SystemExit(1)


def comparison_summary(counts: ComparisonCounts) -> str:
    """Return the numbers of agreeing and of divergent decisions of Kueue as one line."""
    agreement_count = sum(counts.agreements.values())
    divergences_by_kind = ", ".join(f"{count} {name}" for name, count in sorted(counts.divergences.items()))
    message = (
        f"{count_with_noun(agreement_count, 'decision')} of Kueue as predicted,"
        f" {count_with_noun(counts.divergence_count, 'divergence')}"
    )
    return f"{message}: {divergences_by_kind}" if divergences_by_kind else message


async def _run_until_signal(config: ShadowConfig, write_divergence: Callable[[Divergence], None]) -> ComparisonCounts:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    return await compare_with_kueue(config, write_divergence, output.report_line, end)


def _write_divergence_as_json(divergence: Divergence) -> None:
    output.write(_encode_json(divergence.document()).decode() + "\n")


def _write_divergence_as_text(divergence: Divergence) -> None:
    output.write(divergence.text() + "\n")


Shadow: TypeAlias = Annotated[
    bool, typer.Option("--shadow", help="Observe only: report where the cluster's Kueue decides differently.")
]
ShadowDuration: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        "--for", parser=cli_options.to_duration, metavar="DURATION", help="With --shadow: end after this duration."
    ),
]
Patience: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=cli_options.to_duration,
        metavar="DURATION",
        help="With --shadow: longest delay between the decisions of both schedulers; default: 15s.",
    ),
]

Output: TypeAlias = Annotated[
    cli_options.ProgressFormat | None,
    typer.Option("--output", "-o", help="With --shadow: divergences as JSON lines (default) or text."),
]


def is_shadow(
    shadow: bool, duration: Duration | None, patience: Duration | None, output_format: cli_options.ProgressFormat | None
) -> bool:
    """Return whether shadow mode is on; raise BadParameter if an option of shadow mode is set without `--shadow`."""
    if not shadow and any(option is not None for option in (duration, patience, output_format)):
        raise typer.BadParameter("--for, --patience and --output require --shadow: add it, or remove them")
    return shadow


def run_shadow(
    kubeconfig_and_context: tuple[str, str],
    address_and_port: tuple[str, int],
    duration: Duration | None,
    patience: Duration | None,
    *,
    kueue: tuple[Path | None, bool, KueueVersion],
    output_format: cli_options.ProgressFormat | None,
) -> None:
    """Run shadow mode with the options of the command; `kueue`: Configuration file, fair sharing flag and version."""
    defaults = ShadowSettings()
    settings = defaults if patience is None else ShadowSettings(min(defaults.watch_skew_max, patience // 2), patience)
    config, fair_sharing, version = kueue
    kueue_settings = None if config is None else read_shadow_settings(config)
    shadow(
        ShadowConfig(
            KubeconfigSource(*kubeconfig_and_context),
            kueue_settings,
            fair_sharing,
            settings,
            duration,
            *address_and_port,
            version,
        ),
        output_format or cli_options.ProgressFormat.JSON,
    )


class LeaseOptions(NamedTuple):
    """The leader election options; namespace '' selects the namespace of the kubeconfig context."""

    name: str
    namespace: str
    duration: Duration
    renew_deadline: Duration
    retry_period: Duration


class OperatorOptions(NamedTuple):
    """The arguments of `batchyard operator`."""

    kubeconfig: str
    context: str
    controllers: tuple[str, ...]
    lease: LeaseOptions | None
    qps: float
    burst: int
    #: The file with Kueue's Configuration.
    config: Path | None = None
    fair_sharing: bool = False
    #: The version of Kueue whose decision rules apply.
    kueue_version: KueueVersion = DEFAULT_VERSION
    #: Whether missing CRDs are installed first.
    installs_definitions: bool = False
    address: str = ""
    port: int = 0
    logs: LogSettings = LogSettings()
    traces_to: str = ""
    webhooks: WebhookOptions = WebhookOptions()
    beside_upstream: bool = False


def start(options: OperatorOptions) -> None:
    """Run the operator until a termination signal; exit with 1 on failure."""
    configure_logging(options.logs)
    try:
        uvloop.run(_run_operator_until_signal(_operator_config(options)))
    except (OperatorError, KubeconfigError, OSError) as error:
        output.fail(f"batchyard: {error}")
    output.report_line("batchyard: the operator has ended")


def _operator_config(options: OperatorOptions) -> OperatorConfig:
    install_settings = InstallSettings(controllers=options.controllers)
    kueue = _kueue_settings(options)
    settings = PlatformSettings(kueue, controllers=options.controllers, requeue_batch_period=KUEUE_REQUEUE_BATCH_PERIOD)
    settings = replace(settings, with_topology=ADMISSION in options.controllers and kueue.is_topology_aware)
    return OperatorConfig(
        KubeconfigSource(options.kubeconfig, options.context),
        replace(settings, with_nodes=True, with_costs=True, is_endless=True),
        None if options.lease is None else _lease_settings(options.lease),
        ClientRateLimits(options.qps, options.burst),
        options.installs_definitions,
        options.address,
        options.port,
        options.traces_to,
        options.webhooks._replace(definitions=crd_names(install_settings, only_converted=True)),
        options.beside_upstream,
    )


def _kueue_settings(options: OperatorOptions) -> KueueSettings:
    """Return the Kueue settings; the PodsReady timeout also applies to Workloads that no job object owns."""
    settings = KueueSettings() if options.config is None else read_kueue_settings(options.config)
    if settings.pods_ready is not None:
        settings = replace(settings, pods_ready=replace(settings.pods_ready, without_job=True))
    settings = settings.with_version(options.kueue_version)
    return settings.with_fair_sharing() if options.fair_sharing else settings


def _lease_settings(lease: LeaseOptions) -> LeaseSettings:
    host_name = socket.gethostname()
    identity = f"{host_name}_{uid_for(wall_clock(), host_name, str(os.getpid()))}"
    durations = lease.duration, lease.renew_deadline, lease.retry_period
    return LeaseSettings(identity, lease.namespace, lease.name, *durations)


async def _run_operator_until_signal(config: OperatorConfig) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    await run_operator(config, output.report_line, end)


def _lease_option(name: str, description: str, default: str) -> Any:
    option = f"--leader-elect-{name}"
    return typer.Option(
        option, parser=cli_options.to_duration, metavar="DURATION", help=description, show_default=default
    )


_Kubeconfig: TypeAlias = Annotated[
    str, typer.Option(envvar="KUBECONFIG", metavar="FILE", help="The cluster; default: in-cluster, else kubectl's.")
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
    Duration, _lease_option("lease-duration", "Time after which other replicas may acquire the Lease.", "15s")
]
_RenewDeadline: TypeAlias = Annotated[
    Duration, _lease_option("renew-deadline", "The leader exits if it cannot renew the Lease in this time.", "10s")
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
        parser=cli_options.to_duration,
        metavar="DURATION",
        help="Validity of a webhook certificate.",
        show_default="8760h",
    ),
]


def operator(
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
    config: cli_options.ConfigFile = None,
    fair_sharing: Annotated[bool, typer.Option("--fair-sharing", help="Enable fair sharing by weights.")] = False,
    kueue_version: cli_options.KueueVersionOption = cli_options.KueueVersionChoice.V0_19,
    install_crds: Annotated[
        bool, typer.Option("--install-crds", help="First install the CRDs that are missing.")
    ] = False,
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="The address of health and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of health and metrics; 0: none.")] = 0,
    log_level: cli_options.LogLevelOption = cli_options.LogLevel.WARNING,
    log_format: cli_options.LogFormatOption = cli_options.LogFormat.TEXT,
    otlp: cli_options.Otlp = "",
    beside_upstream: Annotated[
        bool, typer.Option("--beside-upstream", help="Run even if Kueue's or JobSet's own controllers run.")
    ] = False,
    webhook_port: _WebhookPort = 0,
    webhook_service: _WebhookService = "batchyard-operator-webhooks",
    webhook_certificates: _WebhookSecret = "batchyard-operator-webhook-certificates",
    webhook_lifetime: _WebhookLifetime = 365 * 24 * HOUR,
    shadow: Shadow = False,
    duration: ShadowDuration = None,
    patience: Patience = None,
    output_format: Output = None,
) -> None:
    """Run controllers against an external Kubernetes API server until a termination signal arrives."""
    kueue = config, fair_sharing, KueueVersion(kueue_version.value)
    if is_shadow(shadow, duration, patience, output_format):
        cluster, address = (kubeconfig, context), (listen, port)
        run_shadow(cluster, address, duration, patience, kueue=kueue, output_format=output_format)
        return
    if not lease_duration > renew_deadline > retry_period * 6 // 5 > 0:
        raise typer.BadParameter(
            "--leader-elect-lease-duration must exceed --leader-elect-renew-deadline,"
            " which must exceed 1.2 times --leader-elect-retry-period"
        )
    chosen_controllers = cli_options.parse_operator_controllers(controllers)
    lease = LeaseOptions(lease_name, lease_namespace, lease_duration, renew_deadline, retry_period)
    options = OperatorOptions(kubeconfig, context, chosen_controllers, lease if leader_elect else None, qps, burst)
    logs = LogSettings(log_level.value, log_format is cli_options.LogFormat.JSON)
    webhooks = WebhookOptions(webhook_port, webhook_service, webhook_certificates, webhook_lifetime)
    options = options._replace(logs=logs, traces_to=otlp, beside_upstream=beside_upstream, webhooks=webhooks)
    options = options._replace(config=kueue[0], fair_sharing=kueue[1], kueue_version=kueue[2])
    start(options._replace(installs_definitions=install_crds, address=listen, port=port))
