"""State files, and remarks on them. Imports no cluster client."""

from typing import Final

from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.sim.forecasting.run_times import with_runtimes
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.state import State
from batchyard.sim.state_document import read_state
from batchyard.sim.whatif import consequences_of

#: The default limit of the virtual time after a state.
UNTIL: Final = 24 * HOUR
_NAMED_MAX: Final = 3


def state_from(file: str) -> State:
    """The state in a file; ends the command if it cannot be read."""
    try:
        state = read_state(file)
    except InvalidScenario as invalid:
        output.fail(str(invalid))
    print_unread_kinds(state)
    return state


def print_unread_kinds(state: State) -> None:
    """Print which kinds the reader of a state was not allowed to list."""
    for line in consequences_of(state.unread):
        output.report_line(f"batchyard: not known here: {line}")


def with_explicit_runtimes(state: State, which: str = "they run to the end") -> State:
    """The state with explicit run times; prints which running jobs have an unknown one."""
    reported, unknown = with_runtimes(state)
    if unknown:
        who = ", ".join(unknown[:_NAMED_MAX]) + (f" and {more} more" if (more := len(unknown) - _NAMED_MAX) > 0 else "")
        output.report_line(f"batchyard: run time of {who} is unknown: {which}")
    return reported
