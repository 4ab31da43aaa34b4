"""A stand-in for Slurm: programs sbatch, squeue and scancel that run jobs on this machine.

They do what the real ones do as far as Keima uses them, with the same options and the same output: arrays, queued jobs,
signals to the batch script, requeuing, time limits, exit codes. ``test_real_slurm.py`` shows with Slurm itself what
these assume. Each job has a keeper process, which starts its script and records its end. ``StandIn`` plays the cluster:
it has a number of free places, and its administrator.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = """#!/bin/sh
exec {python} {file} {name} {folder} "$@"
"""
POLL_SECONDS = 0.05
KILL_WAIT = 3.0
STATES = ("PENDING", "RUNNING", "COMPLETING")


class StandIn:
    """The cluster, in a folder.

    Args:
        root: the folder.
        places: how many jobs may run at a time.
    """

    def __init__(self, root: Path, *, places: int = 100) -> None:
        self.root = root
        self.variables: dict[str, str] = {}
        (root / "bin").mkdir(parents=True)
        (root / "jobs").mkdir()
        for name in ("sbatch", "squeue", "scancel"):
            path = root / "bin" / name
            path.write_text(PROGRAM.format(python=sys.executable, file=__file__, name=name, folder=root))
            path.chmod(0o700)
        self.set_places(places)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which the programs are found."""
        return {**os.environ, **self.variables, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}

    def set_places(self, places: int) -> None:
        """Let so many jobs run at a time."""
        (self.root / "places").write_text(str(places))

    def refuse(self, program: str, text: str) -> None:
        """Let a program fail with this text; an empty one: no longer."""
        (self.root / f"{program}.refusal").write_text(text)

    def calls(self, program: str) -> list[list[str]]:
        """Return the arguments of each call of a program so far."""
        path = self.root / f"{program}.calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, in the order of their ids."""
        return all_jobs(self.root)

    def alive(self, slot: int) -> list[dict[str, Any]]:
        """Return the jobs of a slot that have not ended."""
        return [job for job in self.jobs() if job["slot"] == slot and job["state"] in STATES]

    def requeue(self, job: dict[str, Any]) -> None:
        """Do as scontrol requeue does."""
        order(self.root, job, "requeue")

    def end_all(self) -> None:
        """End everything that still runs."""
        for job in self.jobs():
            order(self.root, job, "kill")
        deadline = time.monotonic() + 20.0
        while any(job["state"] in STATES for job in self.jobs()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def all_jobs(root: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (root / "jobs").glob("*.json")]
    return sorted(found, key=lambda job: (job["array"], job["slot"]))


def save(root: Path, job: dict[str, Any]) -> None:
    path = root / "jobs" / f"{job['array']}_{job['slot']}.json"
    part = path.with_name(f"{path.stem}.{os.getpid()}.part")
    part.write_text(json.dumps(job))
    part.replace(path)


def order(root: Path, job: dict[str, Any], what: str) -> None:
    (root / "jobs" / f"{job['array']}_{job['slot']}.{what}").touch()


def ordered(root: Path, job: dict[str, Any], what: str) -> bool:
    path = root / "jobs" / f"{job['array']}_{job['slot']}.{what}"
    found = path.exists()
    path.unlink(missing_ok=True)
    return found


def value(arguments: list[str], option: str, default: str = "") -> str:
    return next((each.partition("=")[2] for each in arguments if each.startswith(f"--{option}=")), default)


def sbatch(root: Path, arguments: list[str]) -> int:
    """Submit an array."""
    array = 1 + max((job["array"] for job in all_jobs(root)), default=0)
    slots: list[int] = []
    for part in value(arguments, "array").split(","):
        first, _, last = part.partition("-")
        slots += range(int(first), int(last or first) + 1)
    for slot in slots:
        job = {
            "array": array,
            "slot": slot,
            "name": value(arguments, "job-name"),
            "state": "PENDING",
            "reason": "None",
            "nodes": "",
            "partition": value(arguments, "partition", "debug"),
            "restarts": 0,
            "code": 0,
            "signal": 0,
            "script": arguments[-1],
            "output": value(arguments, "output").replace("%A", str(array)).replace("%a", str(slot)),
            "seconds": float(os.environ.get("STAND_IN_SECONDS", 1e9)),
            "warning": int(value(arguments, "signal", "B:TERM@60").partition("@")[2]),
        }
        save(root, job)
        subprocess.Popen(
            [sys.executable, __file__, "keeper", str(root), f"{array}_{slot}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    sys.stdout.write(f"{array}\n")
    return 0


def squeue(root: Path, arguments: list[str]) -> int:
    """List jobs."""
    for job in all_jobs(root):
        if job["name"] == value(arguments, "name"):
            fields = (job["array"], job["slot"], job["state"], job["reason"], job["nodes"], job["partition"])
            rest = ("2026-11-25T22:00:00", job["restarts"], f"{job['code']}:{job['signal']}")
            sys.stdout.write("".join(f"{field}|" for field in fields + rest) + "\n")
    return 0


def scancel(root: Path, arguments: list[str]) -> int:
    """End or signal jobs."""
    ids = {each for each in arguments if not each.startswith("-")}
    for job in all_jobs(root):
        if f"{job['array']}_{job['slot']}" in ids and job["state"] in STATES:
            order(root, job, "warn" if value(arguments, "signal") else "cancel")
    return 0


def keeper(root: Path, name: str) -> int:
    """Run one job until it has ended for good."""
    path = root / "jobs" / f"{name}.json"
    while True:
        job = json.loads(path.read_text())
        state = run_once(root, job)
        if state != "REQUEUED":
            save(root, {**job, "state": state, "reason": "None" if state != "FAILED" else "NonZeroExitCode"})
            return 0
        save(root, {**job, "state": "PENDING", "reason": "BeginTime", "nodes": "", "restarts": job["restarts"] + 1})
        time.sleep(0.5)


def run_once(root: Path, job: dict[str, Any]) -> str:
    """Wait for a place, run the script, and return the state in which it ended."""
    while sum(each["state"] == "RUNNING" for each in all_jobs(root)) >= int((root / "places").read_text()):
        if job["reason"] == "None":
            job["reason"] = "Resources"
            save(root, job)
        if ordered(root, job, "cancel") or ordered(root, job, "kill"):
            return "CANCELLED"
        time.sleep(POLL_SECONDS)
    job.update(state="RUNNING", reason="None", nodes=f"node{job['slot']}")
    save(root, job)
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(job["slot"]), "SLURM_JOB_ID": str(job["array"])}
    with Path(job["output"]).open("ab") as output:
        program = subprocess.Popen(
            ["/bin/bash", job["script"]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    began, end = time.monotonic(), ""
    while program.poll() is None:
        if ordered(root, job, "warn") or (not end and time.monotonic() - began > job["seconds"] - job["warning"]):
            program.send_signal(signal.SIGTERM)
            job["seconds"] = 1e9
        for what, state in (("cancel", "CANCELLED"), ("requeue", "REQUEUED"), ("kill", "CANCELLED")):
            if ordered(root, job, what):
                end, kill_at = state, time.monotonic() + (0.0 if what == "kill" else KILL_WAIT)
                os.killpg(program.pid, signal.SIGTERM)
        if end and time.monotonic() > kill_at:
            os.killpg(program.pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    code = program.returncode
    job["code"], job["signal"] = max(code, 0), max(-code, 0)
    return end or ("FAILED" if code else "COMPLETED")


def main() -> int:
    """Be one of the programs."""
    name, folder, *arguments = sys.argv[1:]
    root = Path(folder)
    if name == "keeper":
        return keeper(root, arguments[0])
    with (root / f"{name}.calls").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    refusal = root / f"{name}.refusal"
    if refusal.exists() and (text := refusal.read_text()):
        sys.stderr.write(f"{name}: error: {text}\n")
        return 1
    return {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[name](root, arguments)


if __name__ == "__main__":
    sys.exit(main())
