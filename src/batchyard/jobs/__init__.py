"""Controllers of Jobs and JobSets, and their integrations in Kueue."""
