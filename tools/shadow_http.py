"""Replays Kueue's decisions of recorded scenarios, and lets a shadow in a separate process follow them over HTTP.

    python tools/shadow_http.py [NAME...] [--together 1] [--servers 8] [--bad SEED]

This process runs the embedded API server with a journal, and puts Kueue's decisions into its store at their recorded
times; longer pauses are cut to 50 ms. `batchyard operator --shadow` runs as a separate process. Each scenario has its
own server, or --together of them share one, with unique names. `--bad` adds a proxy that delays each watch by a
different time of up to three seconds, repeats lines, breaks watches, and rejects their resumption. It also restarts the
shadow in the middle.

Use the project's environment. Exits with 1 if a shadow reports a divergence.
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
from batchyard.server.http.flow_control import ResponseTurns
from batchyard.server.http.protocol import HttpProtocol
from batchyard.server.platform.data_dir import PlatformOptions
from batchyard.server.platform.platform import EmbeddedPlatform
from differential.merged_scenarios import namespaces_of, with_unique_names
from differential.recorded_scenarios import packed_cases, shared_cases
from differential.shadow_runs import ServerObjects
from differential.upstream_writes import TimedWrites, Upstream, read_case
from e2e_platform.bad_proxy import BadProxy, ProxyFaults
from e2e_platform.operator_process import plain_kubeconfig

#: The maximum pause between two recorded times.
_PAUSE_MAX = 50 * MILLISECOND
#: The time for which a shadow waits for Kueue's decision, in seconds.
_PATIENCE = 4
#: The pause between the last decision and the end of the shadow.
_FINAL_PAUSE = 8 * SECOND
BAD = ProxyFaults(0, 3, 0.5, 5, 6, 3)


class ScenarioPlatform(EmbeddedPlatform):
    """A platform whose store receives Kueue's recorded writes."""

    def writable_store(self) -> ServerObjects:
        """Return the store, for direct writes."""
        return ServerObjects(self._store)

    def execute(self, moment: TimedWrites) -> None:
        """Execute the writes of a moment on the event loop."""
        self._kernel.post(moment.work)


class ShadowReport(NamedTuple):
    """The output of a shadow: its divergences, and the numbers of matching and of unobserved decisions."""

    divergences: list[dict[str, Any]]
    agreed: int
    unseen: int


def create_moments(names: Sequence[str], cases: Any, store: ServerObjects) -> list[TimedWrites]:
    """Create the namespaces of the scenarios; return their recorded writes in order of time."""
    moments: list[TimedWrites] = []
    for number, name in enumerate(names):
        scenario, log = read_case(name, *cases[name])
        prefix = f"s{number}"
        for namespace in namespaces_of(scenario):
            store.put(new_namespace(f"{prefix}-{namespace}"))
        moments += Upstream(store, *with_unique_names(prefix, scenario, log)).moments()
    return sorted(moments, key=lambda moment: moment.at)


