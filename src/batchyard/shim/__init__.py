"""Container supervisors: a spawner process and one shim process per run.

They import only the standard library, because there is one shim per container and each must stay small. The platform
writes run requests into directories (`state_dir`) and reads the state of the runs from the same directories.
"""
