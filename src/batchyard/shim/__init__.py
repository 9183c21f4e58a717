"""Container shims: a spawner process, and one shim process per started container, pod sandbox or image pull (a run).

The modules import only the standard library, so that each of the many shim processes stays small. batchyard's server
writes run requests into directories (see `state_dir`) and reads the state of the runs from the same directories.
"""
