"""The completions of a `batchyard` command line for a shell: the possible values of the current word.

The program runs at each press of the Tab key. It reads the commands from a file instead of importing their modules, and
requests only names from the platform.
"""

import json
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.cli.completion.names import NAME_KINDS, NameQuery, list_names

#: The kinds of values whose names the shell itself completes.
_SHELL_KINDS: Final = ("files", "folders")
#: The kinds of objects in arguments such as `job/train`, by the plural of the API.
_OBJECT_KINDS: Final = {
    "job": "jobs",
    "jobset": "jobsets",
    "workload": "workloads",
    "pod": "pods",
    "clusterqueue": "clusterqueues",
    "localqueue": "localqueues",
}

#: A possible value of the current word, and what it means.
Row: TypeAlias = tuple[str, str]
_Table: TypeAlias = Mapping[str, Any]


class CompletionAnswer(NamedTuple):
    """The completions of a word, and their kind.

    The kinds are `values`, `parts` (beginnings of values), and `files` and `folders`, which the shell lists itself.
    """

    kind: str
    rows: Sequence[Row] = ()

    def text(self) -> str:
        """Return the text that the scripts read: the kind, then for each row a line of value, tab and help."""
        return "".join(f"{line}\n" for line in (self.kind, *map("\t".join, self.rows)))


def completion_text(arguments: Sequence[str]) -> str:
    """Return the completions of the last word as the text that the completion scripts read.

    The arguments are the value of $KUBECONFIG, then the words after `batchyard` up to the current one.
    """
    kubeconfig, *words = arguments or ("",)
    return complete(_join_assignments(words or [""]), kubeconfig).text()


def complete(words: Sequence[str], kubeconfig: str = "") -> CompletionAnswer:
    """Return the completions of the last of `words`; `kubeconfig` is the value of the variable KUBECONFIG."""
    *complete_words, current = words
    line = _CommandLine(_load_table())
    for word in complete_words:
        line.read(word)
    value_prefix = ""
    if line.pending_option is not None:
        value_kind = line.pending_option["value"]
    elif current.startswith("-") and not line.is_past_dashes:
        name, separator, current_value = current.partition("=")
        if not separator:
            return _rows_with_prefix(line.option_rows(), current)
        value_kind = (line.option(name) or {"value": "text"})["value"]
        value_prefix, current = f"{name}=", current_value
    elif line.command["commands"]:
        return _rows_with_prefix([(name, each["help"]) for name, each in line.command["commands"].items()], current)
    else:
        value_kind = line.argument_kind()
    completions = _complete_value(value_kind, current, line.name_query(kubeconfig))
    return completions._replace(rows=[(value_prefix + value, text) for value, text in completions.rows])


class _CommandLine:
    """The command, options and arguments before the word to complete."""

    def __init__(self, table: _Table) -> None:
        self.command = table
        #: The option whose value is the next word.
        self.pending_option: Mapping[str, Any] | None = None
        self.is_past_dashes = False
        self._argument_count = 0
        #: The values of the options so far, by all names of each option.
        self._values: dict[str, str] = {}

    def read(self, word: str) -> None:
        if self.pending_option is not None:
            self._set_option(self.pending_option, word)
            self.pending_option = None
        elif self.is_past_dashes:
            self._argument_count += 1
        elif word == "--":
            self.is_past_dashes = True
        elif word.startswith("-") and word != "-":
            name, separator, value = word.partition("=")
            option = self.option(name)
            if option is not None and separator:
                self._set_option(option, value)
            elif option is not None and option["value"]:
                self.pending_option = option
        elif self.command["commands"]:
            self.command = self.command["commands"].get(word, _UNKNOWN_COMMAND)
        else:
            self._argument_count += 1

    def _set_option(self, option: Mapping[str, Any], value: str) -> None:
        self._values |= dict.fromkeys(option["names"], value)

    def option(self, name: str) -> Mapping[str, Any] | None:
        return next((option for option in self.command["options"] if name in option["names"]), None)

    def option_rows(self) -> Sequence[Row]:
        return [
            (name, option["help"])
            for option in self.command["options"]
            for name in option["names"]
            if name.startswith("--") or len(option["names"]) == 1
        ]

    def argument_kind(self) -> str:
        kinds: Sequence[str] = self.command["arguments"]
        if self._argument_count < len(kinds):
            return kinds[self._argument_count].removesuffix("*")
        return kinds[-1].removesuffix("*") if kinds and kinds[-1].endswith("*") else "none"

    def name_query(self, kubeconfig: str) -> NameQuery:
        data_dir = self._values.get("--data-dir", "")
        kubeconfig_path = self._values.get("--kubeconfig", "") or (f"{data_dir}/kubeconfig" if data_dir else kubeconfig)
        return NameQuery(kubeconfig_path, self._values.get("--context", ""), self._values.get("--namespace", ""))


_UNKNOWN_COMMAND: Final[_Table] = {"commands": {}, "options": [], "arguments": []}


def _complete_value(kind: str, current: str, query: NameQuery) -> CompletionAnswer:
    if kind in _SHELL_KINDS:
        return CompletionAnswer(kind)
    if kind.startswith("choices:"):
        return _rows_with_prefix([(choice, "") for choice in kind.removeprefix("choices:").split("|")], current)
    if kind.startswith("objects") or (kind == "jobs" and "/" in current):
        return _complete_object(current, query, kind.partition(":")[2])
    if kind in NAME_KINDS:
        return _rows_with_prefix([(name, "") for name in list_names(kind, query)], current)
    return CompletionAnswer("values")


def _complete_object(current: str, query: NameQuery, kinds_text: str) -> CompletionAnswer:
    """Complete an object such as `job/train`: first its kind, after the slash its name.

    `kinds_text` has the allowed kinds, such as `job|pod`; '' allows all kinds.
    """
    prefix, separator, _ = current.partition("/")
    if not separator:
        kinds = [(f"{kind}/", "") for kind in (kinds_text.split("|") if kinds_text else _OBJECT_KINDS)]
        return _rows_with_prefix(kinds, current)._replace(kind="parts")
    plural = _OBJECT_KINDS.get(prefix.lower())
    names = list_names(plural, query) if plural else ()
    return _rows_with_prefix([(f"{prefix}/{name}", "") for name in names], current)


def _rows_with_prefix(rows: Iterable[Row], prefix: str) -> CompletionAnswer:
    return CompletionAnswer("values", [row for row in rows if row[0].startswith(prefix)])


def _join_assignments(words: Sequence[str]) -> list[str]:
    """Drop the word `=` that bash splits off from `--output=json`; a final `=` becomes an empty word."""
    joined_words: list[str] = []
    for index, word in enumerate(words):
        if word != "=" or not joined_words or not joined_words[-1].startswith("--"):
            joined_words.append(word)
        elif index == len(words) - 1:
            joined_words.append("")
    return joined_words


def _load_table() -> _Table:
    """Return the table of all commands, which tools/completion_table.py generates."""
    content = pkgutil.get_data("batchyard.cli.completion", "commands.json")
    assert content is not None, "the file commands.json is missing: reinstall the package batchyard"
    table: _Table = json.loads(content)
    return table
