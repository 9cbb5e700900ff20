"""`python -m epyc_vllm_agent` is the command itself."""

from epyc_vllm_agent.cli import main

main()
