"""The templates for Slurm and Kubernetes, as far as a machine without a cluster can check them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.cli import command_parser
from posttrain.commands.parser import parse
from posttrain.planning.words import OPTIONS

FOLDER = Path(__file__).parent.parent.parent / "examples" / "cluster"
SBATCH = FOLDER / "slurm.sbatch"


def documents(name: str) -> dict[str, Any]:
    """The documents of a file by their kind."""
    return {d["kind"]: d for d in yaml.safe_load_all((FOLDER / name).read_text())}


def script() -> str:
    """What srun gives to bash on each node."""
    found = re.search(r"bash -c '(.*?)'", SBATCH.read_text(), re.DOTALL)
    assert found
    return found[1]


def command_lines() -> dict[str, str]:
    """The command of every template, in one line."""
    job = documents("job.yaml")["Job"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    return {
        "slurm.sbatch": " ".join(script().replace("\\\n", " ").split()),
        "job.yaml": job,
        "rayjob.yaml": documents("rayjob.yaml")["RayJob"]["spec"]["entrypoint"],
    }


def test_the_slurm_script_is_sound() -> None:
    for text in (SBATCH.read_text(), script()):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    wanted = {"nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "requeue", "output"}
    assert wanted <= set(re.findall(r"^#SBATCH --([\w-]+)", SBATCH.read_text(), re.MULTILINE))
    used = set(re.findall(r"\$(?:\{)?([A-Z_]+)", script()))
    exported = set(" ".join(re.findall(r"^export (.*)$", SBATCH.read_text(), re.MULTILINE)).split())
    assert used <= {w for w in exported if w.isupper() or "_" in w} | {"SLURM_NNODES", "SLURM_JOB_ID"}


def test_shellcheck_has_nothing_to_say() -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    made = subprocess.run(["shellcheck", str(SBATCH)], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout


def test_the_indexed_job_finds_its_first_pod() -> None:
    found = documents("job.yaml")
    service, job = found["Service"], found["Job"]
    assert (service["apiVersion"], job["apiVersion"]) == ("v1", "batch/v1")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    name = job["metadata"]["name"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert pod["restartPolicy"] in ("Never", "OnFailure") and pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    line = command_lines()["job.yaml"]
    port = service["spec"]["ports"][0]["port"]
    assert f"--rdzv-endpoint {name}-0.{pod['subdomain']}:{port}" in line and f"--nnodes {spec['completions']}" in line
    check_pod(pod)
    assert f"--nproc-per-node {pod['containers'][0]['resources']['limits']['nvidia.com/gpu']}" in line


def test_the_ray_job_has_what_kuberay_requires() -> None:
    job = documents("rayjob.yaml")["RayJob"]
    assert job["apiVersion"] == "ray.io/v1" and job["spec"]["entrypoint"].startswith("posttrain run grpo")
    ray = job["spec"]["rayClusterSpec"]
    head, workers = ray["headGroupSpec"], ray["workerGroupSpecs"]
    cards = 0
    for group in (head, *workers):
        assert isinstance(group["rayStartParams"], dict) and all(
            isinstance(x, str) for x in group["rayStartParams"].values()
        )
        check_pod(group["template"]["spec"])
    for group in workers:
        assert group["groupName"] and group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        cards += group["replicas"] * group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert head["rayStartParams"]["num-gpus"] == "0"  # else rollouts would take the trainer's cards
    assert f"--rollout-workers {cards}" in job["spec"]["entrypoint"]
    images = {g["template"]["spec"]["containers"][0]["image"] for g in (head, *workers)}
    assert len(images) == 1


def check_pod(spec: dict[str, Any]) -> None:
    """Every mount has its volume, and shared memory is not the default's 64 MB."""
    volumes = {v["name"]: v for v in spec["volumes"]}
    for container in spec["containers"]:
        assert container["name"] and container["image"] and container["resources"]["limits"]["nvidia.com/gpu"] > 0
        assert {m["name"] for m in container["volumeMounts"]} == set(volumes)
        shm = next(m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm")
        assert volumes[shm]["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize("name", command_lines())
def test_every_option_is_one_that_posttrain_has(name: str) -> None:
    """Options for several processes are parsed once `posttrain run` has them; all others now."""
    words = shlex.split(command_lines()[name])
    words = words[words.index("run") + 1 :]
    parser = command_parser("run")
    later = [w for w in words if w in OPTIONS and w not in parser.names()]
    for word in later:
        place = words.index(word)
        del words[place : place + 2]
    args = parse(parser, words)
    assert args.target == "grpo" and args.num_generations == 16 and getattr(args, "sampling.max_tokens") == 16256


def test_torchrun_knows_its_options() -> None:
    from torch.distributed.run import get_args_parser

    for name, line in command_lines().items():
        words = shlex.split(line.replace("$SLURM_NNODES", "4"))
        if "torchrun" in words:
            args = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
            assert args.module and args.training_script == "posttrain" and args.training_script_args[0] == "run", name
            assert args.rdzv_backend == "c10d" and args.nnodes == "4" and args.nproc_per_node == "8"
