"""The commands with their options, one per module, registered in `cli/app.py`. Imports little, so that help is fast."""
