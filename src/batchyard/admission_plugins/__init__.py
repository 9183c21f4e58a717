"""What the API server makes of objects before it stores them, beyond defaults: its admission plugins, as functions."""
