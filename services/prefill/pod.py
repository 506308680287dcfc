"""A prefill pod: ``python -m services.prefill.pod --config FILE --group G --node N``."""

import sys

from common.worker.pod_main import pod_main


def main() -> int:
    return pod_main("prefill", "services.prefill.rank", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
