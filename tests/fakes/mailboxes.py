"""What is left in the mailboxes of ranks that share a process."""

from common.parallel.in_process import InProcessTransport


def undelivered(transport: InProcessTransport) -> int:
    """Messages sent by any rank of its group and not received: zero between steps."""
    return sum(len(box) for box in transport._boxes.values())
