"""YAML output of rendered files: readable and byte-for-byte reproducible."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

HEADER: Final = "# Made by `batchyard platform render`: change the platform's file, and render again.\n"


def yaml_text(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return documents as YAML, with fields in their given order."""
    return HEADER + "---\n".join(dumped(document) for document in documents)


def dumped(document: Mapping[str, Any]) -> str:
    """Return one document as YAML."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text


class _Dumper(yaml.SafeDumper):
    """YAML without aliases for shared parts; list items are indented."""

    def ignore_aliases(self, _data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
