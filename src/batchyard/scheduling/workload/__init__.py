"""Lifecycles: the states objects go through, as pure functions from an object to the next one."""
