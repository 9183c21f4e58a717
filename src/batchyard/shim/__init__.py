"""The programs that run pods as processes of this machine: a spawner, and a keeper for each run.

They need nothing but the standard library, for there are as many keepers as containers. The platform writes wishes
into folders (`folder`) and reads there what became of them.
"""
