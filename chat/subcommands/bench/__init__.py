"""`swiftchat bench`: measure the speed of a model."""
