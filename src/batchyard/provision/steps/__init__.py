"""The steps that create and remove a platform, as data: commands, and probes that show whether a step is done."""
