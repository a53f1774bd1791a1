"""`swiftchat.engine.doctor [--model PATH] [--device DEVICE]`: print the report as JSON.

With `--model` the checks of that model, or the error why it cannot run.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from swiftchat.engine.doctor.report import report
from swiftchat.errors import SwiftchatError


def _model_report(path: Path, device: str) -> dict[str, object]:
    # Imported here: the report of the machine must not depend on torch.
    from swiftchat.cuda.cubin_cache import user_cache_folder
    from swiftchat.engine.api.protocol import error_message
    from swiftchat.engine.doctor.model import model_checks

    try:
        return {"checks": [asdict(c) for c in model_checks(path, device, user_cache_folder())]}
    except SwiftchatError as error:
        return error_message(error)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -P -m swiftchat.engine.doctor")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    found = _model_report(options.model, options.device) if options.model else report()
    json.dump(found, sys.stdout)


main()
