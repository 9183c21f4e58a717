"""Metrics in Prometheus text format, with the metric names of Kueue, Kubernetes and DCGM where they exist."""
