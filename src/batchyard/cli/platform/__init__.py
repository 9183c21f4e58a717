"""The implementation of the `batchyard platform` commands."""
