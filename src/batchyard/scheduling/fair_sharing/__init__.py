"""The order of Workloads with fair sharing: among ClusterQueues by weighted share, and among LocalQueues by usage."""
