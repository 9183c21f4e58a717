"""Where in its file a field of a document is written."""

import re
from typing import Any, Final

import yaml

_STEP: Final = re.compile(r"\[([^\]]*+)(?:\]|\Z)|([^.\[\]]+)")
#: How fields were called in the oldest version that is read, by what they are called now.
_OLD_NAMES: Final = {
    "spec.cohortName": "spec.cohort",
    "spec.admissionChecksStrategy.admissionChecks": "spec.admissionChecks",
}


class Lines:
    """The lines of one document's fields."""

    def __init__(self, text: str, first: int) -> None:
        """The text of the document, and the line of its file that it begins with."""
        self._first = first
        self._start = first + _blank_lines(text)
        try:
            self._root: Any = yaml.compose(text, Loader=yaml.CSafeLoader)
        except yaml.YAMLError:
            self._root = None

    def of(self, path: str) -> int:
        """The line, from 1 on, of a field such as `spec.groups[0].name`; where there is none, of what would hold it."""
        found, depth = self._find(path)
        old = next((old for new, old in _OLD_NAMES.items() if path.startswith(new)), None)
        if old is not None:
            older, further = self._find(old)
            found = older if further >= depth else found
        return found

    def _find(self, path: str) -> tuple[int, int]:
        """The line, and how many steps of the path lead to something."""
        node, line = self._root, self._start
        for depth, (key, name) in enumerate(_STEP.findall(path)):
            below = _child(node, key or name)
            if below is None:
                return line, depth
            line, node = self._first + below[0], below[1]
        return line, len(path)


def _blank_lines(text: str) -> int:
    """How many lines there are before the first that says something."""
    lines = enumerate(line.strip() for line in text.splitlines())
    return next((count for count, line in lines if line and not line.startswith(("#", "---", "%"))), 0)


def _child(node: Any, step: str) -> tuple[int, Any] | None:
    """The line of a field or item, counted from the start of the text, and its value; None if it is not there."""
    if isinstance(node, yaml.SequenceNode) and step.isdecimal() and int(step) < len(node.value):
        item = node.value[int(step)]
        return item.start_mark.line, item
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line, value
    return None
