"""`batchyard operator --shadow`: tells where a scheduler elsewhere decides otherwise than ours would.

Each parting is a line of JSON on standard output, and at the end so is a summary; everything else goes to standard
error. It ends with 1 if there was a parting.
"""

import asyncio
import signal

import msgspec
import uvloop

from batchyard.cli import output
from batchyard.controllers.shadow.findings import Counts, Finding
from batchyard.live.access import KubeconfigError
from batchyard.live.shadow import Wanted, look_on

_encode = msgspec.json.Encoder().encode


def shadow(wanted: Wanted) -> None:
    """Look on until told to end, or for as long as is wanted."""
    try:
        counts = uvloop.run(_until_told(wanted))
    except (KubeconfigError, OSError) as error:
        output.fail(f"batchyard: {error}")
    output.write(_encode(counts.document()).decode() + "\n")
    output.tell(f"batchyard: {summary(counts)}")
    if counts.divergences:
        raise SystemExit(1)


def summary(counts: Counts) -> str:
    """What came of it, in a line."""
    agreed = sum(counts.agreed.values())
    parted = ", ".join(f"{count} {name}" for name, count in sorted(counts.parted.items()))
    told = f"{agreed} decisions of upstream as foreseen, {counts.divergences} otherwise"
    return f"{told}: {parted}" if parted else told


async def _until_told(wanted: Wanted) -> Counts:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    return await look_on(wanted, _write, output.tell, end)


def _write(finding: Finding) -> None:
    output.write(_encode(finding.document()).decode() + "\n")
