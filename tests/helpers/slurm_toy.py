"""Slurm's commands as a sweep and a batch script call them: one machine, every task at once, nothing queued."""

from __future__ import annotations

from pathlib import Path

_SBATCH = """#!/bin/bash
cp "$1" "{directory}/submitted.sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
for task in $(seq 0 "${{last:-0}}"); do
  [ -n "$last" ] && export SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID="$task"
  SLURM_JOB_ID=$((7 + task)) SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 \\
    SLURM_JOB_NODELIST=node0 bash "$1" >> "{directory}/job_$task.log" 2>&1 < /dev/null &
done
echo "Submitted batch job 7"
"""
_SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
  case $1 in --output|--error|--cpus-per-task) shift 2 ;; *) shift ;; esac
done
for node in $(seq "${SLURM_NNODES:-1}"); do "$@" || exit; done
"""
_SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
"""
_SCONTROL = """#!/bin/bash
[ "$1 $2 $3" = "show hostnames node[0-1]" ] && printf 'node0\\nnode1\\n'
"""


def make_slurm(directory: Path) -> Path:
    """Write the commands; `sbatch` keeps what it was given as `submitted.sh` and each task's output as `job_N.log`.

    Returns:
        The directory to put first in `PATH`.
    """
    commands = directory / "bin"
    commands.mkdir(parents=True)
    texts = {"sbatch": _SBATCH.format(directory=directory), "srun": _SRUN, "sacct": _SACCT, "scontrol": _SCONTROL}
    for name, text in texts.items():
        (commands / name).write_text(text, encoding="utf-8")
        (commands / name).chmod(0o755)
    return commands
