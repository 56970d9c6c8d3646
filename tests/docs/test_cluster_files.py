"""The files that start clusters, on the page about scaling: their form, and the commands in them."""

import shlex
import subprocess

import yaml

from tests.cli.parts import exit_code
from tests.docs.test_code_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "scaling.md"
FILES = [yaml.safe_load(block.code) for block in blocks(PAGE, "yaml")]


def test_a_cluster_of_ray_has_what_its_launcher_needs():
    cluster, _ = FILES
    assert {"cluster_name", "provider", "auth"} <= cluster.keys()
    assert any("--head" in command for command in cluster["head_start_ray_commands"])
    assert any("$RAY_HEAD_IP" in command for command in cluster["worker_start_ray_commands"])


def test_a_job_of_kubernetes_has_a_command_that_is_understood(tmp_path, monkeypatch, capsys):
    """The command line reads all of it before it looks for a cluster."""
    monkeypatch.chdir(tmp_path)
    _, job = FILES
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    program, *words = shlex.split(job["spec"]["entrypoint"])
    assert program == "palaestra"
    words[words.index("/runs")] = str(tmp_path)  # a volume of the job
    assert exit_code(*words, "--trainer.total-env-steps", "0") == 2
    assert "trainer.total_env_steps" in capsys.readouterr().err


def test_a_script_of_slurm_is_a_script():
    [script] = [block.code for block in blocks(PAGE, "bash") if "#SBATCH" in block.code]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
