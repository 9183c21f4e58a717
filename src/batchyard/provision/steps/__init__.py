"""What making and removing a platform consists of, as data: steps, commands, and how one sees that they are done."""
