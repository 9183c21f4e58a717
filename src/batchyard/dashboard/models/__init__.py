"""The view models of the dashboard: pure functions from platform state and user permissions to a JSON document."""
