"""Platform provisioning from one platform.yaml: validation, rendered files, costs, and create and destroy steps."""
