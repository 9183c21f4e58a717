"""The operator (`batchyard operator`): batchyard's controllers in their own process, against a remote API server."""
