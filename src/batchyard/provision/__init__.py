"""Platform provisioning from one file: validation, rendering, costs, and steps."""
