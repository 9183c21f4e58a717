"""The operator (`batchyard operator`): controllers against an API server elsewhere."""
