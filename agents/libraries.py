"""Modules of stable-baselines3 that are imported on first use, as those of `fl_core.base.libraries` are."""

from __future__ import annotations

from fl_core.base.libraries import Library

base_class = Library("stable_baselines3.common.base_class")
noise = Library("stable_baselines3.common.noise")
policies = Library("stable_baselines3.common.policies")
vec_env = Library("stable_baselines3.common.vec_env")
