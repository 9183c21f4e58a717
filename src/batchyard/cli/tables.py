"""Listed objects as text: a table as kubectl lays it out, or a Kubernetes List in JSON or YAML.

The text is the same on a terminal and in a pipe: no colours, nothing cut to the width of the screen.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import yaml

from batchyard.api.meta import Obj
from batchyard.api.printing import format_table, table
from batchyard.api.scheme import kind_info
from batchyard.base.instant import Instant
from batchyard.cli.options import Output

#: Objects by kind, both in the order in which they are shown.
Listing: TypeAlias = Mapping[str, Sequence[Obj]]

NOTHING_FOUND: Final = "No resources found\n"
_NOTHING: Final[Mapping[str, Any]] = {}


def render(listing: Listing, output: Output, *, now: Instant, besides: Mapping[str, Any] = _NOTHING) -> str:
    """The listed objects in one of the forms, the last line ended; in JSON and YAML with these fields besides."""
    match output:
        case Output.TABLE | Output.WIDE:
            return render_tables(listing, now=now, wide=output is Output.WIDE)
        case Output.JSON:
            return render_json({**_list_of(listing), **besides})
        case Output.YAML:
            return render_yaml({**_list_of(listing), **besides})


def render_tables(listing: Listing, *, now: Instant, wide: bool = False) -> str:
    """A table for each kind that has objects, an empty line between two, namespaces shown where the kind has them."""
    tables = [
        format_table(table(kind, objs, now=now, wide=wide, namespaces=kind_info(kind).namespaced))
        for kind, objs in listing.items()
        if objs
    ]
    return "\n".join(tables) or NOTHING_FOUND


def render_json(value: object) -> str:
    """A value as kubectl writes JSON: four spaces, fields by name."""
    return json.dumps(value, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


def render_yaml(value: object) -> str:
    """A value as kubectl writes YAML: fields by name, texts of several lines as blocks."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=1 << 20)
    return text


def _list_of(listing: Listing) -> dict[str, Any]:
    items = [obj for objs in listing.values() for obj in objs]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}


class _Dumper(yaml.SafeDumper):
    """Plain YAML without references between objects that share parts."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
