"""Shadow mode: predicts the decisions of a running Kueue with batchyard's scheduler and reports each divergence."""
