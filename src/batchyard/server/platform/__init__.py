"""The embedded platform (`batchyard up`): store, controllers and API server in one process, and its data directory."""
