"""What a container sees of this machine, and what it has for itself."""

from node.machine import Machine, container, is_kept, shell, until


def test_a_container_runs_in_a_namespace_of_its_own(node: Machine) -> None:
    node.sandbox(hostname="some-pod")
    told = node.ended(shell("hostname; ls /proc | grep -c '^[0-9]*$'; id -u; pwd; echo $HOME $HOSTNAME"))
    assert (told["exitCode"], node.texts()[0]) == (0, "some-pod")
    assert int(node.texts()[1]) < 10
    assert node.texts()[2:] == ["0", "/", "/root some-pod"]


def test_it_sees_nothing_of_the_machine_but_its_programs(node: Machine) -> None:
    node.sandbox()
    node.ended(shell(f"ls /etc/shadow /home /work {node.root} /root/private; ls /root /tmp /var /run; echo $?"))
    assert [text for stream, _, text in node.log() if stream == "stdout"][-1] == "0"
    assert len([text for stream, _, text in node.log() if "cannot access" in text]) == 5


def test_what_it_writes_is_gone_with_the_run(node: Machine) -> None:
    node.sandbox()
    node.ended(
        shell("echo x > /tmp/x; echo x > /x; echo x > /root/x; mkdir -p /data/y; ls /tmp/x /x /root/x -d /data/y")
    )
    assert node.texts() == ["/data/y", "/root/x", "/tmp/x", "/x"]
    until(lambda: not is_kept(node.root / "pods/u/runs/main/0"), "the end of the keeper")
    assert not list(node.root.rglob("x"))


def test_it_has_no_capabilities_and_gets_none(node: Machine) -> None:
    node.sandbox()
    node.ended(shell("grep -E 'CapEff|CapPrm|NoNewPrivs' /proc/self/status | tr -d '\\t'"))
    assert node.texts() == ["CapPrm:0000000000000000", "CapEff:0000000000000000", "NoNewPrivs:1"]


def test_a_command_that_is_not_there_is_a_start_error_in_runcs_words(node: Machine) -> None:
    node.sandbox()
    told = node.ended(container("nosuch"))
    assert (told["exitCode"], told["reason"], node.texts()) == (128, "StartError", [])
    assert told["message"].endswith(
        "runc create failed: unable to start container process: error during container init: "
        'exec: "nosuch": executable file not found in $PATH'
    )
    assert "startedAt" not in told
