"""Node lifecycle of kube-controller-manager: heartbeats, taints, taint eviction, drain and pod garbage collection."""
