"""Confirmation before steps that cost or destroy: at the terminal, by --yes, or denied."""

import sys
from dataclasses import dataclass

import typer

from batchyard.cli import output


@dataclass(frozen=True, slots=True)
class TerminalConfirmation:
    """Asks the user at the terminal."""

    #: The platform's name, which the user types to confirm a destruction.
    name: str
    #: Whether the user confirmed with --yes.
    is_yes: bool

    def agrees(self, question: str, destroys: bool) -> bool:
        """Whether the user agrees; False without a terminal and --yes."""
        if self.is_yes:
            output.report_line(f"{question} (--yes)")
            return True
        if not sys.stdin.isatty():
            output.report_line(f"{question}\nbatchyard: no terminal to ask for confirmation: use --yes to confirm")
            return False
        try:
            if destroys:
                typed = typer.prompt(
                    f"{question}\nType {self.name} to continue", default="", show_default=False, err=True
                )
                return bool(typed.strip() == self.name)
            return bool(typer.confirm(f"{question}\nContinue?", err=True))
        except typer.Abort:
            raise KeyboardInterrupt from None
