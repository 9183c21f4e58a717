"""Shadow mode: predicts the decisions of a running Kueue with our scheduler and reports divergences."""
