"""The embedded platform (`batchyard up`)."""
