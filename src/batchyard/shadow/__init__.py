"""What our scheduler would decide where another one decides, and where both part."""
