"""Platforms from one platform.yaml: its validation, the rendered files, the costs, and the create and destroy steps."""