async def follow_scenarios(
    names: Sequence[str], cases: Any, badness: ProxyFaults | None, *, fair_sharing: bool
) -> ShadowReport:
    """Replay scenarios on one server; return the report of its shadow."""
    folder = Path(mkdtemp())
    try:
        async with AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            settings = PlatformOptions(folder, controllers=("api", "namespaces"), is_insecure=True)
            platform = ScenarioPlatform(settings, None, 1.0)
            stack.push_async_callback(platform.close)
            connect = partial(
                HttpProtocol, platform.create_dispatcher(), Connections(), ResponseTurns(loop), is_secure=False
            )
            server = await loop.create_server(connect, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            if badness is not None:
                url = (await stack.enter_async_context(BadProxy(url, badness))).url
            options = ["--patience", f"{_PATIENCE}s", *(["--fair-sharing"] if fair_sharing else [])]
            start = partial(start_shadow, plain_kubeconfig(folder, url), options)
            moments = create_moments(names, cases, platform.writable_store())
            shadow = await start()
            reports = []
            for number, moment in enumerate(moments):
                if number and moment.at - moments[number - 1].at:
                    await sleep_for(min(_PAUSE_MAX, moment.at - moments[number - 1].at))
                if badness is not None and number == len(moments) // 2:
                    reports.append(await stop_shadow(shadow))
                    shadow = await start()
                platform.execute(moment)
            await sleep_for(_FINAL_PAUSE)
            reports.append(await stop_shadow(shadow))
            server.close()
            platform.end_watches()
    finally:
        shutil.rmtree(folder)
    return merge_reports(reports)


async def start_shadow(kubeconfig: Path, options: Sequence[str]) -> asyncio.subprocess.Process:
    """Start a shadow, and wait until it follows Kueue."""
    command = [sys.executable, "-m", "batchyard", "operator", "--shadow", "--kubeconfig", str(kubeconfig), *options]
    pipe = asyncio.subprocess.PIPE
    shadow = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert shadow.stderr is not None
    async for line in shadow.stderr:
        if b"comparing with Kueue" in line:
            return shadow
    raise AssertionError("the shadow exited before it was ready")


async def stop_shadow(shadow: asyncio.subprocess.Process) -> ShadowReport:
    """Stop a shadow; return its report."""
    shadow.send_signal(signal.SIGTERM)
    printed, _ = await shadow.communicate()
    *divergences, summary = [json.loads(line) for line in printed.splitlines()]
    return ShadowReport(divergences, sum(summary["agreed"].values()), summary["unseen"])


async def follow_all(args: argparse.Namespace, cases: Any) -> ShadowReport:
    """Replay all scenarios, on several servers at a time; return the merged report."""
    badness = None if args.bad is None else BAD._replace(seed=args.bad)
    names = args.names or list(cases)
    has_fair_sharing = {name: read_case(name, *cases[name])[0].fair_sharing for name in names}
    servers = asyncio.Semaphore(args.servers)

    async def follow_group(group: Sequence[str]) -> ShadowReport:
        async with servers:
            report = await follow_scenarios(group, cases, badness, fair_sharing=has_fair_sharing[group[0]])
        counts = f"{report.agreed} decisions agree, {len(report.divergences)} divergences"
        sys.stdout.write(f"{', '.join(group)}: {counts}\n")
        for divergence in report.divergences:
            sys.stdout.write(f"  {divergence['type']} {divergence['workload']}: {divergence['message']}\n")
        sys.stdout.flush()
        return report

    groups: list[Sequence[str]] = []
    for fair_sharing in (False, True):
        selected = [name for name in names if has_fair_sharing[name] is fair_sharing]
        groups += [selected[begin : begin + args.together] for begin in range(0, len(selected), args.together)]
    return merge_reports(await asyncio.gather(*map(follow_group, groups)))


def merge_reports(reports: Sequence[ShadowReport]) -> ShadowReport:
    """Return one report with the divergences and total counts of several reports."""
    divergences = [divergence for report in reports for divergence in report.divergences]
    return ShadowReport(divergences, sum(each.agreed for each in reports), sum(each.unseen for each in reports))


def main() -> int:
    """Replay the scenarios; print the divergences and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--together", type=int, default=1, help="number of scenarios per server")
    parser.add_argument("--servers", type=int, default=8, help="number of concurrent servers")
    parser.add_argument("--bad", type=int, metavar="SEED", help="inject network faults chosen by the seed")
    args = parser.parse_args()
    cases = {**packed_cases(), **shared_cases()}
    report = asyncio.run(follow_all(args, cases))
    count = len(args.names or cases)
    sys.stdout.write(f"{count} scenarios: {report.agreed} decisions agree, {report.unseen} not observed; ")
    sys.stdout.write(f"{len(report.divergences)} divergences\n")
    return 1 if report.divergences else 0


if __name__ == "__main__":
    sys.exit(main())
