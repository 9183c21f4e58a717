"""The operator's admission and conversion webhooks: their registration and their responses."""
