"""The options of `batchyard submit`, and how their texts are read. Loads next to nothing, as the command line does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from batchyard.cli.options import Form


class WithCommand(TyperCommand):
    """A command whose arguments end with another command line, after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what follows `--`, and parse the rest."""
        place = args.index("--") if "--" in args else len(args)
        ctx.obj = args[place + 1 :]
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage, with the command line that is no argument of ours."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


def command_line(context: typer.Context) -> Sequence[str]:
    """What follows `--`."""
    argv: Sequence[str] = context.obj
    if not argv:
        raise typer.BadParameter("say what to run after --, such as: batchyard submit --queue QUEUE -- python train.py")
    return argv


def cluster(context: typer.Context, kubeconfig: str, data_dir: Path | None) -> str:
    """The kubeconfig that is meant: a data directory that is named goes before what the environment says."""
    if data_dir is None:
        return kubeconfig
    source = context.get_parameter_source("kubeconfig")
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("--data-dir and --kubeconfig are two clusters: leave out one")
    return ""


def pairs(option: str, told: Sequence[str] | None) -> dict[str, str]:
    """Texts as NAME=VALUE."""
    found = {}
    for text in told or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{option} {text!r}: write it as NAME=VALUE")
        found[name] = value
    return found


def toleration(text: str) -> dict[str, str]:
    """A toleration as KEY, KEY=VALUE, either with :EFFECT."""
    told, _, effect = text.partition(":")
    key, equals, value = told.partition("=")
    which = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {**({"key": key} if key else {}), **which, **({"effect": effect} if effect else {})}


def _repeated(*names: str, metavar: str = "NAME=VALUE", told: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=f"{told}; repeatable.")


def _count(least: int, told: str) -> Any:
    return typer.Option(metavar="N", min=least, help=told)


_Texts: TypeAlias = list[str] | None

Queue: TypeAlias = Annotated[str, typer.Option(metavar="QUEUE", help="The LocalQueue that it waits in.")]
Folder: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="A folder to ship, as the working directory.", show_default=False)
]
Name: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The Job's name; by default after the command.")]
Namespace: TypeAlias = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NS", help="Where it is made; by default as the kubeconfig says.")
]
Image: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="What it runs in.")]
Cpu: TypeAlias = Annotated[str, typer.Option(metavar="AMOUNT", help="CPUs of each pod: 2, 500m; '' asks for none.")]
Memory: TypeAlias = Annotated[str, typer.Option(metavar="AMOUNT", help="Memory of each pod, such as 4Gi.")]
Gpus: TypeAlias = Annotated[int, _count(0, "GPUs of each pod.")]
GpuResource: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="What a GPU is called.")]
Priority: TypeAlias = Annotated[str, typer.Option(metavar="CLASS", help="Its WorkloadPriorityClass.")]
Completions: TypeAlias = Annotated[int | None, _count(1, "How many pods must end well, each with its index.")]
Parallelism: TypeAlias = Annotated[int | None, _count(1, "How many pods run at once; by default all completions.")]
BackoffLimit: TypeAlias = Annotated[int, _count(0, "How many pods may fail and are tried again.")]
Env: TypeAlias = Annotated[_Texts, _repeated("--env", "-e", told="A variable of its environment")]
Annotations: TypeAlias = Annotated[_Texts, _repeated("--annotation", told="An annotation of the Job")]
NodeSelector: TypeAlias = Annotated[_Texts, _repeated("--node-selector", told="A label that its nodes have")]
Tolerations: TypeAlias = Annotated[
    _Texts, _repeated("--toleration", metavar="KEY[=VALUE][:EFFECT]", told="A taint that its nodes may have")
]
CheckpointDir: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A folder of the node that its pods find at $CHECKPOINT_DIR.")
]
Kubeconfig: TypeAlias = Annotated[
    str, typer.Option(envvar="KUBECONFIG", metavar="FILE", help="The cluster; else the platform of the data directory.")
]
Context: TypeAlias = Annotated[str, typer.Option("--context", metavar="NAME", help="Which context of it.")]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The platform that runs here; by default .batchyard."),
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print what would be made, and send nothing.")]
Detach: TypeAlias = Annotated[bool, typer.Option("--detach", help="Return as soon as it is made.")]
Output: TypeAlias = Annotated[
    Form | None, typer.Option("--output", "-o", help="Of --dry-run; without it json, for events as JSON lines.")
]
