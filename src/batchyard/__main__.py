"""`python -m batchyard` is the command `batchyard`."""

from batchyard.cli.main import main

main()
