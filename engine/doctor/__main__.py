"""`python -m swiftchat.engine.doctor`: print the report as one JSON object."""

import json
import sys

from swiftchat.engine.doctor.report import report

json.dump(report(), sys.stdout)
