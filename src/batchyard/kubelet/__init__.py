"""What runs pods: simulated, or on this machine."""
