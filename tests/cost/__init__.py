"""The CPU time of requests, texts and patterns: it grows at most linearly with the input."""
