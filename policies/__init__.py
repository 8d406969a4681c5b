"""Hand-coded controllers; each speaks the `predict` of stable-baselines3."""
