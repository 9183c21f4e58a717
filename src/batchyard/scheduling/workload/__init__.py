"""Workload lifecycle: pure functions that compute a Workload's next status, and the controller that applies them."""
