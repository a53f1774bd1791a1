"""The reference back end: the operations of a model as torch calls, correct on every device."""
