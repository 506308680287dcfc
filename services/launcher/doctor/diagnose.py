"""All checks over one set of facts."""

from services.launcher.doctor.check_dependencies import check_dependencies
from services.launcher.doctor.check_gpus import check_gpus
from services.launcher.doctor.check_model import check_model
from services.launcher.doctor.check_node import check_node
from services.launcher.doctor.check_peers import check_peers
from services.launcher.doctor.check_place import check_place
from services.launcher.doctor.check_rdma import check_rdma
from services.launcher.doctor.facts import Facts
from services.launcher.doctor.finding import Finding, Severity

CHECKS = (check_node, check_gpus, check_rdma, check_place, check_model, check_dependencies, check_peers)


def diagnose(facts: Facts) -> list[Finding]:
    """Errors first, each in the order of the checks."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)
