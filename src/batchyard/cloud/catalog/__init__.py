"""Machine catalog of the cloud: machine types, prices, step durations and the resulting nodes."""
