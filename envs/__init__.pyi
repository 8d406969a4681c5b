from .acting import Policy, as_policy
from .charged_round import ChargedRound
from .control_loop import ControlLoop
from .core import EnvCore, make_core
from .episodes import NOT_MEASURED
from .generators import GENERATORS, Generator, GeneratorEntry, register_generator
from .instances import INSTANCE_SETS, instance_seeds
from .kinds import KINDS
from .knobs import Knob
from .playing import run_to_the_end
from .processes import DPilotProcessVecEnv
from .rewards import REWARDS, Reward
from .sb3 import DPilotVecEnv
from .setting import EnvSpec, Setting
from .signals import Feature
from .single import DPilotEnv
from .tasks import TASKS, Task, find_task
from .vector import DPilotVectorEnv

__all__ = [
    "GENERATORS",
    "INSTANCE_SETS",
    "KINDS",
    "NOT_MEASURED",
    "REWARDS",
    "TASKS",
    "ChargedRound",
    "ControlLoop",
    "DPilotEnv",
    "DPilotProcessVecEnv",
    "DPilotVecEnv",
    "DPilotVectorEnv",
    "EnvCore",
    "EnvSpec",
    "Feature",
    "Generator",
    "GeneratorEntry",
    "Knob",
    "Policy",
    "Reward",
    "Setting",
    "Task",
    "as_policy",
    "find_task",
    "instance_seeds",
    "make_core",
    "register_generator",
    "run_to_the_end",
]
