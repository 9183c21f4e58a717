"""One file for a whole platform: what it says, what it comes to, what it costs."""
