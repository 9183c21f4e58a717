"""The command line interface: the `batchyard` commands, their options and their output."""
