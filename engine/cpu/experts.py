"""The operation of a mixture of experts, for the native kernels."""

from collections.abc import Sequence

from swiftchat.engine.api.expert_placement import unplaced_reason
from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.native_weights import native_matrices
from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.cpu.references import References
from swiftchat.engine.model.moe import Expert, Experts
from swiftchat.weights.architectures.parts.mlp import Moe


def moe_op(
    config: Moe,
    experts: Experts,
    act: native.ActAndMulOp,
    references: References,
    *,
    exact: bool,
) -> native.MoeOp:
    """Return the operation of a layer's router and experts, without its buffers.

    The arguments are those of `routed_op`. Raises `CannotRecordError` for experts or a router that
    no kernel computes.
    """
    _check_router(config)
    op = _experts_op(config, experts.all, act, references, exact=exact)
    router = config.router
    op.normalized, op.sigmoid = router.normalized, router.scores == "sigmoid"
    op.groups, op.top_groups = router.groups, router.top_groups
    op.eps, op.scale = router.eps, router.scale
    op.correction = references.floats(experts.correction)
    op.expert_scales = references.floats(experts.scales)
    op.shared_size = 0 if experts.shared is None else experts.shared.down.shape[1]
    op.router = references.float_matrix(experts.router)
    op.router_bias = references.floats(experts.router_bias)
    if experts.shared_router is not None:
        op.shared_router = references.float_matrix(experts.shared_router)
    return op


def routed_op(
    config: Moe,
    experts: Sequence[Expert],
    act: native.ActAndMulOp,
    references: References,
    *,
    exact: bool,
) -> native.MoeOp:
    """Return the operation of a layer's routed experts for runs that give the routes.

    `act` is the activation of each expert; `exact`: tiles are multiplied in fp32. Raises
    `CannotRecordError` for experts that no kernel computes.
    """
    if problem := unplaced_reason(config):
        raise CannotRecordError(problem)
    return _experts_op(config, experts, act, references, exact=exact)


def _experts_op(
    config: Moe,
    experts: Sequence[Expert],
    act: native.ActAndMulOp,
    references: References,
    *,
    exact: bool,
) -> native.MoeOp:
    """Return the operation of routed experts, and of a shared one behind them."""
    if config.identity_experts:
        raise CannotRecordError("no kernel has identity experts")
    if config.latent_size:
        raise CannotRecordError("no kernel projects the input of experts")
    structs = [_expert(expert, references) for expert in experts]
    routed = structs[: config.num_experts]
    if len({(_is_tiled(expert.gate_up), _is_tiled(expert.down)) for expert in routed}) > 1:
        raise CannotRecordError("integer and float matrices as experts of one layer")
    return native.MoeOp(
        num_experts=config.num_experts,
        experts_per_token=config.experts_per_token,
        hidden_size=experts[0].down.shape[0],
        expert_size=experts[0].down.shape[1],
        exact=exact,
        act=act,
        experts=references.keep((native.Expert * len(structs))(*structs)),
    )


def _check_router(config: Moe) -> None:
    router = config.router
    if (
        router.scores == "sparsemixer"
        or router.on_input
        or router.by_logits
        or router.softcap
        or router.groups > native.MAX_EXPERT_GROUPS
        or router.best_of_group != 2
    ):
        raise CannotRecordError("no kernel computes this router")


def _expert(expert: Expert, references: References) -> native.Expert:
    pairs = [native_matrices(weight) for weight in (expert.gate_up, expert.down)]
    if any(len(matrices) != 1 for matrices in pairs):
        raise CannotRecordError("no kernel multiplies with an expert's matrix in several parts")
    biases = (references.floats(expert.gate_up_bias), references.floats(expert.down_bias))
    return native.Expert(*(matrices[0] for matrices in pairs), *biases)


def _is_tiled(matrix: native.Matrix) -> bool:
    return bool(matrix.format >= native.Format.INT2)
