"""Quota usage, borrowing and lending of a queue or Cohort, as amounts and bars."""

from collections.abc import Iterable

from batchyard.dashboard.data_source import Model
from batchyard.dashboard.formatting import in_words, share
from batchyard.scheduling.quota import QuotaNode
from batchyard.scheduling.snapshot import Snapshot


def usage_of(snapshot: Snapshot, node: QuotaNode) -> list[Model]:
    """Return a line for each flavor and resource with quota or usage, sorted by flavor."""
    ids = [
        fr for fr in range(len(snapshot.names)) if fr in node.nominal or _at(node.subtree, fr) or _at(node.usage, fr)
    ]
    return sorted((_line(snapshot, node, fr) for fr in ids), key=lambda line: (line["flavor"], line["resource"]))


def main_usage(lines: Iterable[Model]) -> list[Model]:
    """Return the line of the dominant resource of each flavor; idle flavors have none."""
    best: dict[str, Model] = {}
    for line in lines:
        if line["isIdle"]:
            continue
        known = best.get(line["flavor"])
        if known is None or _weight(line) > _weight(known):
            best[line["flavor"]] = line
    return list(best.values())


def _weight(line: Model) -> tuple[bool, float]:
    is_device = "/" in line["resource"]
    return is_device, line["filled"] + line["over"]


def _line(snapshot: Snapshot, node: QuotaNode, fr: int) -> Model:
    flavor, resource = snapshot.names[fr]
    nominal, quota, used = node.nominal.get(fr, 0), _at(node.subtree, fr), _at(node.usage, fr)
    borrowed = max(0, used - quota) if node.parent is not None else 0
    lent = min(_lendable(node, fr), _borrowed_beside(node, fr))
    limit = node.borrowing_limit.get(fr)
    scale = max(quota, used, 1)
    reported: Model = {
        "flavor": flavor,
        "resource": resource,
        "nominal": in_words(resource, nominal),
        "quota": in_words(resource, quota),
        "used": in_words(resource, used),
        "borrowed": in_words(resource, borrowed),
        "lent": in_words(resource, lent),
        "filled": share(min(used, quota), scale),
        "over": share(max(0, used - quota), scale),
        "lentShare": share(min(lent, max(0, scale - used)), scale),
        "isIdle": not quota and not used,
        "isBorrowing": borrowed > 0,
        "isLending": lent > 0,
    }
    limits = {"borrowingLimit": limit, "lendingLimit": node.lending_limit.get(fr)}
    return reported | {name: in_words(resource, value) for name, value in limits.items() if value is not None}


def _lendable(node: QuotaNode, fr: int) -> int:
    """Return the unused part of what a node may lend."""
    if node.parent is None:
        return 0
    local, used = _at(node.local, fr), _at(node.usage, fr)
    return max(0, _at(node.subtree, fr) - local - max(0, used - local))


def _borrowed_beside(node: QuotaNode, fr: int) -> int:
    """Return what the siblings use beyond their own quota and their parent's."""
    parent = node.parent
    if parent is None:
        return 0
    others = sum(max(0, _at(c.usage, fr) - _at(c.subtree, fr)) for c in parent.children.values() if c is not node)
    return max(0, others - parent.nominal.get(fr, 0))


def _at(amounts: list[int], fr: int) -> int:
    return amounts[fr] if fr < len(amounts) else 0
