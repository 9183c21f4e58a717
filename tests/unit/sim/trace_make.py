"""A small trace in a folder, row by row."""

from pathlib import Path

NODE_COLUMNS = "sn,cpu_milli,memory_mib,gpu,model"
POD_COLUMNS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)
NODES = ("t4,8000,16384,2,T4", "g2,8000,16384,1,G2")
#: c fits on no node before b ends; d was never placed in the trace; e requests a model that does not exist.
PODS = (
    "a,1000,1024,2,1000,,LS,Succeeded,0,100,0",
    "b,1000,1024,1,600,G2,LS,Failed,10,60,12",
    "c,1000,1024,1,600,,LS,Running,20,200,20",
    "d,1000,1024,0,0,,BE,Pending,30,90,",
    "e,1000,1024,1,500,A10,LS,Running,40,90,50",
)


def write_trace(folder: Path, pods: tuple[str, ...] = PODS, nodes: tuple[str, ...] = NODES) -> Path:
    """Writes the two files of a trace and returns its folder."""
    (folder / "nodes.csv").write_text("\n".join((NODE_COLUMNS, *nodes, "")))
    (folder / "pods.csv").write_text("\n".join((POD_COLUMNS, *pods, "")))
    return folder
