"""Where the pods of a pod set are, in the forms of both versions.

v1beta1 lists domains one by one; v1beta2 writes them in slices, in which what many domains have in common is written
once. Slices are cut as upstream cuts them: hosts of a common prefix together, where that makes the text smaller.
Source: Kueue's pkg/util/tas.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from batchyard.api.meta import Obj
from batchyard.api.well_known import HOSTNAME

_SLICE_DOMAINS_MAX: Final = 100_000
_SLICES_MAX: Final = 1_000


def compressed(levels: Sequence[str], domains: Sequence[Obj]) -> list[dict[str, Any]]:
    """Slices of domains, each of which has a value for every level and a count of pods."""
    by_prefix = [_slice(levels, run) for run in _runs(levels, domains)]
    if len(by_prefix) <= 1 or len(domains) > _SLICE_DOMAINS_MAX:
        return by_prefix
    whole = [_slice(levels, domains)]
    return whole if len(msgspec.json.encode(whole)) < len(msgspec.json.encode(by_prefix)) else by_prefix


def expanded(slices: Sequence[Obj]) -> list[dict[str, Any]]:
    """The domains that slices stand for, in their order."""
    return [
        {"values": [_value(values, i) for values in part["valuesPerLevel"]], "count": _count(part["podCounts"], i)}
        for part in slices
        for i in range(part["domainCount"])
    ]


def _value(values: Obj, i: int) -> str:
    """The value of a level in the i-th domain of a slice."""
    if (universal := values.get("universal")) is not None:
        return str(universal)
    own = values["individual"]
    return f"{own.get('prefix') or ''}{own['roots'][i]}{own.get('suffix') or ''}"


def _count(counts: Obj, i: int) -> int:
    """The pods in the i-th domain of a slice."""
    universal = counts.get("universal")
    return int(counts["individual"][i] if universal is None else universal)


def _slice(levels: Sequence[str], domains: Sequence[Obj]) -> dict[str, Any]:
    """One slice of all the domains."""
    counts = [domain["count"] for domain in domains]
    same = all(count == counts[0] for count in counts)
    return {
        "domainCount": len(domains),
        "podCounts": {"universal": counts[0]} if same else {"individual": counts},
        "valuesPerLevel": [_values([domain["values"][i] for domain in domains]) for i in range(len(levels))],
    }


def _values(values: Sequence[str]) -> dict[str, Any]:
    """The values of one level: the one they all have, or what they have in common and the rest of each."""
    if all(value == values[0] for value in values):
        return {"universal": values[0]}
    suffix = _common_prefix([value[::-1] for value in values])[::-1]
    # A short value must not give the same characters to prefix and suffix, as `aba` beside `ababa` would.
    prefix = _common_prefix(values)[: min(map(len, values)) - len(suffix)]
    roots = [value[len(prefix) : len(value) - len(suffix)] for value in values]
    common = {name: part for name, part in (("prefix", prefix), ("suffix", suffix)) if part}
    return {"individual": {**common, "roots": roots}}


def _common_prefix(values: Sequence[str]) -> str:
    """What all values start with: no more than the first and the last in order have in common."""
    first, last = min(values), max(values)
    length = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[:length]


def _runs(levels: Sequence[str], domains: Sequence[Obj]) -> list[Sequence[Obj]]:
    """Neighbouring domains whose hosts start alike; all of them where there are no hosts."""
    keys = [""] * len(domains)
    if len(domains) > 1 and levels and levels[-1] == HOSTNAME:
        keys = _prefix_keys([domain["values"][-1] for domain in domains])
    starts = _starts(keys)
    return [domains[start:end] for start, end in pairwise([*starts, len(domains)])]


def _starts(keys: Sequence[str]) -> list[int]:
    """Where slices start: at each new key, and where a slice would have too many domains."""
    starts: list[int] = []
    for i, key in enumerate(keys):
        if not starts or key != keys[i - 1] or i - starts[-1] == _SLICE_DOMAINS_MAX:
            starts.append(i)
    return starts


def _prefix_keys(hosts: Sequence[str]) -> list[str]:
    """For each host the longest prefix up to a hyphen that another shares; shorter ones if slices were too many."""
    prefixes = [[host[: i + 1] for i in range(len(host) - 1) if host[i] == "-"] for host in hosts]
    shared: dict[str, int] = {}
    for prefix in (prefix for each in prefixes for prefix in each):
        shared[prefix] = shared.get(prefix, 0) + 1
    for depth in range(max(map(len, prefixes)), 0, -1):
        keys = [next((p for p in reversed(each[:depth]) if shared[p] > 1), "") for each in prefixes]
        if len(_starts(keys)) <= _SLICES_MAX:
            return keys
    return [""] * len(hosts)
