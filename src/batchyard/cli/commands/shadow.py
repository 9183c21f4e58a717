"""The options of `batchyard operator --shadow`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.base.instant import Duration
from batchyard.cli.commands import forks as of
from batchyard.cli.options import ProgressFormat

Shadow: TypeAlias = Annotated[
    bool,
    typer.Option("--shadow", help="Observe only: report where the cluster's Kueue decides differently."),
]
Lasts: TypeAlias = Annotated[
    Duration | None,
    typer.Option("--for", parser=of.duration, metavar="DURATION", help="With --shadow: end after this duration."),
]
Patience: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=of.duration,
        metavar="DURATION",
        help="With --shadow: longest delay between both decisions; default: 15s.",
    ),
]

Output: TypeAlias = Annotated[
    ProgressFormat | None,
    typer.Option("--output", "-o", help="With --shadow: divergences as JSON lines (default) or text."),
]


def is_shadow(shadow: bool, lasts: Duration | None, patience: Duration | None, form: ProgressFormat | None) -> bool:
    """Whether shadow mode is on; BadParameter if its options are given without it."""
    if not shadow and any(each is not None for each in (lasts, patience, form)):
        raise typer.BadParameter("--for, --patience and --output require --shadow")
    return shadow


def run_shadow(
    where: tuple[str, str],
    listens: tuple[str, int],
    lasts: Duration | None,
    patience: Duration | None,
    *,
    kueue: tuple[Path | None, bool],
    form: ProgressFormat | None,
) -> None:
    """Run shadow mode beside a Kueue; `kueue`: its Configuration, and whether it uses fair sharing."""
    from batchyard.cli import shadow as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.kueue_file import beside  # noqa: PLC0415 - loads the platform
    from batchyard.server.kubeconfig.access import KubeconfigSource  # noqa: PLC0415 - loads the platform
    from batchyard.server.operator.shadow import ShadowConfig  # noqa: PLC0415 - loads the platform
    from batchyard.shadow.state import ShadowSettings  # noqa: PLC0415 - loads the platform

    terms = (
        ShadowSettings() if patience is None else ShadowSettings(min(ShadowSettings().settle, patience // 2), patience)
    )
    config, fair_sharing = kueue
    stated = None if config is None else beside(config)
    command.shadow(
        ShadowConfig(KubeconfigSource(*where), stated, fair_sharing, terms, lasts, *listens),
        form or ProgressFormat.JSON,
    )
