"""Kubelets: the local kubelet, which runs pods on this machine, and the simulated kubelets."""
