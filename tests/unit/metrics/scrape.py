"""Parses the text of a scrape."""

import re
from collections.abc import Iterable

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(texts: Iterable[str]) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples by metric name and by the values of the labels, in their order."""
    result: dict[str, dict[tuple[str, ...], float]] = {}
    for name, labels, value in _LINE.findall("".join(texts)):
        result.setdefault(name, {})[tuple(text for _, text in _LABEL.findall(labels))] = float(value)
    return result
