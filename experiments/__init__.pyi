from .cli import main
from .contenders.handed_in import compare_policies
from .deployment.deployed_run import DeployedRun
from .records.comparison import Comparison, ControllerResult, Episode, Instance
from .records.ledger_file import RunRecord, read_record
from .records.privacy import PrivacyReport
from .reports.comparison import write_report
from .statistics.summary import Row, summarise

__all__ = [
    "Comparison",
    "ControllerResult",
    "DeployedRun",
    "Episode",
    "Instance",
    "PrivacyReport",
    "Row",
    "RunRecord",
    "compare_policies",
    "main",
    "read_record",
    "summarise",
    "write_report",
]
