from rich import box, table, text
from rich import console as consoles

__all__ = ["box", "consoles", "table", "text"]
