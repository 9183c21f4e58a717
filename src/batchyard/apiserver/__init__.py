"""The Kubernetes API independent of transport: from a request to a response or a stream."""
