"""Lint: rules that find problems of a configuration, over all objects of a set of manifests."""
