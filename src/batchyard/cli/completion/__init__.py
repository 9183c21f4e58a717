"""Completion of the command line in bash, zsh and fish: the shells' scripts, and the program that they call."""
