"""Whether somebody else decides about the same objects: Kueue, JobSet's own controllers, another batchyard.

They are known by the webhooks they install, whatever the configuration is called that has them, and by what they
write: every change of an object says in its `managedFields` by whom it was. Who begins looks for both, and who decides
goes on looking. Sources: config/default and charts of Kueue and of JobSet; the `name` of their webhooks' markers.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Instant, format_age
from batchyard.client.changes import SHARED_MANAGERS
from batchyard.client.resource_paths import path_of_kind
from batchyard.client.transport import HttpRequest
from batchyard.client.writes import decoded, list_in
from batchyard.controller_groups import ADMISSION, JOBSET, PROVISIONING
from batchyard.interfaces.client import WatchEvent
from batchyard.server.clocks.server import is_foreign
from batchyard.server.clocks.timers import passing
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.operator.snapshot import Asking
from batchyard.server.platform.status_report import PATH as REPORT

#: How often it is looked for webhooks of others.
EVERY: Final = 5 * SECOND
_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
#: Whoever wrote no longer ago than this is taken to be there still.
_RECENT: Final = 10 * MINUTE
#: So many objects of a kind are looked at: whoever decides writes all of them.
_OBJECTS: Final = 50
_LABELS: Final = {"app.kubernetes.io/name": "batchyard"}
#: Which webhook whoever admits has, Kueue and batchyard; and JobSet's controller, which they have too.
_ADMITS, _RUNS_SETS = "vworkload.kb.io", "vjobset.kb.io"
#: By which webhook another installation of ours is known that runs a group.
_OURS_BY: Final = {ADMISSION: _ADMITS, JOBSET: "vpod.kb.io"}


class Service(NamedTuple):
    """Where webhooks are answered."""

    namespace: str
    name: str


class _Upstream(NamedTuple):
    """Somebody who does what a group of controllers does."""

    name: str
    #: As whom he writes which kinds.
    managers: Sequence[str]
    kinds: Sequence[str]
    #: What his configuration of webhooks is called where nobody gave it another name.
    configuration: str


_KUEUE: Final = _Upstream(
    "Kueue",
    ("kueue", "kueue-"),
    (scheme.CLUSTER_QUEUE, scheme.WORKLOAD),
    "kueue-validating-webhook-configuration",
)
_UPSTREAMS: Final[Mapping[str, _Upstream]] = {
    ADMISSION: _KUEUE,
    PROVISIONING: _KUEUE,
    JOBSET: _Upstream(
        "JobSet's controller",
        ("jobset", "jobset-"),
        (scheme.JOB_SET,),
        "jobset-validating-webhook-configuration",
    ),
}


async def refusal(wire: Asking, groups: Sequence[str], own: Service) -> str:
    """Why these groups of controllers must not begin here; '' if nothing speaks against it."""
    if why := await _run_by_platform(wire, groups):
        return why
    if why := await _seen_by_webhooks(wire, groups, own):
        return why
    for group in groups:
        upstream = _UPSTREAMS.get(group)
        signs = [] if upstream is None else [sign async for sign in _writings(wire, upstream)]
        if upstream is not None and signs:
            return _told(group, upstream.name, signs)
    return ""


async def look_out(wire: Asking, groups: Sequence[str], own: Service) -> str:
    """Look for webhooks of others from time to time, until there are any: why these groups must not go on."""
    why = ""
    while not why:
        await passing(EVERY)
        why = await _seen_by_webhooks(wire, groups, own)
    return why


def writer_in(event: WatchEvent, groups: Sequence[str], now: Instant) -> str:
    """Why these groups must not go on, where a change is one that only who decides the same makes; else ''."""
    for group in groups:
        upstream = _UPSTREAMS.get(group)
        if upstream is not None and event.key.kind in upstream.kinds:
            written = _last_written([event.obj], upstream.managers)
            before = None if event.old is None else _last_written([event.old], upstream.managers)
            if written is not None and written != before and now - written < _RECENT:
                return _told(group, upstream.name, [f"it wrote {kind_info(event.key.kind).kind} {event.key.name}"])
    return ""


async def _run_by_platform(wire: Asking, groups: Sequence[str]) -> str:
    """The same of a platform of ours, which says what it runs itself."""
    if await is_foreign(wire):
        return ""
    report = await wire.ask(HttpRequest("GET", REPORT))
    runs = (decoded(report.body).get("controllers") or ()) if report.code == 200 else ()
    both = ",".join(group for group in groups if group in runs)
    if not both:
        return ""
    without = ",".join(f"-{group}" for group in groups if group in runs)
    return (
        f"this platform runs {both} itself: two would decide about the same objects. Start it with --controllers "
        f"'*,{without}', or leave them out here; --beside-upstream goes on all the same"
    )


async def _seen_by_webhooks(wire: Asking, groups: Sequence[str], own: Service) -> str:
    """The same, going by configurations of webhooks."""
    found = list_in(await wire.ask(HttpRequest("GET", _CONFIGURATIONS)))
    others = [each for each in (found or {}).get("items") or () if not _is_at(each, own)]
    for group in groups:
        for each in others:
            name = _decider(each, group)
            if name:
                return _told(group, name, [f"its webhooks are {each['metadata']['name']}"])
    return ""


def _told(group: str, name: str, signs: Sequence[str]) -> str:
    return (
        f"{name} is on this cluster ({'; '.join(signs)}): two would decide about the same objects. "
        f"Remove it, or leave {group} out of --controllers; --beside-upstream goes on all the same"
    )


def _decider(configuration: Obj, group: str) -> str:
    """Who does what a group does, by his webhooks; '' if he does not. Kueue has some for JobSets, and runs none."""
    hooks = [hook.get("name") for hook in configuration.get("webhooks") or ()]
    if _LABELS.items() <= (configuration["metadata"].get("labels") or {}).items():
        return "another batchyard" if _OURS_BY.get(group) in hooks else ""
    upstream = _UPSTREAMS.get(group)
    if upstream is None:
        return ""
    does = (_RUNS_SETS in hooks and _ADMITS not in hooks) if group == JOBSET else _ADMITS in hooks
    return upstream.name if does or configuration["metadata"]["name"] == upstream.configuration else ""


def _is_at(configuration: Obj, own: Service) -> bool:
    services = [(hook.get("clientConfig") or {}).get("service") or {} for hook in configuration.get("webhooks") or ()]
    return any((each.get("namespace"), each.get("name")) == own for each in services)


async def _writings(wire: Asking, upstream: _Upstream) -> AsyncIterator[str]:
    for kind in upstream.kinds:
        info = kind_info(kind)
        path = path_of_kind(info, info.storage_version)
        answer = await wire.ask(HttpRequest("GET", f"{path}?limit={_OBJECTS}"))
        found = list_in(answer) or {}
        written = _last_written(found.get("items") or (), upstream.managers)
        now = answer.told_at or wall_clock()  # they were written by the server's time
        if written is not None and now - written < _RECENT:
            yield f"it wrote a {info.kind} {format_age(max(0, now - written))} ago"


def _last_written(objects: Sequence[Mapping[str, Any]], managers: Sequence[str]) -> Instant | None:
    """The time of the last write by these managers, as `managedFields` has it.

    The managers that this operator applies statuses by too are no sign: whoever decides also writes ClusterQueues.
    """
    whole, prefix = managers
    times = [
        parse_time(entry["time"])
        for obj in objects
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("time") and entry.get("manager") not in SHARED_MANAGERS
        if entry.get("manager") == whole or str(entry.get("manager")).startswith(prefix)
    ]
    return max(times, default=None)
