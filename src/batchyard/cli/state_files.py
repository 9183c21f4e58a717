"""States of files, and what is to be said of them. Needs nothing that talks to clusters."""

from typing import Final

from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.sim.forecasting.run_times import with_runtimes
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.state import State
from batchyard.sim.state_document import read_state
from batchyard.sim.whatif import told_of

#: How far a state is followed where nobody says.
UNTIL: Final = 24 * HOUR
_NAMED_MAX: Final = 3


def state_from(file: str) -> State:
    """The state of a file; ends the command where there is none to be had."""
    try:
        state = read_state(file)
    except InvalidScenario as invalid:
        output.fail(str(invalid))
    tell_unread(state)
    return state


def tell_unread(state: State) -> None:
    """Say what whoever took a state might not read."""
    for line in told_of(state.unread):
        output.tell(f"batchyard: not known here: {line}")


def told_runtimes(state: State, which: str = "they go on to the end") -> State:
    """The state with all run times told; says who runs of whom nobody knows for how long."""
    told, unknown = with_runtimes(state)
    if unknown:
        who = ", ".join(unknown[:_NAMED_MAX]) + (f" and {more} more" if (more := len(unknown) - _NAMED_MAX) > 0 else "")
        output.tell(f"batchyard: nobody knows how long {who} will run: {which}")
    return told
