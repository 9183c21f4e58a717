"""Figures of a running platform in the text format of Prometheus; the names are upstream's where upstream has them."""
