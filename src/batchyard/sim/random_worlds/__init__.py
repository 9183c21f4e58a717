"""Random worlds for tests: queues, loads and clusters by seed."""
