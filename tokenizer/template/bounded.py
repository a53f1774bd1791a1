"""Decide from the syntax tree whether a chat template takes bounded time and memory."""

from collections.abc import Iterator

from jinja2 import nodes

# Jinja's own names; any other name that the template does not set is an input.
_NO_INPUTS = frozenset({"caller", "kwargs", "loop", "self", "varargs"})
_MAX_LOOPS = 16
_MAX_NUMBER = 16
_MAX_ARGUMENT_CHARACTERS = 64

# Nodes allowed anywhere. Excluded are nodes that make a large value from a small one: `*`, `**`,
# `range`, macros, captured blocks, lists that repeat a variable.
_PLAIN_NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Neg,
    nodes.CondExpr,
    nodes.Test,
    nodes.Keyword,
    nodes.Add,
    nodes.Sub,
    nodes.If,
    nodes.NSRef,
    nodes.Break,
    nodes.Continue,
    nodes.Scope,
)
_CHECKED_NODES = (
    nodes.Assign,
    nodes.Call,
    nodes.Concat,
    nodes.Filter,
    nodes.For,
    nodes.List,
    nodes.Mod,
    nodes.Tuple,
)

_FILTERS = frozenset(
    {
        "capitalize",
        "default",
        "first",
        "int",
        "items",
        "last",
        "length",
        "list",
        "lower",
        "reject",
        "rejectattr",
        "safe",
        "select",
        "selectattr",
        "title",
        "trim",
        "upper",
    }
)
# The output of these is larger than their input: it may be printed, but not stored or nested.
_GROWING_FILTERS = frozenset({"join", "string", "tojson"})
_PART_FILTERS = frozenset(
    {
        "items",
        "list",
        "reject",
        "rejectattr",
        "select",
        "selectattr",
        "trim",
    }
)
_FUNCTIONS = frozenset({"namespace", "raise_exception", "strftime_now"})
_METHODS = frozenset(
    {
        "endswith",
        "get",
        "items",
        "keys",
        "lower",
        "lstrip",
        "rsplit",
        "rstrip",
        "split",
        "startswith",
        "strip",
        "title",
        "upper",
        "values",
    }
)


def is_bounded(tree: nodes.Template) -> bool:
    """Return whether time and memory are provably proportional to the input.

    True for templates whose loops iterate over messages, tools or documents, and whose inner loops
    iterate over a part of the outer loop's item, so that the number of steps is that of the data,
    and in which no single operation makes a large value from a small one. Text that grows by `+`
    is limited while rendering. False means unknown: such a template is rendered in a process of its
    own with a time limit.
    """
    all_nodes = list(_walk(tree))
    if not all(isinstance(node, _PLAIN_NODES + _CHECKED_NODES) for node in all_nodes):
        return False
    if not _stored(all_nodes).isdisjoint(_FUNCTIONS | {"loop"}):
        return False
    namespaces = _namespaces(all_nodes)
    loops = [node for node in all_nodes if isinstance(node, nodes.For)]
    targets = {name for loop in loops for name in _names(loop.target)}
    return (
        len(loops) <= _MAX_LOOPS
        and all(map(_is_allowed_use, all_nodes))
        and _namespaces_are_flat(all_nodes, namespaces)
        and _growth_is_bounded(all_nodes)
        and _loops_are_nested_data(tree, _sources(all_nodes), targets, ())
    )


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def _is_allowed_use(node: nodes.Node) -> bool:
    match node:
        case nodes.Filter(name=name):
            known = name in _FILTERS or name in _GROWING_FILTERS
            return known and node.node is not None and _has_plain_arguments(node)
        case nodes.Call(node=nodes.Name(name="strftime_now")):
            return _has_plain_arguments(node)
        case nodes.Call(node=nodes.Name(name=name)):
            return name in _FUNCTIONS and node.dyn_args is None and node.dyn_kwargs is None
        case nodes.Call(node=nodes.Getattr(attr=name)):
            return name in _METHODS and _has_plain_arguments(node)
        case nodes.Call():
            return False
        case nodes.Mod(left=left, right=right):
            # With a string on the left, % is formatting, which can pad without bound.
            is_loop_index = (
                isinstance(left, nodes.Getattr)
                and left.attr in ("index", "index0")
                and left.node == nodes.Name("loop", "load")
            )
            return (is_loop_index or _is_filter(left, "length")) and isinstance(right, nodes.Const)
        case nodes.List(items=items):
            return all(isinstance(item, nodes.Const) for item in items)
        case nodes.Tuple(items=items):
            return all(
                isinstance(item, nodes.Const)
                or (isinstance(item, nodes.Name) and item.ctx == "store")
                for item in items
            )
        case nodes.For():
            return not node.recursive
    return True


def _is_filter(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Filter) and node.name == name


