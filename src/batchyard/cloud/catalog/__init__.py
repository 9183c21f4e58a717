"""Catalog of the cloud: machine types, prices, durations of machine steps, and the resulting Nodes."""
