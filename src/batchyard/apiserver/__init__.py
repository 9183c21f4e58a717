"""The Kubernetes API without its wire: from a request to a response or a stream."""
