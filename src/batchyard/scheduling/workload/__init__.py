"""Workload lifecycle: pure functions from an object to its next state, and the controller that applies them."""
