from stable_baselines3.common import base_class as base_class
from stable_baselines3.common import noise as noise
from stable_baselines3.common import policies as policies
from stable_baselines3.common import vec_env as vec_env
