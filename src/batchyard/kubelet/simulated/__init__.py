"""Simulated kubelets: controllers that advance pods, nodes and bare Workloads without real processes."""
