"""The operation of a mixture of experts, for the native kernels."""

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
    """Return the operation of a layer's experts, without its buffers.

    `act` is the activation of each expert; `exact`: tiles are multiplied in fp32. Raises
    `CannotRecordError` for experts or a router that no kernel computes.
    """
    _check(config, experts)
    router = config.router
    each = [_expert(expert, references) for expert in experts.all]
    routed = each[: config.num_experts]
    if len({(_is_tiled(expert.gate_up), _is_tiled(expert.down)) for expert in routed}) > 1:
        raise CannotRecordError("integer and float matrices as experts of one layer")
    structs = references.keep((native.Expert * len(each))(*each))
    op = native.MoeOp(
        num_experts=config.num_experts,
        experts_per_token=config.experts_per_token,
        normalized=router.normalized,
        sigmoid=router.scores == "sigmoid",
        groups=router.groups,
        top_groups=router.top_groups,
        eps=router.eps,
        scale=router.scale,
        correction=references.floats(experts.correction),
        expert_scales=references.floats(experts.scales),
        hidden_size=experts.router.shape[1],
        expert_size=experts.each[0].down.shape[1],
        shared_size=0 if experts.shared is None else experts.shared.down.shape[1],
        exact=exact,
        act=act,
        router=references.float_matrix(experts.router),
        router_bias=references.floats(experts.router_bias),
        experts=structs,
    )
    if experts.shared_router is not None:
        op.shared_router = references.float_matrix(experts.shared_router)
    return op


def _check(config: Moe, experts: Experts) -> None:
    router = config.router
    if config.identity_experts:
        raise CannotRecordError("no kernel has identity experts")
    if experts.project_in is not None:
        raise CannotRecordError("no kernel projects the input of experts")
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
