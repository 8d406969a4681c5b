"""A federation of real processes on the loopback interface: SuperLink, SuperNodes and the app of docs/examples."""

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
APP = ROOT / "docs" / "examples" / "flower"
PATIENCE = """import flwr.common.constant as known

known.HEARTBEAT_DEFAULT_INTERVAL = 90  # seconds that a task's process may take to start, 30 as published
"""
"""Imported first by every process: on a busy machine a Python that imports torch takes longer than Flower waits."""


class Federation:
    """SuperLink and SuperNodes in processes of their own, in a folder of their own; all end with the block."""

    def __init__(self, folder, nodes):
        self.folder, self.count = folder, nodes
        self.run = folder / "run"
        self.link, self.nodes, self.port = None, {}, free_port()
        home, early = folder / "home", folder / "early"
        for one in (home, early):
            one.mkdir()
        (early / "sitecustomize.py").write_text(PATIENCE)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n\n[superlink.loop]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        python = os.pathsep.join([str(early), str(ROOT)])
        own = {"FLWR_HOME": str(home), "PYTHONPATH": python, "PATH": path, "OMP_NUM_THREADS": "1"}
        self.env = os.environ | own | {"FLWR_TELEMETRY_ENABLED": "0", "NO_COLOR": "1"}

    def __enter__(self):
        self.link = self._start(
            "link", "flower-superlink", "--port", self.port, "--disable-runtime-dependency-installation"
        )
        wait_for(lambda: answers(self.port))
        for number in range(self.count):
            self.start_node(number)
        return self

    def __exit__(self, *error):
        for process in (*self.nodes.values(), self.link):
            end(process)

    def start_node(self, number):
        """Start the SuperNode of a client."""
        address = ("--superlink", f"127.0.0.1:{self.port}", "--port", free_port())
        self.nodes[number] = self._start(
            f"node{number}", "flower-supernode", *address, "--node-config", f"partition-id={number}"
        )

    def kill_node(self, number):
        """Kill a SuperNode with all that it has started."""
        end(self.nodes.pop(number))

    def _start(self, name, *command):
        with (self.folder / f"{name}.log").open("ab") as log:
            words = [str(one) for one in (*command, "--insecure")]
            return subprocess.Popen(words, stdout=log, stderr=log, env=self.env, start_new_session=True)

    def start_run(self, **config):
        """Start the app by `flwr run`, its configuration changed as told."""
        copy = self.folder / "app"
        copy.mkdir(exist_ok=True)
        head, mark, usual = (APP / "pyproject.toml").read_text().partition("[tool.flwr.app.config]\n")
        told = {**tomllib.loads(usual), "folder": str(self.run), "connect-seconds": 600.0, **config}
        lines = [f"{name} = {toml(value)}\n" for name, value in told.items()]
        (copy / "pyproject.toml").write_text("".join([head, mark, *lines]))
        command = ["flwr", "run", str(copy), "loop"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def server_process(self):
        """Find the process of the server app; None where there is none."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"FLWR_HOME={self.env['FLWR_HOME']}".encode() in (folder / "environ").read_bytes()
                if ours and b"flwr-serverapp" in (folder / "cmdline").read_bytes():
                    return int(folder.name)
            except OSError:  # it has ended
                continue
        return None

    def charged(self):
        """Count the rounds whose charge is on disk."""
        try:
            return max(0, (self.run / "charges.jsonl").read_bytes().count(b"\n") - 1)
        except OSError:
            return 0

    def kill_server_after(self, rounds):
        """Kill the server app as soon as the charge of a round after these is on disk."""
        wait_for(lambda: self.charged() > rounds)
        os.kill(self.server_process(), signal.SIGKILL)
        wait_for(lambda: self.server_process() is None)

    def log(self, name="link"):
        """Read what a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")


def wait_for(condition, seconds=1500.0):
    """Wait until something holds."""
    last = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < last, "what was waited for did not happen"
        time.sleep(0.02)


def end(process):
    """Kill a process and all that it has started."""
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port():
    """Find a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    """Return True if somebody listens on a port of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def toml(value):
    """Write a value as TOML."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
