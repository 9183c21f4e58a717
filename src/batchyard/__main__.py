"""Run the command `batchyard` as `python -m batchyard`."""

from batchyard.cli.main import main

main()
