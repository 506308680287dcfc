"""A decode pod: ``python -m services.decode.pod --config FILE --group G --node N``."""

import sys

from common.worker.pod_main import pod_main


def main() -> int:
    return pod_main("decode", "services.decode.rank", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
