"""Parsing of options that select controllers."""

import typer


def chosen_of_platform(text: str) -> tuple[str, ...]:
    """The controller groups of a platform."""
    from batchyard.controller_groups import GROUPS  # noqa: PLC0415 - loads the platform

    return _chosen(text, GROUPS)


def chosen_of_operator(text: str) -> tuple[str, ...]:
    """The controller groups of an operator; by default those that Kubernetes lacks."""
    from batchyard.controller_groups import ON_KUBERNETES, REMOTE  # noqa: PLC0415 - loads the platform

    return _chosen(text, REMOTE) if text else ON_KUBERNETES


def _chosen(text: str, among: tuple[str, ...]) -> tuple[str, ...]:
    from batchyard.controller_groups import chosen  # noqa: PLC0415 - loads the platform

    try:
        return chosen(text, among)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
