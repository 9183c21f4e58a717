"""The commands. Only the module of the chosen command is imported, so help and usage errors are fast."""

from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

_HELP: Final = {"help_option_names": ["-h", "--help"]}


class CommandEntry(NamedTuple):
    """A command: its group and line in the help, and the function or the Typer that defines it."""

    group: str
    summary: str
    module: str
    attribute: str


def _entry(group: str, summary: str, module: str, attribute: str) -> CommandEntry:
    return CommandEntry(group, summary, f"batchyard.cli.{module}", attribute)


_SIMULATE, _RUN, _ASK, _OPERATE, _PROVISION = "Simulate", "Run", "Ask", "Operate", "Provision"
#: The commands by name, in the order of the help.
COMMANDS: Final = {
    "simulate": _entry(_SIMULATE, "Run manifests in virtual time.", "commands.simulate", "simulate"),
    "compare": _entry(_SIMULATE, "Compare two configurations on one load.", "commands.compare", "compare"),
    "whatif": _entry(_SIMULATE, "Compare a state with and without a change.", "commands.whatif", "whatif"),
    "guide": _entry(_SIMULATE, "Play the reference architecture's guide.", "commands.guide", "guide"),
    "lint": _entry(_SIMULATE, "Check manifests before they are applied.", "commands.lint", "lint_command"),
    "up": _entry(_RUN, "Run a platform on this machine.", "commands.up", "up"),
    "down": _entry(_RUN, "Stop a platform.", "commands.down", "down"),
    "submit": _entry(_RUN, "Run a command as a Job in a queue.", "submit.command", "app"),
    "page": _entry(_RUN, "Print a link to the platform's page.", "commands.page", "page"),
    "why": _entry(_ASK, "Explain why a Workload or pod waits.", "commands.why", "why"),
    "eta": _entry(_ASK, "Forecast when Workloads start.", "commands.eta", "eta"),
    "status": _entry(_ASK, "Show the health and counts of a platform.", "commands.status", "status"),
    "decisions": _entry(_ASK, "List decisions with times and details.", "commands.decisions", "decisions"),
    "cost": _entry(_ASK, "Show the costs of machines by team or queue.", "commands.cost", "cost"),
    "snapshot": _entry(_ASK, "Save the state of a live cluster.", "commands.snapshot", "snapshot"),
    "user": _entry(_OPERATE, "Write a kubeconfig for another user.", "commands.user", "user"),
    "backup": _entry(_OPERATE, "Save the whole state of a platform.", "commands.backup", "backup"),
    "restore": _entry(_OPERATE, "Create a data directory from a backup.", "commands.backup", "restore"),
    "monitoring": _entry(_OPERATE, "Run Prometheus and Grafana for a platform.", "commands.monitoring", "monitoring"),
    "fault": _entry(_OPERATE, "Inject faults into a running platform.", "commands.fault", "app"),
    "operator": _entry(_PROVISION, "Run controllers against a Kubernetes cluster.", "commands.operator", "operator"),
    "install": _entry(_PROVISION, "Print the manifests of the operator.", "commands.install", "install"),
    "platform": _entry(_PROVISION, "Plan, create or destroy a whole platform.", "platform.command", "app"),
}


class CommandGroup(TyperGroup):
    """The group of all commands; a command's module is imported when the command is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Typer suggests similar names from the keys.
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of a command; None if there is no such command."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else _loaded(cmd_name, entry)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, without an import."""
        width = max(map(len, COMMANDS))
        for group in dict.fromkeys(entry.group for entry in COMMANDS.values()):
            with formatter.section(group):
                rows = [(f"{name:{width}}", entry.summary) for name, entry in COMMANDS.items() if entry.group == group]
                formatter.write_dl(rows)


def _loaded(name: str, entry: CommandEntry) -> Any:
    """The Click command of an entry."""
    defined = getattr(import_module(entry.module), entry.attribute)
    if not isinstance(defined, typer.Typer):
        alone = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=_HELP)
        alone.command(name)(defined)
        defined = alone
    return typer.main.get_command(defined)


app = typer.Typer(
    name="batchyard",
    cls=CommandGroup,
    help="A multi-tenant batch platform: decides which workload runs where and when.",
    epilog="Exit codes: 0 done, 1 the input or the run failed, 2 wrong usage.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
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
