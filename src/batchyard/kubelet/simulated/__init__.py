"""Simulated kubelets: controllers that advance pods, nodes and Workloads without owner, without real processes."""
