"""The operator's installation."""
