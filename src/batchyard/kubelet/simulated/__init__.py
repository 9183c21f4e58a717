"""What runs an admitted workload: simulated here, real processes later."""
