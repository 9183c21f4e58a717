"""The laws of the platform, one a file: observers of a running world that say what was broken, by whom, and when."""
