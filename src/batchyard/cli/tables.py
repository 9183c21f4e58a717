"""Output of objects: tables in kubectl's layout, or a Kubernetes List in JSON or YAML.

The text does not depend on the terminal: no colours, no truncation.
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

#: Objects by kind, both in display order.
Listing: TypeAlias = Mapping[str, Sequence[Obj]]

NOTHING_FOUND: Final = "No resources found\n"
_NOTHING: Final[Mapping[str, Any]] = {}


def render(listing: Listing, output: Output, *, now: Instant, besides: Mapping[str, Any] = _NOTHING) -> str:
    """Format the objects; JSON and YAML also get the fields of `besides`. The text ends with a newline."""
    match output:
        case Output.TABLE | Output.WIDE:
            return render_tables(listing, now=now, wide=output is Output.WIDE)
        case Output.JSON:
            return render_json({**_list_of(listing), **besides})
        case Output.YAML:
            return render_yaml({**_list_of(listing), **besides})


def render_tables(listing: Listing, *, now: Instant, wide: bool = False) -> str:
    """A table for each kind that has objects, separated by empty lines; with namespaces for namespaced kinds."""
    tables = [
        format_table(table(kind, objs, now=now, wide=wide, namespaces=kind_info(kind).namespaced))
        for kind, objs in listing.items()
        if objs
    ]
    return "\n".join(tables) or NOTHING_FOUND


def render_json(value: object) -> str:
    """Format JSON like kubectl: four spaces, sorted fields."""
    return json.dumps(value, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


def render_yaml(value: object) -> str:
    """Format YAML like kubectl: sorted fields, multi-line text as blocks."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=1 << 20)
    return text


def _list_of(listing: Listing) -> dict[str, Any]:
    items = [obj for objs in listing.values() for obj in objs]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}


class _Dumper(yaml.SafeDumper):
    """Dumps YAML without anchors for shared objects."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
