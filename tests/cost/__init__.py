"""What requests, texts and patterns cost: no cost grows faster than its input."""
