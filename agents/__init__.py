"""Learned controllers: training with stable-baselines3, and the folders they are saved in."""
