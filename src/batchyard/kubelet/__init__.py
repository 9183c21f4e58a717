"""Kubelets: simulated ones, and the one that runs pods on this machine."""
