"""`batchyard operator --shadow`: reports divergences between another scheduler's decisions and ours.

Each divergence is one line of JSON on standard output, followed by a summary, or text lines with `-o text`. Everything
else goes to standard error. The exit code is 1 after a divergence.
"""

import asyncio
import signal
from collections.abc import Callable

import msgspec
import uvloop

from batchyard.cli import output
from batchyard.cli.options import ProgressFormat
from batchyard.server.kubeconfig.access import KubeconfigError
from batchyard.server.operator.shadow import ShadowConfig, compare_with_kueue
from batchyard.shadow.findings import ComparisonCounts, Divergence

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
