"""Checks the `batchyard` commands of documents against the options of the command line, without running them."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.exceptions import TyperException

from batchyard.cli.app import app

PROGRAM: Final = "batchyard"
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
#: The number before a redirection, as in `2> file`.
_DESCRIPTOR: Final = re.compile(r"(?<=\s)\d(?=[<>])")
_PUNCTUATION: Final = frozenset("();<>|&")
#: A placeholder such as FILE or JOB/NAME, which the reader replaces.
_PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z/_-]*$")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `batchyard` command in the lines of a shell script."""
    for line in text.replace("\\\n", " ").splitlines():
        for words in _simple_commands(line):
            if words[0].rpartition("/")[2] == PROGRAM:
                yield words


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the simple commands of a line as words, without assignments and redirections."""
    lexer = shlex.shlex(_DESCRIPTOR.sub("", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    is_redirected = False
    for word in [*lexer, ";"]:
        if _PUNCTUATION.issuperset(word):
            is_redirected = word[0] in "<>"
            if not is_redirected and words:
                yield words
                words = []
        elif is_redirected:
            is_redirected = False
        elif words or not _ASSIGNMENT.match(word):
            words.append(word)


def fault(arguments: list[str]) -> str:
    """The error in the arguments of a `batchyard` command; empty if the command accepts them."""
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name=PROGRAM)
    while hasattr(command, "get_command") and arguments and not arguments[0].startswith("-"):
        result = command.get_command(context, arguments[0])
        if result is None:
            return f"there is no command {arguments[0]}"
        command, arguments = result, arguments[1:]
        context = command.context_class(command, info_name=command.name, parent=context)
    if "--" in arguments:  # the command of `submit` follows
        arguments = arguments[: arguments.index("--")]
    parser = command.make_parser(context)
    try:
        values, rest, _ = parser.parse_args(list(arguments))
    except TyperException as error:
        return error.format_message()
    if values.get("help") or values.get("version"):
        return ""
    return _fault_of_values(command, values, rest)


def _fault_of_values(command: Any, values: dict[str, Any], rest: list[str]) -> str:
    if rest:
        return f"unexpected {' '.join(rest)}"
    for parameter in command.params:
        value = values.get(parameter.name)
        if parameter.required and value in (None, (), []):
            return f"{parameter.metavar or parameter.name} is missing"
        choices = parameter.type_descriptor.choices
        for word in value if isinstance(value, list | tuple) else [value]:
            if choices and isinstance(word, str) and not _PLACEHOLDER.match(word):
                known = [getattr(choice, "value", choice) for choice in choices]
                if word not in known:
                    return f"{word} is none of {', '.join(map(str, known))}"
    return ""
