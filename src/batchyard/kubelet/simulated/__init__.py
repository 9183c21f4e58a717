"""Simulated kubelets: pods, nodes and bare Workloads without real processes."""
