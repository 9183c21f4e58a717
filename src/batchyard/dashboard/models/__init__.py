"""The JSON documents of the dashboard's views, computed from platform state and user permissions."""
