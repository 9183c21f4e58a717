"""Commands with their options, one a file, as `cli/app.py` registers them. Imports little: help comes at once."""
