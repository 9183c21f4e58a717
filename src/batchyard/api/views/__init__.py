"""Typed views: what decisions need of an object, read once per revision. The objects themselves stay untouched."""
