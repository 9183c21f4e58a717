"""The page: its models, its streams, its report."""
