"""The cloud's catalog: machine types, prices, boot and other machine durations, and the Nodes that machines become."""
