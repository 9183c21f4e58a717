"""Objects as the text of a file: YAML that people read, the same byte for byte every time."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

HEADER: Final = "# Made by `batchyard platform render`: change the platform's file, and render again.\n"


def yaml_text(documents: Iterable[Mapping[str, Any]]) -> str:
    """Documents as YAML, fields in the order in which they are."""
    return HEADER + "---\n".join(dumped(document) for document in documents)


def dumped(document: Mapping[str, Any]) -> str:
    """One document as YAML."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text


class _Dumper(yaml.SafeDumper):
    """Plain YAML without references between objects that share parts; items of lists stand out."""

    def ignore_aliases(self, _data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
