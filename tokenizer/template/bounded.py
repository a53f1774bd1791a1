"""Which chat templates surely end soon, told from their syntax tree without running them."""

from collections.abc import Iterator

from jinja2 import nodes

__all__ = ["is_bounded"]

# Names of Jinja's own; any other that the template does not set was given by the caller.
_NO_INPUTS = frozenset({"caller", "kwargs", "loop", "self", "varargs"})
_MOST_LOOPS = 16
_LARGEST_NUMBER = 16
_LONGEST_ARGUMENT = 64

# What may occur anywhere. Everything that can compute something large from something small is
# missing: `*`, `**`, `range`, macros, captured blocks, lists that repeat a variable.
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
# These write more than they read. They may print, but feed neither themselves nor a variable.
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
    """Whether the template ends after time and memory in proportion to what it is given.

    True only for templates of a plain make: loops go over the messages, tools or documents,
    and inner loops over a part of what the outer one stands at, so that all together take as
    many steps as there is data; no single operation makes much out of little. What remains,
    text that grows by `+` from turn to turn, is watched while rendering. False means "not
    known": such a template is rendered under a time limit in a process of its own.
    """
    everything = list(_walk(tree))
    if not all(isinstance(node, _PLAIN_NODES + _CHECKED_NODES) for node in everything):
        return False
    if not _stored(everything).isdisjoint(_FUNCTIONS | {"loop"}):
        return False
    namespaces = _namespaces(everything)
    loops = [node for node in everything if isinstance(node, nodes.For)]
    targets = {name for loop in loops for name in _names(loop.target)}
    return (
        len(loops) <= _MOST_LOOPS
        and all(map(_is_plain_use, everything))
        and _all_bare(everything, namespaces)
        and _grows_once(everything)
        and _loops_descend(tree, _sources(everything), targets, ())
    )


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def _is_plain_use(node: nodes.Node) -> bool:
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
            # With a string on the left, % is formatting, which can pad without limit.
            is_place = (
                isinstance(left, nodes.Getattr)
                and left.attr in ("index", "index0")
                and left.node == nodes.Name("loop", "load")
            )
            return (is_place or _is_filter(left, "length")) and isinstance(right, nodes.Const)
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
    """Whether all arguments are small constants; those of `default` may be anything."""
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    if _is_filter(node, "default"):
        return True
    values = [*node.args, *(keyword.value for keyword in node.kwargs)]
    return all(isinstance(value, nodes.Const) and _is_small(value.value) for value in values)


def _is_small(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_ARGUMENT
    return value is None or (isinstance(value, int) and abs(value) <= _LARGEST_NUMBER)


def _stored(everything: list[nodes.Node]) -> set[str]:
    return {node.name for node in everything if isinstance(node, nodes.Name) and node.ctx != "load"}


def _namespaces(everything: list[nodes.Node]) -> set[str]:
    return {
        node.target.name
        for node in everything
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


def _all_bare(everything: list[nodes.Node], namespaces: set[str]) -> bool:
    """Whether namespaces are only made by `set` and used for their attributes.

    One that holds another twice, and so on, would print as exponentially much.
    """
    made = sum(map(_is_namespace_call, everything))
    set_directly = sum(
        isinstance(node, nodes.Assign) and _is_namespace_call(node.node) for node in everything
    )
    uses = sum(
        isinstance(node, nodes.Name) and node.name in namespaces and node.ctx == "load"
        for node in everything
    )
    attributes = sum(
        isinstance(node, nodes.Getattr)
        and isinstance(node.node, nodes.Name)
        and node.node.name in namespaces
        for node in everything
    )
    return made == set_directly and uses == attributes


def _is_growing(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Concat) or (
        isinstance(node, nodes.Filter) and node.name in _GROWING_FILTERS
    )


def _grows_once(everything: list[nodes.Node]) -> bool:
    """Whether what makes more out of less stands alone and only in what is printed or tested."""
    for node in everything:
        grown = sum(map(_is_growing, _walk(node))) if _may_not_repeat(node) else 0
        allowed = 1 if _is_growing(node) else 0
        if grown > allowed:
            return False
    return True


def _may_not_repeat(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Assign) or _is_growing(node)


def _sources(everything: list[nodes.Node]) -> dict[str, set[str | None]]:
    """For each variable that is set, the names its values are parts of, None for others.

    Constants that are false or empty do not count.
    """
    sources: dict[str, set[str | None]] = {}
    for node in everything:
        if isinstance(node, nodes.Assign):
            for target in _walk(node.target):
                if isinstance(target, nodes.Name):
                    roots = sources.setdefault(target.name, set())
                    if not (isinstance(node.node, nodes.Const) and not node.node.value):
                        roots.add(_root(node.node))
    return sources


def _root(node: nodes.Node | None) -> str | None:
    """The name of which the expression is a part, as `messages` of `messages[1:]`."""
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
    """Whether the caller gave it; a variable may be set to a part of itself."""
    return (
        name is not None and name not in _NO_INPUTS | targets and sources.get(name, set()) <= {name}
    )


def _loops_descend(
    node: nodes.Node,
    sources: dict[str, set[str | None]],
    targets: set[str],
    outer: tuple[tuple[str, ...], ...],
) -> bool:
    """Whether every loop goes over a part of the innermost one around it, or of an input.

    `outer` are the targets of the loops around `node`. No two of these share a name, so that a
    name tells which loop's it is.
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
        taken = {name for names in outer for name in names}
        # A target may be set to a part of itself, as in `set call = call.function`.
        own = all(sources.get(name, set()) <= {name} for name in inner)
        if not (parts and own and taken.isdisjoint(inner)):
            return False
        outer = (*outer, inner)
    return all(_loops_descend(child, sources, targets, outer) for child in node.iter_child_nodes())
