"""The manifests for Kubernetes: fields as the operator's definitions have them, arguments as the jobs take them."""

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tools.manifests import MANIFESTS, USED, manifests, problems

SCHEMAS = json.loads(USED.read_text(encoding="utf-8"))["schemas"]
ALL = manifests()


def spec_of(manifest: Any) -> Any:
    return manifest["spec"].get("template", manifest["spec"])


@pytest.mark.parametrize("name", ALL)
def test_every_field_is_one_of_the_operators_with_its_type(name: str) -> None:
    assert problems(ALL[name], SCHEMAS) == []


@pytest.mark.parametrize("name", ALL)
def test_the_program_is_a_job_that_takes_these_arguments(name: str) -> None:
    spec = spec_of(ALL[name])
    module = importlib.import_module(f"spillway.spark.jobs.{Path(spec['mainApplicationFile']).stem}")
    # Options are declared by the module, or by the job that it holds.
    parser = module.JOB.parser() if hasattr(module, "JOB") else module.parser()
    assert parser.parse_args(spec["arguments"])


@pytest.mark.parametrize("name", ALL)
def test_what_was_not_run_is_said_in_the_file_and_in_the_readme(name: str) -> None:
    assert "never run" in (MANIFESTS / name).read_text(encoding="utf-8")
    assert name in (MANIFESTS / "README.md").read_text(encoding="utf-8")


def test_a_secret_that_is_mounted_is_where_the_argument_says_on_driver_and_executors() -> None:
    spec = spec_of(ALL["capture.yaml"])
    for pods in (spec["driver"], spec["executor"]):
        (secret,) = pods["secrets"]
        assert f"file:{secret['path']}/connection" in spec["arguments"]


def test_the_checker_tells_what_is_wrong() -> None:
    bad = copy.deepcopy(ALL["capture.yaml"])
    bad["spec"]["driver"]["memorry"] = "1g"
    bad["spec"]["executor"]["instances"] = "two"
    bad["spec"]["mode"] = "clustered"
    del bad["spec"]["type"]
    said = problems(bad, SCHEMAS)
    assert "spec.driver.memorry is not a field" in said
    assert "spec.executor.instances: integer, not str" in said
    assert "spec.type is missing" in said
    assert any(text.startswith("spec.mode: one of [") for text in said)
    assert problems({"apiVersion": "v1", "kind": "Pod"}, SCHEMAS)[0].startswith("v1 Pod is not defined")
