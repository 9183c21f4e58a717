"""Metrics in Prometheus' text format, by upstream's names where upstream has them."""
