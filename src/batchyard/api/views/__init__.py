"""Typed views of objects for controllers, parsed once per revision. The objects stay unchanged."""
