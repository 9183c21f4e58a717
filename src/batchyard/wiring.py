"""The one composition root: the same controllers for every world, only the ports differ."""
