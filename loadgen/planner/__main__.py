from loadgen.planner.cli import main

main()
