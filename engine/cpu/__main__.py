"""`swiftchat.engine.cpu`: print as JSON which kernels an engine would choose, or the error."""

import json
import os
import sys

from swiftchat.engine.api.protocol import error_message
from swiftchat.engine.cpu.library import choose_kernels
from swiftchat.errors import SwiftchatError


def main() -> None:
    try:
        choice = choose_kernels(os.environ)
    except SwiftchatError as error:
        json.dump(error_message(error), sys.stdout)
    else:
        json.dump({"variant": choice.variant, "reason": choice.reason}, sys.stdout)


main()
