"""The name of a model behind an endpoint is no path."""

from __future__ import annotations

import pytest

from finegrained_rlhf.launch.checks.paths import inputs


@pytest.mark.parametrize("target", ["conqrr.EndpointWriter", "rewards.Judge", "runtime.EndpointGenerator"])
def test_the_name_of_a_model_behind_an_endpoint_is_no_path(target: str) -> None:
    endpoint = {"_target_": f"finegrained_rlhf.{target}", "model": "m"}
    assert list(inputs({"llm": {**endpoint, "remote": {"url": "http://localhost"}}})) == []
