"""``python -m pytest_llmperf`` is ``llmperf``, also where no script of that name is on PATH."""

import sys

from pytest_llmperf.cli.main import main

sys.exit(main())
