"""Rendering of the `why` document as text: summary, facts, quota table, quota holders, nodes, suggested changes."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final, TypeAlias

Document: TypeAlias = Mapping[str, Any]

WIDTH: Final = 120
_CELL_MAX: Final = 44
_ROWS_MAX: Final = 18
_LABEL: Final = 13

_VERDICTS: Final = {
    "fits": "fits",
    "short": "short of quota",
    "nobodyToPreempt": "short, no usable victims",
    "preempts": "would preempt",
    "reclaims": "would reclaim",
    "exceedsMaximum": "exceeds maximum capacity",
    "taint": "taint not tolerated",
    "affinity": "not selected",
    "notFound": "flavor not found",
}


def lines_of(found: Document, *, is_wide: bool) -> Iterator[str]:
    """The lines of the text; `is_wide` includes every level of every flavor."""
    subject = found["subject"]
    name = "/".join(subject[field] for field in ("namespace", "name") if subject.get(field))
    yield f"{subject['kind']} {name}: {found['state']}"
    yield from wrap(found["summary"], WIDTH)
    yield ""
    yield from _facts(found)
    for part in (_quota(found, is_wide=is_wide), _quotas(found), _holders(found), _nodes(found), _changes(found)):
        lines = list(part)
        if lines:
            yield ""
            yield from lines


def _facts(found: Document) -> Iterator[str]:
    binding = found.get("binding")
    if binding:
        where = binding.get("where") or {}
        at = f" at {where['kind']} {where['name']}" if where.get("kind") else ""
        what = " ".join(binding[field] for field in ("resource", "flavor") if binding.get(field))
        missing = f"; missing {binding['missing']} {what}" if binding.get("missing") else ""
        yield from _fact("limit", f"{binding['limit']}{at}{missing}")
    if found.get("clusterQueue"):
        cohort = f" in Cohort {found['cohort']}" if found.get("cohort") else ""
        yield from _fact("queue", f"{found['clusterQueue']}{cohort}")
    line = found.get("line") or {}
    if line.get("position"):
        before = f", after {', '.join(line['ahead'])}" if line.get("ahead") else ""
        more = line["position"] - 1 - len(line.get("ahead") or ())
        yield from _fact("in line", f"{line['position']} of {line['of']}{before}{f' and {more} more' if more else ''}")
    for share in found.get("shares") or ():
        yield from _fact("share", f"{share['clusterQueue']}: {share.get('share', 0)} at weight {share['weight']:g}")
    for number, text in enumerate((found.get("preemption") or {}).get("alternatives") or ()):
        yield from _fact("instead" if number == 0 else "", text)
    for check in found.get("checks") or ():
        message = f": {check['message']}" if check.get("message") else ""
        yield from _fact("check", f"{check['name']} is {check['state']}{message}")
    for request in found.get("requests") or ():
        yield from _fact("request", f"{request['name']}: {request['told']}")
    for label, text in (found.get("facts") or {}).items():
        yield from _fact(label, text)


def _fact(label: str, text: str) -> Iterator[str]:
    for number, line in enumerate(wrap(text, WIDTH - _LABEL) or [""]):
        yield f"{(label if number == 0 else ''):<{_LABEL}}{line}".rstrip()


def _quota(found: Document, *, is_wide: bool) -> Iterator[str]:
    rows = list(_rows(found))
    if not rows:
        return
    binding = found.get("binding") or {}
    if len(rows) > _ROWS_MAX and not is_wide:
        kept = [row for row in rows if row[1] == binding.get("flavor") or not row[6]]
        left = len(rows) - len(kept[:_ROWS_MAX])
        rows = kept[:_ROWS_MAX]
    else:
        left = 0
    header = ("POD SET", "FLAVOR", "RESOURCE", "ASKED", "MISSING", "VERDICT", "LEVEL")
    figures = ("NOMINAL", "USED", "FREE", "BORROW", "LEND")
    yield from _table([(*header, *figures), *rows])
    if left:
        yield f"... and {left} more rows: -o wide"


def _quotas(found: Document) -> Iterator[str]:
    """The quotas of a ClusterQueue: nominal, used, borrowed, lent and available."""
    fields = ("flavor", "resource", "nominal", "used", "borrowed", "lent", "available")
    rows = [tuple(each[field] for field in fields) for each in found.get("quotas") or ()]
    if rows:
        yield from _table([("FLAVOR", "RESOURCE", "NOMINAL", "USED", "BORROWED", "LENT", "FREE"), *rows[:_ROWS_MAX]])
    if len(rows) > _ROWS_MAX:
        yield f"... and {len(rows) - _ROWS_MAX} more rows: -o yaml"


def _rows(found: Document) -> Iterator[tuple[str, ...]]:
    """A row per level of each resource, flavor and pod set; repeated cells are empty."""
    for pod_set in found.get("podSets") or ():
        if pod_set.get("unavailable"):
            yield pod_set["name"], "", pod_set["unavailable"], "", "", "not covered by the queue", *[""] * 6
        for flavor in pod_set.get("flavors") or ():
            verdict = _VERDICTS.get(flavor["verdict"], flavor["verdict"])
            for number, resource in enumerate(flavor.get("resources") or ()):
                about = (pod_set["name"], flavor["flavor"], resource["resource"], resource["asked"])
                stated = (*about, resource.get("missing", ""), verdict if number == 0 else "")
                yield from _levels(stated, resource.get("levels") or (), is_ruled_out="obstacle" in flavor)


def _levels(stated: Sequence[str], levels: Sequence[Document], *, is_ruled_out: bool) -> Iterator[tuple[str, ...]]:
    if is_ruled_out:
        yield *stated, *[""] * 6
        return
    for number, level in enumerate(levels):
        figures = [level.get(field, "") for field in ("nominal", "used", "available", "borrowingLimit", "lendingLimit")]
        name = f"{level['name']}" if level["kind"] == "ClusterQueue" else f"Cohort {level['name']}"
        start = stated if number == 0 else ("", stated[1], "", "", "", "")
        yield *start, name, *figures


def _holders(found: Document) -> Iterator[str]:
    holders = found.get("holders") or ()
    if not holders:
        return
    rows = [("HELD BY", "QUEUE", "PRIORITY", "HOLDS", "WHY IT STAYS")]
    for holder in holders:
        holds = ", ".join(f"{each['amount']} {each['resource']} {each['flavor']}".rstrip() for each in holder["holds"])
        fate = "it is being preempted" if holder.get("preempted") else holder.get("stays", "")
        borrows = " (borrows)" if holder["borrows"] else ""
        rows.append((holder["workload"], f"{holder['clusterQueue']}{borrows}", str(holder["priority"]), holds, fate))
    yield from _table(rows, last_is_free=True)
    if found.get("holdersMore"):
        yield f"... and {found['holdersMore']} more"


def _nodes(found: Document) -> Iterator[str]:
    nodes = found.get("nodes") or {}
    for text in nodes.get("text") or ():
        yield from wrap(text, WIDTH, subsequent_indent="  ")


def _changes(found: Document) -> Iterator[str]:
    changes = found.get("changes") or ()
    if changes:
        does = "place its pods" if found.get("nodes") else "admit it"
        yield f"Any one of these changes would {does}. Each was verified and is minimal:"
    for change in changes:
        given = f" ({change['given']})" if change.get("given") else ""
        yield from wrap(f"{change['text']}{given}", WIDTH - 2, initial_indent="- ", subsequent_indent="  ")


def _table(rows: Sequence[Sequence[str]], *, last_is_free: bool = False) -> Iterator[str]:
    """Aligned columns; empty columns are omitted, long cells are cut."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    cells = [
        [_cut(row[column]) if not (last_is_free and column == len(row) - 1) else row[column] for column in kept]
        for row in rows
    ]
    widths = [max(len(row[place]) for row in cells) for place in range(len(kept))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 3]}..."
