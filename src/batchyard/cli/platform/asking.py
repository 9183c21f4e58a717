"""Questions before what costs or destroys: answered at the terminal, or beforehand by --yes, or refused."""

import sys
from dataclasses import dataclass

import typer

from batchyard.cli import output


@dataclass(frozen=True, slots=True)
class Asked:
    """Asks whoever sits at the terminal."""

    #: What is typed before something is destroyed: the platform's name.
    name: str
    #: Whether the answer was given beforehand.
    is_yes: bool

    def agrees(self, question: str, destroys: bool) -> bool:
        """Whether the user wants it; without a terminal and without --yes he does not."""
        if self.is_yes:
            output.tell(f"{question} (--yes)")
            return True
        if not sys.stdin.isatty():
            output.tell(f"{question}\nbatchyard: nobody can be asked here: say --yes if that is wanted")
            return False
        try:
            if destroys:
                typed = typer.prompt(f"{question}\nType {self.name} to go on", default="", show_default=False, err=True)
                return bool(typed.strip() == self.name)
            return bool(typer.confirm(f"{question}\nGo on?", err=True))
        except typer.Abort:
            raise KeyboardInterrupt from None
