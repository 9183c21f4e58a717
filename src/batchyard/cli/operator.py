"""`batchyard operator`: runs the controllers against an external API server, in the foreground."""

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import uvloop

from batchyard.base.ids import uid_for
from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.kueue_file import settings_in
from batchyard.client.leader_election import LeaseSettings
from batchyard.operator_manifests.definitions import definition_names
from batchyard.operator_manifests.settings import InstallSettings as Installed
from batchyard.scheduling.kueue_configuration import KueueSettings
from batchyard.scheduling.queue_manager import KUEUE_REQUEUE_BATCH_PERIOD
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.kubeconfig.access import KubeconfigError, KubeconfigSource
from batchyard.server.logging.logs import LogSettings
from batchyard.server.logging.logs import begin as begin_logs
from batchyard.server.operator.operator import ClientRateLimits, OperatorConfig, OperatorError, operate
from batchyard.server.operator.webhooks import WebhookTerms
from batchyard.wiring import PlatformSettings


class LeaseOptions(NamedTuple):
    """The Lease of leader election; namespace '' for that of the context."""

    name: str
    namespace: str
    duration: Duration
    renew_deadline: Duration
    retry_period: Duration


class OperatorOptions(NamedTuple):
    """The arguments of the command."""

    kubeconfig: str
    context: str
    controllers: tuple[str, ...]
    lease: LeaseOptions | None
    qps: float
    burst: int
    #: Kueue's Configuration.
    config: Path | None = None
    fair_sharing: bool = False
    installs: bool = False
    address: str = ""
    port: int = 0
    logs: LogSettings = LogSettings()
    traces_to: str = ""
    webhooks: WebhookTerms = WebhookTerms()
    beside_upstream: bool = False


def operator(options: OperatorOptions) -> None:
    """Run until a termination signal."""
    begin_logs(options.logs)
    try:
        uvloop.run(_run_until_signal(_wanted(options)))
    except (OperatorError, KubeconfigError, OSError) as error:
        output.fail(f"batchyard: {error}")
    output.report_line("batchyard: ended")


def _wanted(options: OperatorOptions) -> OperatorConfig:
    named = Installed(controllers=options.controllers)
    settings = PlatformSettings(_kueue(options), controllers=options.controllers, gathers=KUEUE_REQUEUE_BATCH_PERIOD)
    return OperatorConfig(
        KubeconfigSource(options.kubeconfig, options.context),
        replace(settings, with_nodes=True, with_costs=True, is_endless=True),
        None if options.lease is None else _terms(options.lease),
        ClientRateLimits(options.qps, options.burst),
        options.installs,
        options.address,
        options.port,
        options.traces_to,
        options.webhooks._replace(definitions=definition_names(named, converted=True)),
        options.beside_upstream,
    )


def _kueue(options: OperatorOptions) -> KueueSettings:
    """Kueue's settings: defaults, or those of its Configuration. Workloads without a job must become ready too."""
    kueue = KueueSettings() if options.config is None else settings_in(options.config)
    if kueue.pods_ready is not None:
        kueue = replace(kueue, pods_ready=replace(kueue.pods_ready, without_job=True))
    return kueue.sharing_fairly() if options.fair_sharing else kueue


def _terms(lease: LeaseOptions) -> LeaseSettings:
    """The terms of the leader election, with a unique identity for this process."""
    host = socket.gethostname()
    identity = f"{host}_{uid_for(wall_clock(), host, str(os.getpid()))}"
    return LeaseSettings(
        identity, lease.namespace, lease.name, lease.duration, lease.renew_deadline, lease.retry_period
    )


async def _run_until_signal(wanted: OperatorConfig) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    await operate(wanted, output.report_line, end)