def _has_plain_arguments(node: nodes.Filter | nodes.Call) -> bool:
    """Return whether all arguments are small constants; those of `default` are not restricted."""
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    if _is_filter(node, "default"):
        return True
    values = [*node.args, *(keyword.value for keyword in node.kwargs)]
    return all(isinstance(value, nodes.Const) and _is_small(value.value) for value in values)


def _is_small(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_ARGUMENT_CHARACTERS
    return value is None or (isinstance(value, int) and abs(value) <= _MAX_NUMBER)


def _stored(all_nodes: list[nodes.Node]) -> set[str]:
    return {node.name for node in all_nodes if isinstance(node, nodes.Name) and node.ctx != "load"}


def _namespaces(all_nodes: list[nodes.Node]) -> set[str]:
    return {
        node.target.name
        for node in all_nodes
        if isinstance(node, nodes.Assign)
        and isinstance(node.target, nodes.Name)
        and any(_is_namespace_call(part) for part in _walk(node.node))
    }


def _is_namespace_call(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Call)
        and isinstance(node.node, nodes.Name)
        and node.node.name == "namespace"
    )


def _namespaces_are_flat(all_nodes: list[nodes.Node], namespaces: set[str]) -> bool:
    """Return whether namespaces are only created by `set` and used by attribute.

    Nested namespaces that hold each other twice would print exponentially much.
    """
    made = sum(map(_is_namespace_call, all_nodes))
    set_directly = sum(
        isinstance(node, nodes.Assign) and _is_namespace_call(node.node) for node in all_nodes
    )
    uses = sum(
        isinstance(node, nodes.Name) and node.name in namespaces and node.ctx == "load"
        for node in all_nodes
    )
    attributes = sum(
        isinstance(node, nodes.Getattr)
        and isinstance(node.node, nodes.Name)
        and node.node.name in namespaces
        for node in all_nodes
    )
    return made == set_directly and uses == attributes


def _is_growing(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Concat) or (
        isinstance(node, nodes.Filter) and node.name in _GROWING_FILTERS
    )


def _growth_is_bounded(all_nodes: list[nodes.Node]) -> bool:
    """Return whether growing operations are not nested and only printed or tested."""
    for node in all_nodes:
        grown = sum(map(_is_growing, _walk(node))) if _may_not_repeat(node) else 0
        allowed = 1 if _is_growing(node) else 0
        if grown > allowed:
            return False
    return True


def _may_not_repeat(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Assign) or _is_growing(node)


def _sources(all_nodes: list[nodes.Node]) -> dict[str, set[str | None]]:
    """Return, for each variable that is set, the names that its values are parts of.

    None stands for any other value; false and empty constants do not count.
    """
    sources: dict[str, set[str | None]] = {}
    for node in all_nodes:
        if isinstance(node, nodes.Assign):
            for target in _walk(node.target):
                if isinstance(target, nodes.Name):
                    roots = sources.setdefault(target.name, set())
                    if not (isinstance(node.node, nodes.Const) and not node.node.value):
                        roots.add(_root(node.node))
    return sources


def _root(node: nodes.Node | None) -> str | None:
    """Return the name that the expression takes a part of: `messages` for `messages[1:]`."""
    while True:
        match node:
            case nodes.Name(name=name):
                return str(name)
            case nodes.Getattr() | nodes.Getitem():
                node = node.node
            case nodes.Filter() if node.name in _PART_FILTERS:
                node = node.node
            case nodes.Call(node=nodes.Getattr(attr="items", node=base)):
                node = base
            case _:
                return None


def _names(node: nodes.Node) -> list[str]:
    return [part.name for part in _walk(node) if isinstance(part, nodes.Name)]


def _is_input(name: str | None, targets: set[str], sources: dict[str, set[str | None]]) -> bool:
    """Return whether `name` is an input; it may be set to a part of itself."""
    return (
        name is not None and name not in _NO_INPUTS | targets and sources.get(name, set()) <= {name}
    )


def _loops_are_nested_data(
    node: nodes.Node,
    sources: dict[str, set[str | None]],
    targets: set[str],
    outer: tuple[tuple[str, ...], ...],
) -> bool:
    """Return whether every loop iterates over a part of its enclosing loop's item or of an input.

    `outer` are the targets of the loops around `node`. All have different names, so that a name
    identifies its loop.
    """
    if isinstance(node, nodes.For):
        root = _root(node.iter)
        if root is None:
            return False
        roots = sources.get(root, {root})
        if outer:
            parts = roots <= set(outer[-1])
        else:
            parts = all(_is_input(name, targets, sources) for name in roots)
        inner = tuple(_names(node.target))
        outer_names = {name for names in outer for name in names}
        # A target may be set to a part of itself, as in `set call = call.function`.
        own = all(sources.get(name, set()) <= {name} for name in inner)
        if not (parts and own and outer_names.isdisjoint(inner)):
            return False
        outer = (*outer, inner)
    return all(
        _loops_are_nested_data(child, sources, targets, outer) for child in node.iter_child_nodes()
    )
