"""Jobs of batch/v1: how they stand, how they end, and what is to be done with their pods, as pure functions."""
