"""Steps that create and remove a platform, as data: commands, and read-only probes that show if a step is done."""
