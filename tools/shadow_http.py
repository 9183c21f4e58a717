"""Follows what upstream decided in recorded scenarios by a shadow in a process of its own, over HTTP.

    python tools/shadow_http.py [NAME...] [--together 1] [--servers 8] [--bad SEED]

The embedded API server runs in this process, with a journal, and upstream's decisions are put into its store at their
moments, with what lies between them made short. `batchyard operator --shadow` is another process, and reads over HTTP.
Each scenario has a server, or several share one, with names of their own. `--bad` puts a proxy between both on which
each watch is late by a time of its own, up to three seconds, lines come twice, watches break off and cannot go on; and
the shadow is ended and begun again in the middle. Run it with the project's environment; it ends with 1 if a parting
was told.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.admission_plugins.built_in import new_namespace
from batchyard.base.instant import MILLISECOND, SECOND
from batchyard.server.clocks.wall import sleep_for
from batchyard.server.http.connections import Connections
from batchyard.server.http.protocol import HttpProtocol
from batchyard.server.platform.data_dir import PlatformOptions
from batchyard.server.platform.platform import EmbeddedPlatform
from differential.merged_scenarios import apart, namespaces_of
from differential.recorded_scenarios import packed_cases, shared_cases
from differential.shadow_runs import Served
from differential.upstream_writes import Moment, Upstream, read_case
from e2e_platform.bad_proxy import Badness, BadProxy
from e2e_platform.operator_process import plain_kubeconfig

#: The longest wait between two moments that are apart, and how long a shadow waits for Kueue.
_APART = 50 * MILLISECOND
_PATIENCE = 4  # seconds
_SETTLES = 8 * SECOND
BAD = Badness(0, 3, 0.5, 5, 6, 3)


class Stored(EmbeddedPlatform):
    """A platform into whose store is put what upstream wrote."""

    def put_into(self) -> Served:
        """Where it is put."""
        return Served(self._store)

    def work(self, moment: Moment) -> None:
        """Do what is due."""
        self._kernel.post(moment.work)


class Told(NamedTuple):
    """What a shadow printed."""

    findings: list[dict[str, Any]]
    agreed: int
    unseen: int


def moments_of(names: Sequence[str], cases: Any, stored: Served) -> list[Moment]:
    """All that happens in these scenarios, in order of time."""
    found: list[Moment] = []
    for number, name in enumerate(names):
        scenario, log = read_case(name, *cases[name])
        word = f"s{number}"
        for namespace in namespaces_of(scenario):
            named = f"{word}-{namespace}"
            stored.put(new_namespace(named))
        found += Upstream(stored, *apart(word, scenario, log)).moments()
    return sorted(found, key=lambda moment: moment.at)


async def followed(names: Sequence[str], cases: Any, badness: Badness | None, *, fair_sharing: bool) -> Told:
    """What a shadow tells of some scenarios on one server."""
    folder = Path(mkdtemp())
    try:
        async with AsyncExitStack() as open_:
            loop = asyncio.get_running_loop()
            place = PlatformOptions(folder, controllers=("api", "namespaces"), is_insecure=True)
            stored = Stored(place, None, 1.0)
            open_.push_async_callback(stored.close)
            connect = partial(HttpProtocol, stored.create_dispatcher(), Connections(), is_secure=False)
            server = await loop.create_server(connect, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            if badness is not None:
                url = (await open_.enter_async_context(BadProxy(url, badness))).url
            options = ["--patience", f"{_PATIENCE}s", *(["--fair-sharing"] if fair_sharing else [])]
            shadow = partial(begun, plain_kubeconfig(folder, url), options)
            moments = moments_of(names, cases, stored.put_into())
            one = await shadow()
            reported = []
            for number, moment in enumerate(moments):
                if number and moment.at - moments[number - 1].at:
                    await sleep_for(min(_APART, moment.at - moments[number - 1].at))
                if badness is not None and number == len(moments) // 2:
                    reported.append(await ended(one))
                    one = await shadow()
                stored.work(moment)
            await sleep_for(_SETTLES)
            reported.append(await ended(one))
            server.close()
            stored.end_watches()
    finally:
        shutil.rmtree(folder)
    return all_of(reported)


async def begun(kubeconfig: Path, options: Sequence[str]) -> asyncio.subprocess.Process:
    """A shadow that looks on."""
    command = [sys.executable, "-m", "batchyard", "operator", "--shadow", "--kubeconfig", str(kubeconfig), *options]
    pipe = asyncio.subprocess.PIPE
    shadow = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert shadow.stderr is not None
    async for line in shadow.stderr:
        if b"looks on" in line:
            return shadow
    raise AssertionError("it ended before it looked on")


async def ended(shadow: asyncio.subprocess.Process) -> Told:
    """What a shadow has told, which is told to end."""
    shadow.send_signal(signal.SIGTERM)
    printed, _ = await shadow.communicate()
    *findings, summary = [json.loads(line) for line in printed.splitlines()]
    return Told(findings, sum(summary["agreed"].values()), summary["unseen"])


async def all_followed(args: argparse.Namespace, cases: Any) -> Told:
    """The same of all scenarios, some on one server, and several servers at a time."""
    badness = None if args.bad is None else BAD._replace(seed=args.bad)
    names = args.names or list(cases)
    shares = {name: read_case(name, *cases[name])[0].fair_sharing for name in names}
    gate = asyncio.Semaphore(args.servers)

    async def one(some: Sequence[str]) -> Told:
        async with gate:
            reported = await followed(some, cases, badness, fair_sharing=shares[some[0]])
        sys.stdout.write(f"{', '.join(some)}: {reported.agreed} as foreseen, {len(reported.findings)} partings\n")
        for finding in reported.findings:
            sys.stdout.write(f"  {finding['type']} {finding['workload']}: {finding['message']}\n")
        sys.stdout.flush()
        return reported

    found: list[Sequence[str]] = []
    for fair_sharing in (False, True):
        chosen = [name for name in names if shares[name] is fair_sharing]
        found += [chosen[begin : begin + args.together] for begin in range(0, len(chosen), args.together)]
    return all_of(await asyncio.gather(*map(one, found)))


def all_of(reported: Sequence[Told]) -> Told:
    """What several have told, together."""
    findings = [finding for each in reported for finding in each.findings]
    return Told(findings, sum(each.agreed for each in reported), sum(each.unseen for each in reported))


def main() -> int:
    """Follow the scenarios; tell of partings, and what all came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--together", type=int, default=1, help="how many scenarios are on one server")
    parser.add_argument("--servers", type=int, default=8, help="how many servers there are at a time")
    parser.add_argument("--bad", type=int, metavar="SEED")
    args = parser.parse_args()
    cases = {**packed_cases(), **shared_cases()}
    reported = asyncio.run(all_followed(args, cases))
    count = len(args.names or cases)
    sys.stdout.write(f"{count} scenarios: {reported.agreed} decisions as foreseen, {reported.unseen} not seen; ")
    sys.stdout.write(f"{len(reported.findings)} partings\n")
    return 1 if reported.findings else 0


if __name__ == "__main__":
    sys.exit(main())
