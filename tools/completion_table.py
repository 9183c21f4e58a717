"""Writes src/batchyard/cli/completion/commands.json, the commands and options that shell completion offers.

Run it after a change of a command's options: `python tools/completion_table.py`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperArgument

from batchyard.api.scheme import kind_info
from batchyard.cli.app import COMMANDS, command_contexts
from batchyard.cli.commands.why import EXPLAINED_KINDS
from batchyard.cli.help import command_name, first_sentence
from batchyard.sim.whatif import SUBJECT_KINDS

TABLE = Path(__file__).parents[1] / "src" / "batchyard" / "cli" / "completion" / "commands.json"
#: The kinds of objects that a command accepts as KIND/NAME; other commands accept all.
OBJECT_KINDS_BY_COMMAND = {"why": EXPLAINED_KINDS, "eta": SUBJECT_KINDS}
#: The kinds of values by the placeholder in the help.
KIND_BY_PLACEHOLDER = {
    "FILE": "files",
    "PATH": "files",
    "A": "files",
    "B": "files",
    "DIR": "folders",
    "NS": "namespaces",
    "NAMESPACE": "namespaces",
    "QUEUE": "localqueues",
    "CLASS": "workloadpriorityclasses",
    "KIND/NAME": "objects",
    "JOB": "jobs",
    "POD": "pods",
    "WORKLOAD": "workloads",
    "NODE": "nodes",
}


def main() -> None:
    """Write the table to src/batchyard/cli/completion/commands.json."""
    TABLE.write_text(table_text(), "utf-8")


def table_text() -> str:
    """Return the table as JSON."""
    root: dict[str, Any] = {"options": [], "arguments": [], "commands": {}}
    for context in command_contexts():
        *parents, name = command_name(context).split()
        parent = root
        for each in parents:
            parent = parent["commands"][each]
        summary = first_sentence(context.command.help or "") if parents else COMMANDS[name].summary
        parent["commands"][name] = {"help": summary, **parameters_of(context), "commands": {}}
    root["options"] = [
        {"names": ["--version"], "value": "", "help": "Print the version."},
        {"names": ["--help", "-h"], "value": "", "help": "Show this message and exit."},
    ]
    return format_command(root) + "\n"


def format_command(command: dict[str, Any]) -> str:
    """Return a command as JSON, with a line for each option and subcommand."""
    options = ",\n".join(f"  {json.dumps(option)}" for option in command["options"])
    commands = ",\n".join(f"{json.dumps(name)}: {format_command(each)}" for name, each in command["commands"].items())
    rest = json.dumps({key: value for key, value in command.items() if key not in {"options", "commands"}})
    return f'{rest[:-1]}, "options": [\n{options}\n], "commands": {{{commands}}}}}'


def argument_kind(argument: Any, name: str) -> str:
    """Return the kind of a command's argument; for objects, it includes the object kinds that the command accepts."""
    kind, object_kinds = kind_of(argument), OBJECT_KINDS_BY_COMMAND.get(name, ())
    accepted_kinds = "|".join(kind_info(each).singular for each in object_kinds)
    return f"{kind}:{accepted_kinds}" if kind == "objects" and accepted_kinds else kind


def parameters_of(context: Any) -> dict[str, Any]:
    """Return the options and arguments of a command."""
    parameters = [parameter for parameter in context.command.get_params(context) if not parameter.hidden]
    arguments = [parameter for parameter in parameters if isinstance(parameter, TyperArgument)]
    return {
        "options": [
            {
                # Sorted, because click keeps the names of --help in a set.
                "names": [*sorted(parameter.opts), *parameter.secondary_opts],
                "value": "" if parameter.is_flag else kind_of(parameter),
                "help": first_sentence(parameter.help or ""),
            }
            for parameter in parameters
            if parameter not in arguments
        ],
        "arguments": [
            argument_kind(argument, command_name(context)) + ("*" if argument.nargs != 1 else "")
            for argument in arguments
        ],
    }


def kind_of(parameter: Any) -> str:
    """Return the kind of a parameter's values: choices, files, folders, names of a kind, or any text."""
    choices: Sequence[Any] = parameter.type_descriptor.choices or ()
    if choices:
        return "choices:" + "|".join(str(choice.value) for choice in choices)
    return KIND_BY_PLACEHOLDER.get((parameter.metavar or "").strip("[]"), "text")


if __name__ == "__main__":
    main()
