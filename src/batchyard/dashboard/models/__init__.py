"""One module for each view: pure functions from what is known, and what the asker may see, to a JSON document."""
