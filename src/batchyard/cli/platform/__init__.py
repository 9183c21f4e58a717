"""What `batchyard platform` does."""
