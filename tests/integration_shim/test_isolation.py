"""The view of a container on this machine, and its private resources."""

import subprocess
from pathlib import Path
from shutil import copy

from integration_shim.machine import ShimMachine, container, is_supervised, shell, state, until


def test_container_runs_in_separate_namespaces(node: ShimMachine) -> None:
    node.sandbox(hostname="some-pod")
    reported = node.ended(shell("hostname; ls /proc | grep -c '^[0-9]*$'; id -u; pwd; echo $HOME $HOSTNAME"))
    assert (reported["exitCode"], node.texts()[0]) == (0, "some-pod")
    assert int(node.texts()[1]) < 10
    assert node.texts()[2:] == ["0", "/", "/root some-pod"]


def test_container_sees_only_programs_of_machine(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell(f"ls /etc/shadow /home /mnt/none {node.root} /root/private; ls /root /tmp /var /run; echo $?"))
    assert [text for stream, _, text in node.log() if stream == "stdout"][-1] == "0"
    assert len([text for stream, _, text in node.log() if "cannot access" in text]) == 5


def test_container_writes_are_removed_with_its_run(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(
        shell("echo x > /tmp/x; echo x > /x; echo x > /root/x; mkdir -p /data/y; ls /tmp/x /x /root/x -d /data/y")
    )
    assert node.texts() == ["/data/y", "/root/x", "/tmp/x", "/x"]
    until(lambda: not is_supervised(node.root / "pods/u/runs/main/0"), "the end of the supervisor")
    assert not list(node.root.rglob("x"))


def test_container_has_no_capabilities_and_no_new_privileges(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell("grep -E 'CapEff|CapPrm|NoNewPrivs' /proc/self/status | tr -d '\\t'"))
    assert node.texts() == ["CapPrm:0000000000000000", "CapEff:0000000000000000", "NoNewPrivs:1"]


def test_missing_command_is_reported_as_start_error_of_runc(node: ShimMachine) -> None:
    node.sandbox()
    reported = node.ended(container("nosuch"))
    assert (reported["exitCode"], reported["reason"], node.texts()) == (128, "StartError", [])
    assert reported["message"].endswith(
        "runc create failed: unable to start container process: error during container init: "
        'exec: "nosuch": executable file not found in $PATH'
    )
    assert "startedAt" not in reported


def test_container_runs_as_given_user(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell("id -u; id -g; touch /tmp/x && echo writes", user={"uid": 1000, "gid": 2000}))
    assert node.texts() == ["1000", "2000", "writes"]


def test_working_directory_is_created_and_writable(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell("pwd; touch x && ls", workingDir="/some/where"))
    assert node.texts() == ["/some/where", "x"]


def test_read_only_root_rejects_writes(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell("touch /x /srv/x /etc/x /usr/x 2>&1 | grep -c 'Read-only'; touch /x", readOnlyRoot=True))
    assert node.texts()[0] in {"3", "4"}


def test_volumes_are_shared_between_containers_of_pod(node: ShimMachine) -> None:
    node.make("pods/u/volumes/data/sub", 0o777)
    node.sandbox()
    writes = {"source": "volumes/data", "target": "/data", "readOnly": False}
    reads = {"source": "volumes/data/sub", "target": "/deep/sub", "readOnly": True}
    node.ended(shell("echo mine > /data/sub/file", mounts=[writes]))
    reported = node.ended(shell("cat /deep/sub/file; touch /deep/sub/other", container="second", mounts=[reads]))
    assert reported["exitCode"] == 1
    assert node.log(name="second/0.log")[0] == ("stdout", "F", "mine")


def test_volume_mounts_at_path_missing_on_machine(node: ShimMachine) -> None:
    (node.make("pods/u/volumes/data", 0o755) / "file").write_text("mine")
    node.sandbox()
    places = {"volumes/data/file": "/etc/own/file", "volumes/data": "/usr/share/own"}
    mounts = [{"source": source, "target": target, "readOnly": True} for source, target in places.items()]
    script = "cat /etc/own/file /usr/share/own/file; test -e /etc/passwd && touch x && pwd"
    node.ended(shell(script, mounts=mounts, workingDir="/usr/src/app"))
    assert node.texts() == ["minemine/usr/src/app"]
    assert not Path("/usr/src/app").exists()
    assert not (node.root / "etc/own").exists()


def test_working_directory_of_machine_is_read_only(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell("test -e env && pwd; touch x || echo read-only", workingDir="/usr/bin"))
    assert [text for stream, _, text in node.log() if stream == "stdout"] == ["/usr/bin", "read-only"]


def test_volume_source_with_symlink_out_of_volume_is_rejected(node: ShimMachine) -> None:
    (node.make("pods/u/volumes/data") / "out").symlink_to("/etc")
    node.sandbox()
    reported = node.ended(shell("ls /x", mounts=[{"source": "volumes/data/out", "target": "/x", "readOnly": True}]))
    assert (reported["reason"], "volumes/data/out leads out of its volume" in reported["message"]) == (
        "StartError",
        True,
    )


def test_memory_volume_is_limited_and_visible_in_pod_only(node: ShimMachine) -> None:
    memory = node.make("pods/u/volumes/memory", 0o777)
    node.sandbox(tmpfs=[{"volume": "memory", "bytes": 1 << 20}])
    mount = {"source": "volumes/memory", "target": "/memory", "readOnly": False}
    node.ended(shell("head -c 2000000 /dev/zero > /memory/x; wc -c < /memory/x", mounts=[mount]))
    assert ("stdout", "F", str(1 << 20)) in node.log()
    assert not list(memory.iterdir())


def test_pod_does_not_see_processes_and_files_of_another_pod(node: ShimMachine) -> None:
    node.sandbox("a")
    node.sandbox("b")
    run = node.start(shell("touch /tmp/secret; sleep 600"), "a")
    until(lambda: state(run).get("phase") == "Running", "it runs")
    node.ended(shell(f"ls /tmp; ls {node.root}; cat /proc/*/comm"), "b")
    assert {text for stream, _, text in node.log("b") if stream == "stdout"} <= {"bwrap", "sh", "cat"}


def test_python_environment_serves_as_image(node: ShimMachine, tmp_path: Path) -> None:
    venv = node.root / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    node.sandbox()
    image = {"name": "team/env", "environment": str(venv)}
    node.ended(container("python", "-c", "import sys, os; print(sys.prefix, os.environ['VIRTUAL_ENV'])", image=image))
    assert node.texts() == [f"{venv} {venv}"]


def test_container_sees_only_root_of_image_and_leaves_it_unchanged(node: ShimMachine) -> None:
    image = node.make("image", 0o755)
    for program in ("/bin/sh", "/bin/ls", "/bin/cat"):
        put_in(image, program)
    node.sandbox()
    script = "ls /; echo x > /new; cat /new"
    reported = node.ended(container("/bin/sh", "-c", script, image={"name": "own", "root": str(image)}))
    assert (reported["exitCode"], {"bin", "proc", "dev"} <= set(node.texts()), node.texts()[-1]) == (0, True, "x")
    assert "usr" not in node.texts()
    assert not (image / "new").exists()


def put_in(image: Path, program: str) -> None:
    """Copy a program and its libraries into a root filesystem."""
    needed = subprocess.run(["ldd", program], capture_output=True, check=True).stdout.decode().split()
    for path in (program, *(word for word in needed if word.startswith("/"))):
        place = image / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        copy(path, place)


def test_terminal_merges_stdout_and_stderr(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell("test -t 0 && test -t 1 && echo terminal; echo error >&2", tty=True))
    assert node.log() == [("stdout", "F", "terminal"), ("stdout", "F", "error")]


def test_container_reads_its_stdin(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(shell("read line; echo got $line", stdin=True))
    until(lambda: state(run).get("phase") == "Running", "it runs")
    (run / "stdin").write_text("this\n")
    assert until(lambda: state(run).get("phase") == "Exited" and state(run), "its end")["exitCode"] == 0
    assert node.texts() == ["got this"]
