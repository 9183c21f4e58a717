"""The rules of `batchyard lint`, which find configuration problems in a set of Kubernetes and Kueue manifests."""
