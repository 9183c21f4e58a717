"""The layout of `--help`: examples first, then the options in groups. The text never depends on the terminal's colors.

The commands' modules define options and their texts. This module adds what all commands share.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from batchyard.cli.examples import EXAMPLES

#: The settings of each command's Click context.
HELP_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}

#: How Typer shows the value of an option that takes a number.
_NUMBER_TYPE: Final = re.compile(r"<(int|float)( range)?>")
#: The beginnings of Pydantic's messages about malformed values, each with the message to print; '': the rest of it.
_PYDANTIC_MESSAGES: Final = (
    ("Value error, ", ""),
    ("Input should be a valid integer", "the value is not a whole number; use one such as 1"),
    ("Input should be a valid number", "the value is not a number; use one such as 0.5"),
)
_ARGUMENTS: Final = "Arguments"
_OPTIONS: Final = "Options"
_PODS: Final = "Pods"
_NETWORK: Final = "Network"
_CLUSTER: Final = "Cluster"
_OUTPUT: Final = "Output and help"
#: The groups in the order in which the help prints them.
_GROUPS: Final = (
    *(_ARGUMENTS, _OPTIONS, _PODS, "Leader election", "API requests", "Webhooks", "Shadow mode", _NETWORK),
    *(_CLUSTER, _OUTPUT),
)
#: A group of one option is printed only if it is one of these; otherwise its option moves to the general options.
_GROUPS_OF_ANY_SIZE: Final = frozenset({_ARGUMENTS, _OPTIONS, _CLUSTER, _OUTPUT})
#: The options of each group; a name that ends with `-` stands for all options that begin with it.
_OPTIONS_BY_GROUP: Final[Mapping[str, Sequence[str]]] = {
    _PODS: (
        *("--image", "--cpu", "--memory", "--gpus", "--gpu-resource", "--env", "--node-selector", "--toleration"),
        *("--checkpoint-dir", "--host-path", "--host-network", "--runtime"),
    ),
    "Leader election": ("--leader-elect", "--leader-elect-"),
    "API requests": ("--kube-api-",),
    "Webhooks": ("--webhook-",),
    "Shadow mode": ("--shadow", "--for", "--patience"),
    _NETWORK: ("--port", "--grafana-port", "--listen", "--insecure-loopback", "--authentication-"),
    _CLUSTER: ("--kubeconfig", "--context", "--data-dir", "--state"),
    _OUTPUT: (
        *("--output", "--report", "--html", "--events", "--audit-log", "--otlp", "--log-", "--verbose", "--help"),
    ),
}


def _plain_value_error(message: str) -> str:
    for prefix, replacement in _PYDANTIC_MESSAGES:
        if message.startswith(prefix):
            return replacement or message.removeprefix(prefix)
    return message


class HelpCommand(TyperCommand):
    """A command whose help has examples and grouped options."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments and return the context; replace Pydantic's texts in errors about malformed values."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.BadParameter as error:
            error.message = _plain_value_error(error.message)
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, the arguments, and the options by group."""
        _write_examples(ctx, formatter)
        for group, parameters in parameter_groups(self.get_params(ctx)).items():
            with formatter.section(group):
                formatter.write_dl([help_row(parameter, ctx) for parameter in parameters])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line after the command's name."""
        arguments = [param for param in self.get_params(ctx) if isinstance(param, TyperArgument)]
        return ["[OPTIONS]", *map(argument_usage, arguments)]


class HelpGroup(TyperGroup):
    """A command with subcommands; its help has examples and the summaries of the subcommands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands, the examples and the options."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(each.help or "")) for name, each in self.commands.items()])
        _write_examples(ctx, formatter)
        with formatter.section(_OPTIONS):
            formatter.write_dl([help_row(parameter, ctx) for parameter in self.get_params(ctx)])


def command_name(ctx: Any) -> str:
    """Return the name of a context's command below `batchyard`, such as `platform plan`; '' for the root."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    return " ".join(names)


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text, on one line."""
    sentence, separator, _ = " ".join(text.split()).partition(". ")
    return sentence + ("." if separator else "")


def parameter_groups(parameters: Iterable[Any]) -> Mapping[str, Sequence[Any]]:
    """Return the visible arguments and options by group, in the order of the help.

    If a group not in _GROUPS_OF_ANY_SIZE has only one option, this option moves to the group `Options`.
    """
    groups: dict[str, list[Any]] = {name: [] for name in _GROUPS}
    for parameter in parameters:
        if not parameter.hidden:
            groups[_group_of(parameter)].append(parameter)
    for name in [name for name, members in groups.items() if len(members) == 1 and name not in _GROUPS_OF_ANY_SIZE]:
        groups[_OPTIONS] += groups.pop(name)
    return {name: members for name, members in groups.items() if members}


def argument_usage(argument: TyperArgument) -> str:
    """Return an argument as the usage line shows it: in brackets if it is optional, with dots if it is repeatable."""
    name = argument.display_name_raw.strip("[]")
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def _group_of(parameter: Any) -> str:
    if isinstance(parameter, TyperArgument):
        return _ARGUMENTS
    for group, patterns in _OPTIONS_BY_GROUP.items():
        for pattern in patterns:
            if any(name == pattern or (pattern[-1] == "-" and name.startswith(pattern)) for name in parameter.opts):
                return group
    return _OPTIONS


def help_row(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Return the two cells of a parameter's row in the help: its name with its values, and its help text."""
    record = parameter.get_help_record(ctx)
    assert record is not None, f"the hidden parameter {parameter.name} has no row in the help"
    name, text = record
    if not isinstance(parameter, TyperArgument):
        return _NUMBER_TYPE.sub("N", name), text
    return argument_usage(parameter), text.removesuffix("[required]").rstrip()


def _write_examples(ctx: Any, formatter: Any) -> None:
    examples = EXAMPLES.get(command_name(ctx), ())
    if examples:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in examples))
