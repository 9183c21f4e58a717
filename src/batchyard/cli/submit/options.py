"""The options of `batchyard submit` and the parsing of their values. Imports little, to keep startup fast."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from batchyard.cli.options import DocumentFormat
from batchyard.cli.submit.manifests import JobRequest


class WithCommand(TyperCommand):
    """A command whose arguments end with another command line, after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments after `--` and parse the rest."""
        place = args.index("--") if "--" in args else len(args)
        ctx.obj = args[place + 1 :]
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with the command after `--` added."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


def command_line(context: typer.Context) -> Sequence[str]:
    """The arguments after `--`; BadParameter if there are none."""
    argv: Sequence[str] = context.obj
    if not argv:
        raise typer.BadParameter("add the command after --, such as: batchyard submit --queue QUEUE -- python train.py")
    return argv


def pairs(option: str, reported: Sequence[str] | None) -> dict[str, str]:
    """Parse values of the form NAME=VALUE."""
    found = {}
    for text in reported or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{option} {text!r}: use the form NAME=VALUE")
        found[name] = value
    return found


def toleration(text: str) -> dict[str, str]:
    """Parse a toleration: KEY or KEY=VALUE, optionally with :EFFECT."""
    reported, _, effect = text.partition(":")
    key, equals, value = reported.partition("=")
    which = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {**({"key": key} if key else {}), **which, **({"effect": effect} if effect else {})}


def _repeated(*names: str, metavar: str = "NAME=VALUE", reported: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=f"{reported}; repeatable.")


def _count(least: int, reported: str) -> Any:
    return typer.Option(metavar="N", min=least, help=reported)


_Texts: TypeAlias = list[str] | None

Queue: TypeAlias = Annotated[str, typer.Option(metavar="QUEUE", help="The LocalQueue of the Job.")]
Folder: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="A folder to ship as the working directory.", show_default=False)
]
Name: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The Job's name; default: from the command.")]
Namespace: TypeAlias = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NS", help="The Job's namespace; default: the kubeconfig's.")
]
Image: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The container image.")]
Cpu: TypeAlias = Annotated[str, typer.Option(metavar="AMOUNT", help="CPUs of each pod: 2, 500m; '' requests none.")]
Memory: TypeAlias = Annotated[str, typer.Option(metavar="AMOUNT", help="Memory of each pod, such as 4Gi.")]
Gpus: TypeAlias = Annotated[int, _count(0, "GPUs of each pod.")]
GpuResource: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The resource name of GPUs.")]
Priority: TypeAlias = Annotated[str, typer.Option(metavar="CLASS", help="Its WorkloadPriorityClass.")]
Completions: TypeAlias = Annotated[int | None, _count(1, "Number of pods that must succeed, each with its index.")]
Parallelism: TypeAlias = Annotated[
    int | None, _count(1, "Number of pods that run in parallel; default: all completions.")
]
BackoffLimit: TypeAlias = Annotated[int, _count(0, "Number of retries of failed pods.")]
Env: TypeAlias = Annotated[_Texts, _repeated("--env", "-e", reported="An environment variable")]
Annotations: TypeAlias = Annotated[_Texts, _repeated("--annotation", reported="An annotation of the Job")]
NodeSelector: TypeAlias = Annotated[_Texts, _repeated("--node-selector", reported="A label that the nodes must have")]
Tolerations: TypeAlias = Annotated[
    _Texts, _repeated("--toleration", metavar="KEY[=VALUE][:EFFECT]", reported="A node taint to tolerate")
]
CheckpointDir: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A folder of the node, mounted at $CHECKPOINT_DIR.")
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print the objects and create nothing.")]
Detach: TypeAlias = Annotated[bool, typer.Option("--detach", help="Return once the Job is created.")]
Output: TypeAlias = Annotated[
    DocumentFormat | None,
    typer.Option("--output", "-o", help="Format of --dry-run; without it, json prints events as JSON lines."),
]


# --- wanted ---
#
# The arguments of `batchyard submit`.


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """The arguments. `asked` may lack the namespace and the name."""

    asked: JobRequest
    folder: Path | None
    #: '' for the platform of the data directory.
    kubeconfig: str
    context: str
    data_dir: Path
    dry_run: bool
    detach: bool
    form: DocumentFormat | None
