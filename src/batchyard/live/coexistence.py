"""Whether somebody else decides about the same objects already: Kueue, or JobSet's own controllers.

They are known by the webhooks they install, which name them, and by what they write: every change of an object says in
its `managedFields` by whom it was. Sources: config/default of Kueue and of JobSet; Kueue's pkg/constants.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.scheme import kind_info
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, Instant, format_age
from batchyard.client.places import path_of_kind
from batchyard.client.wire import HttpAnswer, HttpRequest
from batchyard.client.writes import decoded
from batchyard.controllers.groups import UPSTREAM_WEBHOOKS
from batchyard.live.clock import wall_clock

_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
#: Whoever wrote no longer ago than this is taken to be there still.
_RECENT: Final = 10 * MINUTE
#: So many objects of a kind are looked at: whoever decides writes all of them.
_OBJECTS: Final = 50


class _Upstream(NamedTuple):
    """Somebody who does what a group of controllers does: his name, and as whom he writes which kinds."""

    name: str
    managers: Sequence[str]
    kinds: Sequence[str]


_UPSTREAMS: Final[Mapping[str, _Upstream]] = {
    "admission": _Upstream("Kueue", ("kueue", "kueue-"), (scheme.CLUSTER_QUEUE, scheme.WORKLOAD)),
    "jobset": _Upstream("JobSet's controller", ("jobset", "jobset-"), (scheme.JOB_SET,)),
}


class Asked(Protocol):
    """A server that can be asked."""

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """The answer to a request."""


async def refusal(wire: Asked, groups: Sequence[str]) -> str:
    """Why these groups of controllers must not run here; '' if nothing speaks against it."""
    for group in groups:
        upstream = _UPSTREAMS.get(group)
        signs = [] if upstream is None else [sign async for sign in _signs(wire, group, upstream)]
        if upstream is not None and signs:
            return (
                f"{upstream.name} is on this cluster ({'; '.join(signs)}): two would decide about the same objects. "
                f"Remove it, or leave {group} out of --controllers; --beside-upstream goes on all the same"
            )
    return ""


async def _signs(wire: Asked, group: str, upstream: _Upstream) -> AsyncIterator[str]:
    for name in UPSTREAM_WEBHOOKS[group]:
        answer = await wire.ask(HttpRequest("GET", f"{_CONFIGURATIONS}/{name}"))
        if answer.code == 200:
            yield f"its webhooks are {name}"
    for kind in upstream.kinds:
        info = kind_info(kind)
        path = path_of_kind(info, info.storage_version)
        answer = await wire.ask(HttpRequest("GET", f"{path}?limit={_OBJECTS}"))
        now = answer.told_at or wall_clock()  # they were written by the server's time
        written = _last_written(decoded(answer.body).get("items") or (), upstream.managers)
        if written is not None and now - written < _RECENT:
            yield f"it wrote a {info.kind} {format_age(max(0, now - written))} ago"


def _last_written(objects: Sequence[Mapping[str, Any]], managers: Sequence[str]) -> Instant | None:
    """When somebody wrote any of the objects last, by what they say themselves."""
    whole, prefix = managers
    times = [
        parse_time(entry["time"])
        for obj in objects
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("time") and (entry.get("manager") == whole or str(entry.get("manager")).startswith(prefix))
    ]
    return max(times, default=None)
