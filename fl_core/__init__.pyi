from .audit.audit import Audit
from .audit.findings import Finding
from .base.errors import InputError
from .data.arrays import from_arrays
from .data.datasets import DATASETS, Dataset, load_dataset, register_dataset
from .data.samples import DatasetEntry, Samples
from .models.build import build_model
from .models.catalog import MODELS, register_model
from .models.entry import ModelEntry
from .models.model import Model
from .privacy.accountants import ACCOUNTANTS, Accountant
from .privacy.accounting import epsilon, epsilon_after_steps, noise_multiplier_for
from .privacy.ledger import Ledger
from .privacy.releases import BudgetExhausted, Charge, Release
from .privacy.telemetry import TELEMETRY, Telemetry
from .recipes.aggregation import Aggregation
from .recipes.catalog import METHODS, find_method, register_method
from .recipes.mechanism import MECHANISMS, Mechanism
from .recipes.objective import Objective
from .recipes.parts import KnobRange, Part
from .recipes.personalization import Personalization
from .recipes.personalization_kinds import PERSONALIZATIONS
from .recipes.recipe import Recipe, edit, without
from .recipes.sparsification import SPARSIFICATIONS, Sparsification
from .recipes.terms import TERMS, Term
from .run.config import FederationConfig, RunSettings
from .run.federation import Federation
from .run.plan import METRICS, RoundPlan, RoundReport

__all__ = [
    "ACCOUNTANTS",
    "DATASETS",
    "MECHANISMS",
    "METHODS",
    "METRICS",
    "MODELS",
    "PERSONALIZATIONS",
    "SPARSIFICATIONS",
    "TELEMETRY",
    "TERMS",
    "Accountant",
    "Aggregation",
    "Audit",
    "BudgetExhausted",
    "Charge",
    "Dataset",
    "DatasetEntry",
    "Federation",
    "FederationConfig",
    "Finding",
    "InputError",
    "KnobRange",
    "Ledger",
    "Mechanism",
    "Model",
    "ModelEntry",
    "Objective",
    "Part",
    "Personalization",
    "Recipe",
    "Release",
    "RoundPlan",
    "RoundReport",
    "RunSettings",
    "Samples",
    "Sparsification",
    "Telemetry",
    "Term",
    "build_model",
    "edit",
    "epsilon",
    "epsilon_after_steps",
    "find_method",
    "from_arrays",
    "load_dataset",
    "noise_multiplier_for",
    "register_dataset",
    "register_method",
    "register_model",
    "without",
]
