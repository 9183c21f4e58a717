"""The commands with their options, one per file, registered in `cli/app.py`. Imports little, so that help is fast."""
