"""The operator on the API server of Kubernetes itself."""
