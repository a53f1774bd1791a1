"""The places of the product where a small change makes a mutant, and the changes."""

import ast
import copy
from dataclasses import dataclass

PACKAGES = ("chat", "engine", "cuda", "tokenizer", "weights", "errors")
# Python runs these without site-packages, where the switch is.
WITHOUT_SWITCH = ("engine/cpu/compile_kernels.py", "errors/guard.py")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
}
_LOGGING = {"debug", "info", "warning", "warn", "error", "exception"}
# Without them nothing that works would differ.
_HARMLESS_KEYWORDS = {"strict", "daemon", "maxsize", "stacklevel"}


@dataclass(frozen=True)
class Place:
    """An expression of a file and what it becomes. `line` and `column` count from 1 and 0."""

    line: int
    column: int
    text: str
    replacement: str
    change: str


def places(source: str) -> list[Place]:
    """Return all places of a file, several for an expression that can change in several ways."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.found: list[Place] = []
        self._lines = source.encode().splitlines(keepends=True)

    def _add(self, node: ast.expr, replacement: ast.expr | str, change: str) -> None:
        assert node.end_lineno is not None
        after = len(self._lines[node.end_lineno - 1]) - (node.end_col_offset or 0)
        full = b"".join(self._lines[node.lineno - 1 : node.end_lineno])
        text = full[node.col_offset : len(full) - after].decode()
        column = len(full[: node.col_offset].decode())
        if isinstance(replacement, ast.expr):
            replacement = ast.unparse(replacement)
        if "\n" not in replacement:
            self.found.append(Place(node.lineno, column, text, replacement, change))

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            changed = copy.copy(node)
            changed.ops = [_COMPARISONS[type(node.ops[0])]()]
            self._add(node, changed, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, ast.BoolOp(other, node.values), "and/or")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS and not (_is_text(node.left) or _is_text(node.right)):
            changed = ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
            self._add(node, changed, "arithmetic")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, node.operand, "not removed")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value), "True/False")
        elif isinstance(node.value, int | float):
            for other in (node.value + 1, node.value - 1):
                if other != node.value:
                    self._add(node, f"({other!r})" if other < 0 else repr(other), "number")

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                self._add(bound, ast.BinOp(bound, ast.Add(), ast.Constant(1)), "slice bound")
                self._add(bound, ast.BinOp(bound, ast.Sub(), ast.Constant(1)), "slice bound")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not any(name in ast.unparse(node.test) for name in ("TYPE_CHECKING", "__name__")):
            self._force(node.test, "True", "False")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._force(node.test, "True", "False")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._force(node.test, "False")  # True would loop forever
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._force(test, "True", "False")
        self.generic_visit(node)

    def _force(self, test: ast.expr, *values: str) -> None:
        # A name that the condition binds would be missing.
        binds = any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))
        if not binds and not isinstance(test, ast.Constant):
            for value in values:
                self._add(test, value, f"condition forced {value.lower()}")

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        for part in [*defaults, *node.body]:
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if "__all__" not in {ast.unparse(target) for target in node.targets}:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name not in _LOGGING:
            self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _HARMLESS_KEYWORDS:
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if ast.unparse(node.value) not in ("Literal", "Annotated"):
            self.generic_visit(node)

    def _leave_out(self, _: ast.AST) -> None:
        """Messages, patterns, assertions and types."""

    visit_Raise = visit_Assert = visit_JoinedStr = visit_MatchValue = _leave_out
    visit_TypeAlias = _leave_out


def _is_text(node: ast.expr) -> bool:
    """Return whether an operand is text or a list: another operator would only be a type error."""
    texts = ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp
    return isinstance(node, texts) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
