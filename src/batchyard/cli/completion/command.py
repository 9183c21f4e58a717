"""The command `batchyard completion`: prints the script that completes `batchyard` command lines in a shell."""

import pkgutil
from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    """The shells that have a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_script(shell: Shell) -> str:
    """Return the completion script of a shell."""
    content = pkgutil.get_data("batchyard.cli.completion", f"batchyard.{shell}")
    assert content is not None, f"the file batchyard.{shell} is missing: reinstall the package batchyard"
    return content.decode()


def completion(shell: Annotated[Shell, typer.Argument(help="The shell: bash, zsh or fish.", metavar="SHELL")]) -> None:
    """Print the script that completes commands, options, files and names of the platform's objects.

    bash: add `source <(batchyard completion bash)` to ~/.bashrc.

    zsh: write the script to a file `_batchyard` in a folder of $fpath, and start a new shell.

    fish: write the script to ~/.config/fish/completions/batchyard.fish.
    """
    typer.echo(completion_script(shell), nl=False)
