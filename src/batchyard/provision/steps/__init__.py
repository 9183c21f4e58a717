"""Steps that create and remove a platform, as data: commands to run, and probes that show whether a step is done."""
