"""The options of `batchyard operator --shadow`."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
import uvloop

from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.kueue_configuration import beside
from batchyard.cli.options import ProgressFormat, duration
from batchyard.server.kubeconfig.access import KubeconfigError, KubeconfigSource
from batchyard.server.operator.shadow import ShadowConfig, compare_with_kueue
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.state import ShadowSettings

# --- shadow ---
#
# `batchyard operator --shadow`: reports divergences between another scheduler's decisions and ours.
#
# Each divergence is one line of JSON on standard output, followed by a summary, or text lines with `-o text`.
# Everything else goes to standard error. The exit code is 1 after a divergence.


_encode = msgspec.json.Encoder().encode


def shadow(wanted: ShadowConfig, form: ProgressFormat) -> None:
    """Observe until a termination signal or the end of the requested duration."""
    try:
        counts = uvloop.run(_run_until_signal(wanted, _write_text if form is ProgressFormat.TEXT else _write))
    except (KubeconfigError, OSError) as error:
        output.fail(f"batchyard: {error}")
    if form is ProgressFormat.TEXT:
        output.write(summary(counts) + "\n")
    else:
        output.write(_encode(counts.document()).decode() + "\n")
        output.report_line(f"batchyard: {summary(counts)}")
    if counts.divergences:
        raise SystemExit(1)


def summary(counts: ComparisonCounts) -> str:
    """The result in one line."""
    agreed = sum(counts.agreed.values())
    parted = ", ".join(f"{count} {name}" for name, count in sorted(counts.parted.items()))
    message = f"{agreed} decisions of upstream as predicted, {counts.divergences} divergences"
    return f"{message}: {parted}" if parted else message


async def _run_until_signal(wanted: ShadowConfig, write: Callable[[Divergence], None]) -> ComparisonCounts:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    return await compare_with_kueue(wanted, write, output.report_line, end)


def _write(finding: Divergence) -> None:
    output.write(_encode(finding.document()).decode() + "\n")


def _write_text(finding: Divergence) -> None:
    output.write(finding.text() + "\n")


Shadow: TypeAlias = Annotated[
    bool,
    typer.Option("--shadow", help="Observe only: report where the cluster's Kueue decides differently."),
]
Lasts: TypeAlias = Annotated[
    Duration | None,
    typer.Option("--for", parser=duration, metavar="DURATION", help="With --shadow: end after this duration."),
]
Patience: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=duration,
        metavar="DURATION",
        help="With --shadow: longest delay between both decisions; default: 15s.",
    ),
]

Output: TypeAlias = Annotated[
    ProgressFormat | None,
    typer.Option("--output", "-o", help="With --shadow: divergences as JSON lines (default) or text."),
]


def is_shadow(shadow: bool, lasts: Duration | None, patience: Duration | None, form: ProgressFormat | None) -> bool:
    """Whether shadow mode is on; BadParameter if its options are given without it."""
    if not shadow and any(each is not None for each in (lasts, patience, form)):
        raise typer.BadParameter("--for, --patience and --output require --shadow")
    return shadow


def run_shadow(
    where: tuple[str, str],
    listens: tuple[str, int],
    lasts: Duration | None,
    patience: Duration | None,
    *,
    kueue: tuple[Path | None, bool],
    form: ProgressFormat | None,
) -> None:
    """Run shadow mode beside a Kueue; `kueue`: its Configuration, and whether it uses fair sharing."""
    terms = (
        ShadowSettings() if patience is None else ShadowSettings(min(ShadowSettings().settle, patience // 2), patience)
    )
    config, fair_sharing = kueue
    stated = None if config is None else beside(config)
    shadow(
        ShadowConfig(KubeconfigSource(*where), stated, fair_sharing, terms, lasts, *listens),
        form or ProgressFormat.JSON,
    )
