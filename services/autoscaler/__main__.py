import sys

from services.autoscaler.main import main

sys.exit(main(sys.argv[1:]))
