"""The entry point of the command `batchyard`. Exit codes: 0 done, 1 the input or the run failed, 2 wrong usage.

130 after Ctrl-C, 141 when the reader of the output went away. The user sees a message, never a traceback (with
`python -X dev -m batchyard` those who look for a defect do).
"""

import gc
import sys
import traceback

from batchyard.base.gc_tuning import rare_collections

INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        with rare_collections():
            from batchyard.cli.app import app  # noqa: PLC0415 - so that Ctrl-C is answered while things load

            app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        from batchyard.cli import output  # noqa: PLC0415 - as above

        if isinstance(error, BrokenPipeError):
            output.end_with_closed_pipe()
        output.fail(_defect(error))
    finally:
        # The process ends and its memory goes back as a whole: let nobody look through it for garbage once more.
        gc.freeze()


def _defect(error: Exception) -> str:
    """A defect of ours in words: what, where, and what was being done."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    lines = [f"batchyard: a defect of batchyard itself: {type(error).__name__}: {error}"]
    lines += [f"  {note}" for note in getattr(error, "__notes__", ())]
    lines.append(f"  at {place.filename}:{place.lineno} in {place.name}; please report it with the input")
    return "\n".join(lines)
