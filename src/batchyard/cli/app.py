"""The table of all `batchyard` commands. Only the module of the invoked command is imported, so help is fast."""

from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from batchyard.cli.help import HELP_SETTINGS, HelpCommand

_HELP_FOOTER: Final = """\
COMMAND --help shows a command's options and examples; --version the version.
Exit codes: 0 success, 1 invalid input or failed run, 2 wrong usage."""


class CommandEntry(NamedTuple):
    """A command of `batchyard`: its group and summary in the help, and the module and attribute that implement it."""

    group: str
    summary: str
    module: str
    attribute: str


def _command_entry(group: str, summary: str, module: str, attribute: str) -> CommandEntry:
    return CommandEntry(group, summary, f"batchyard.cli.{module}", attribute)


_SIMULATE_GROUP, _RUN_GROUP, _ASK_GROUP = "Simulate", "Run", "Ask"
_OPERATE_GROUP, _PROVISION_GROUP = "Operate", "Provision"
#: The commands by name, in the order of the help. A summary has at most 50 characters.
COMMANDS: Final = {
    "simulate": _command_entry(_SIMULATE_GROUP, "Run manifests in virtual time.", "commands.simulate", "simulate"),
    "compare": _command_entry(
        _SIMULATE_GROUP, "Compare two configurations on one load.", "commands.compare", "compare"
    ),
    "whatif": _command_entry(
        _SIMULATE_GROUP, "Compare a state with and without a change.", "commands.whatif", "whatif"
    ),
    "defrag": _command_entry(_SIMULATE_GROUP, "Plan restarts that free topology domains.", "commands.whatif", "defrag"),
    "guide": _command_entry(_SIMULATE_GROUP, "Simulate the reference architecture's guide.", "commands.guide", "guide"),
    "lint": _command_entry(
        _SIMULATE_GROUP, "Check manifests before they are applied.", "commands.lint", "lint_command"
    ),
    "convert": _command_entry(_SIMULATE_GROUP, "Print manifests of v1beta1 in v1beta2.", "commands.convert", "convert"),
    "up": _command_entry(_RUN_GROUP, "Run a platform on this machine.", "commands.up", "up"),
    "down": _command_entry(_RUN_GROUP, "Stop a platform.", "commands.down", "down"),
    "submit": _command_entry(_RUN_GROUP, "Run a command as a Job in a queue.", "submit.command", "app"),
    "logs": _command_entry(_RUN_GROUP, "Print or follow the logs of a job.", "daily.logs", "logs"),
    "cancel": _command_entry(_RUN_GROUP, "Delete jobs with their pods.", "daily.commands", "cancel"),
    "suspend": _command_entry(_RUN_GROUP, "Stop jobs until they are resumed.", "daily.commands", "suspend"),
    "resume": _command_entry(_RUN_GROUP, "Put suspended jobs back into their queues.", "daily.commands", "resume"),
    "priority": _command_entry(_RUN_GROUP, "Change the priority class of a job.", "daily.commands", "priority"),
    "page": _command_entry(_RUN_GROUP, "Print a link to the platform's page.", "commands.page", "page"),
    "jobs": _command_entry(_ASK_GROUP, "List the jobs of the queues.", "daily.commands", "jobs"),
    "queue": _command_entry(_ASK_GROUP, "Show a job's place in its queue and its start.", "daily.queue", "queue"),
    "top": _command_entry(_ASK_GROUP, "Watch queues, jobs and nodes live.", "daily.top", "top"),
    "why": _command_entry(_ASK_GROUP, "Explain why a Workload or pod waits.", "commands.why", "why"),
    "eta": _command_entry(_ASK_GROUP, "Forecast when Workloads start.", "commands.eta", "eta"),
    "status": _command_entry(_ASK_GROUP, "Show the health and counts of a platform.", "commands.status", "status"),
    "decisions": _command_entry(
        _ASK_GROUP, "List decisions with times and details.", "commands.decisions", "decisions"
    ),
    "cost": _command_entry(_ASK_GROUP, "Show the costs of machines by team or queue.", "commands.cost", "cost"),
    "snapshot": _command_entry(_ASK_GROUP, "Save the state of a live cluster.", "commands.snapshot", "snapshot"),
    "user": _command_entry(_OPERATE_GROUP, "Write a kubeconfig for another user.", "commands.user", "user"),
    "backup": _command_entry(_OPERATE_GROUP, "Save the whole state of a platform.", "commands.backup", "backup"),
    "restore": _command_entry(_OPERATE_GROUP, "Create a data directory from a backup.", "commands.backup", "restore"),
    "promote": _command_entry(_OPERATE_GROUP, "Let a standby or lone primary serve.", "commands.promote", "promote"),
    "monitoring": _command_entry(
        _OPERATE_GROUP, "Run Prometheus and Grafana for a platform.", "commands.monitoring", "monitoring"
    ),
    "fault": _command_entry(_OPERATE_GROUP, "Inject faults into a running platform.", "commands.fault", "app"),
    "completion": _command_entry(
        _OPERATE_GROUP, "Print the completion script of a shell.", "completion.command", "completion"
    ),
    "operator": _command_entry(
        _PROVISION_GROUP, "Run controllers against a Kubernetes cluster.", "commands.operator", "operator"
    ),
    "install": _command_entry(_PROVISION_GROUP, "Print the manifests of the operator.", "commands.install", "install"),
    "platform": _command_entry(
        _PROVISION_GROUP, "Plan, create or destroy a whole platform.", "platform.command", "app"
    ),
}


