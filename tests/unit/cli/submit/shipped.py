"""A source file as users submit it."""

import sys

from batchyard import job


class OddError(Exception):
    """An exception of the module of the function."""


@job(queue="q")
def divide(a: int, b: int = 1) -> object:
    """Divide, or fail in several ways."""
    sys.stdout.write("dividing")
    if b == 7:
        raise OddError("seven")
    if b == 8:
        sys.exit("eight")
    if b == 9:
        return {a}
    return "x" * a if b == 10 else a / b


if __name__ == "__main__":
    raise AssertionError("a pod imports this file, and does not run it")
