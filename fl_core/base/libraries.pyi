from collections.abc import Callable
from importlib import metadata as metadata

import gymnasium as gymnasium
import numpy as numpy
import pandas as pandas
import torch as torch
from gymnasium import spaces as spaces
from numpy import generic as generic
from numpy import ndarray as ndarray
from numpy.typing import ArrayLike as ArrayLike
from numpy.typing import NDArray as NDArray
from scipy import optimize as optimize
from scipy import special as special
from scipy import stats as stats
from torch import Tensor as Tensor
from torch import nn as nn
from torch.nn import functional as functional

def after_import(library: str, action: Callable[[], None]) -> None: ...