class CommandGroup(TyperGroup):
    """The Click group of all `batchyard` commands; it imports the module of a command only when the command is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Typer suggests similar names from the keys.
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of a command and return the command; None if no such command exists."""
        command_entry = COMMANDS.get(cmd_name)
        return None if command_entry is None else _load_command(cmd_name, command_entry)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of `batchyard`: a line for each command, without importing any command module."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] COMMAND [ARGS]...")
        formatter.write(f"{self.help}\n\n")
        formatter.write(_command_list())
        formatter.write(f"{_HELP_FOOTER}\n")


def _command_list() -> str:
    group_width = max(len(entry.group) for entry in COMMANDS.values())
    name_width = max(map(len, COMMANDS))
    lines, last_group = [], ""
    for name, entry in COMMANDS.items():
        group = "" if entry.group == last_group else entry.group
        lines.append(f"{group:{group_width}}  {name:{name_width}}  {entry.summary}\n")
        last_group = entry.group
    return "".join(lines)


def _load_command(name: str, command_entry: CommandEntry) -> Any:
    definition = getattr(import_module(command_entry.module), command_entry.attribute)
    if not isinstance(definition, typer.Typer):
        command_app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP_SETTINGS)
        command_app.command(name, cls=HelpCommand)(definition)
        definition = command_app
    return typer.main.get_command(definition)


app = typer.Typer(
    name="batchyard",
    cls=CommandGroup,
    help="A multi-tenant batch platform: decides which workload runs where and when.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_SETTINGS,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version  # noqa: PLC0415 - only for this option

        typer.echo(f"batchyard {version('batchyard')}")
        raise typer.Exit


@app.callback()
def batchyard(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A multi-tenant batch platform: decides which workload runs where and when."""


def command_contexts() -> Iterator[Any]:
    """Yield the Click context of each command and subcommand, parents first; imports the modules of all commands."""
    root = typer.main.get_command(app)
    yield from _contexts_below(root.context_class(root, info_name="batchyard"))


def _contexts_below(parent: Any) -> Iterator[Any]:
    for name in parent.command.list_commands(parent):
        command = parent.command.get_command(parent, name)
        context = command.context_class(command, parent=parent, info_name=name, **command.context_settings)
        yield context
        if isinstance(command, TyperGroup):
            yield from _contexts_below(context)
