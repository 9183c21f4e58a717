"""The entry point of the command `batchyard`. Exit codes: 0 success, 1 invalid input or failed run, 2 wrong usage.

130 after Ctrl-C, 141 after a closed output pipe. Unexpected errors are printed as a message without a traceback;
`python -X dev -m batchyard` shows the traceback.
"""

import gc
import sys
import traceback

from batchyard.base.primitives import rare_garbage_collection

INTERRUPTED_EXIT_CODE = 130
#: The first argument with which the scripts of cli/completion request completions.
_COMPLETE_WORD = "__complete"


def main() -> None:
    """Run the `batchyard` command line."""
    try:
        with rare_garbage_collection():
            if sys.argv[1:2] == [_COMPLETE_WORD]:
                from batchyard.cli.completion.answer import completion_text  # noqa: PLC0415 - loads no other module

                sys.stdout.write(completion_text(sys.argv[2:]))
                return
            from batchyard.cli.app import app  # noqa: PLC0415 - handles Ctrl-C during the import

            app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        from batchyard.cli import output  # noqa: PLC0415 - loaded only on errors

        if isinstance(error, BrokenPipeError):
            output.end_with_closed_pipe()
        output.fail(_internal_error_message(error))
    finally:
        # The process ends and its memory is freed as a whole: skip the last garbage collection.
        gc.freeze()


def _internal_error_message(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = [f"batchyard: internal error (a bug in batchyard): {type(error).__name__}: {error}"]
    lines += [f"  {note}" for note in getattr(error, "__notes__", ())]
    lines.append(f"  at {frame.filename}:{frame.lineno} in {frame.name}; please report it with your input")
    return "\n".join(lines)
