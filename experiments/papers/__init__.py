"""The papers' tables: their definitions (YAML), cells, jobs and result pages."""
