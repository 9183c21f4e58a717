"""The views, one module each: pure functions from state and permissions to a JSON document."""
