"""The decoder's operations as the project's kernels; large GEMMs are cuBLAS's, through torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.cuda.ops.attention.copy_blocks import copy_blocks
from swiftchat.cuda.ops.layers.act_and_mul import KINDS, act_and_mul, sigmoid_gate
from swiftchat.cuda.ops.layers.embedding import embed, gather_rows
from swiftchat.cuda.ops.layers.norm import add_norm, norm
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.attention import AttentionKernels
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.latent_attention import LatentKernels
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.mixers.mix import MixerKernels
from swiftchat.engine.gpu.moe import ExpertKernels
from swiftchat.engine.gpu.per_layer import PerLayerKernels
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.kv_cache import KVCache, independent_copies
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.ops import AttentionInputs
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.engine.reference import activations
from swiftchat.engine.reference.elementwise import Elementwise
from swiftchat.engine.reference.moe import moe, shared_expert
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.parallel.tensor_parallel import Shard


class CudaOps(Elementwise):
    """The operations of a model, or of a rank's shard, on one GPU; see `Ops`.

    `experts` computes the experts of its layers; None: the GPU's kernels do.
    """

    def __init__(
        self,
        kernels: LinearKernels,
        shard: Shard,
        ctx_size_tokens: int,
        max_num_seqs: int,
        experts: ExpertKernels | None = None,
    ) -> None:
        config, gpu = shard.local_config, kernels.gpu
        # cuBLAS may otherwise add bf16 partial sums in bf16.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.gpu = gpu
        # Torch computes latent attention of long prompts.
        self.heads_first = config.attention.latent is None
        self.attention = AttentionKernels(gpu, shard, ctx_size_tokens, max_num_seqs)
        self.linear_workspace = kernels.workspace
        self._latent: LatentKernels | None = None
        if config.attention.latent is not None:
            self._latent = LatentKernels(gpu, shard, ctx_size_tokens)
        self.experts = experts or ExpertKernels(kernels, config)
        self.mixers = MixerKernels(gpu, config)
        self.norm_offset = float(config.norm.unit_offset and config.norm.kind == "rms")
        self.per_layer = PerLayerKernels(kernels, config, self.norm_offset)
        self.first_id = shard.vocab[0]  # of this rank's embeddings
        self._config = config

    def plan(self, batch: Batch, cache: KVCache) -> DeviceBatch:
        latents = None if self._latent is None else self._latent.plan(batch, cache)
        has_scans = self.mixers.scans
        return DeviceBatch.pack(batch, cache, self.gpu.device, has_scans=has_scans, latents=latents)

    def embed(self, plan: DeviceBatch, table: LinearWeight) -> Tensor:
        x = torch.empty(len(plan.ids), table.shape[1], device=self.gpu.device)
        (matrix,) = table.kernel_matrices
        embed(self.gpu, plan.ids, matrix, x, first_id=self.first_id)
        return x

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None and delta.dtype != weight.dtype:  # an MoE's is fp32
            x += delta
            delta = None
        out = torch.empty_like(x, dtype=weight.dtype)
        norm(
            self.gpu,
            x,
            weight,
            self._config.norm.eps,
            out,
            delta=delta,
            shift=bias,
            layer_norm=self._config.norm.kind == "layer",
            weight_offset=self.norm_offset,
        )
        return out

    def add_norm_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        eps = self._config.norm.eps
        add_norm(self.gpu, x, delta, weight, eps, weight_offset=self.norm_offset)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        return weight.matmul(x, bias)

    def attend(self, plan: DeviceBatch, qkv: Tensor, inputs: AttentionInputs) -> Tensor:
        if self._latent is not None:
            return self._latent.attend(plan, qkv, inputs, self.attention.cos_sin(inputs.layer))
        q = self.attention.rotate(plan, qkv, inputs)
        out, split = q.new_empty(q.shape), plan.num_decode
        if plan.decode is not None:
            self.attention.decode(q[:split], inputs, plan.decode, out[:split])
        if plan.prefill is not None:
            self.attention.prefill(q[split:], inputs, plan.prefill, out[split:])
        return out.view(len(qkv), -1)

    def store(self, plan: DeviceBatch, qkv: Tensor, inputs: AttentionInputs) -> None:
        if self._latent is not None:
            self._latent.store(plan, qkv, inputs, self.attention.cos_sin(inputs.layer))
        else:
            self.attention.rotate(plan, qkv, inputs)

    def mix(
        self, plan: DeviceBatch, layer: int, x: Tensor, mixer: MixerWeights, ranks: Communicator
    ) -> Tensor:
        projected = mixer.project_in.matmul(x, mixer.project_in_bias)
        out = self.mixers.mix(plan, layer, projected, mixer, ranks)
        return mixer.project_out.matmul(out, mixer.project_out_bias)

    def gate(self, x: Tensor, scores: Tensor, *, softplus: bool = False) -> Tensor:
        if softplus or scores.stride(0) * scores.itemsize % 16:
            return super().gate(x, scores, softplus=softplus)
        sigmoid_gate(self.gpu, x, scores)
        return x

    @property
    def _computes_activation(self) -> bool:
        """Whether the kernels compute the activation of MLPs, with its gate if it has one."""
        activation = self._config.activation
        is_plain = activation.limit is None and activation.scale == 1.0
        return is_plain and activation.kind in KINDS

    @property
    def gate_activation(self) -> str | None:
        """The activation of the gates of MLPs, if there are gates and the kernels compute it."""
        activation = self._config.activation
        return activation.kind if activation.gated and self._computes_activation else None

    def act_and_mul(self, gate_up: Tensor) -> Tensor:
        activation = self._config.activation
        if not self._computes_activation:
            return activations.act_and_mul(gate_up, activation)
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // (2 if activation.gated else 1))
        act_and_mul(self.gpu, gate_up, out, activation.kind, gated=activation.gated)
        return out

    def per_layer_embeddings(
        self, plan: DeviceBatch, x: Tensor, table: PerLayerTable
    ) -> Sequence[Tensor]:
        return self.per_layer.embeddings(plan.ids, x, table)

    def per_layer_branch(self, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
        return self.per_layer.branch(x, own, branch)

    def moe(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        if not self.experts.support(layer, experts):
            config = self._config.layers[layer].moe
            assert config is not None
            return moe(x, experts, config, self, router_input)
        out = self.experts.compute(layer, x, experts, router_input)
        shared = shared_expert(x, experts, self)
        return out if shared is None else out.add_(shared)

    def computes_experts(self, layers: Sequence[LayerWeights]) -> bool:
        """Return whether the kernels compute the experts of all layers, without the host."""
        moe_layers = [(i, layer.experts) for i, layer in enumerate(layers) if layer.experts]
        return all(self.experts.support(*each) for each in moe_layers)

    def logits_rows(self, plan: DeviceBatch, x: Tensor) -> Tensor:
        if plan.logits_indices is None:
            return x
        if x.shape[1] * x.itemsize % 4:
            return x[plan.logits_indices]
        words = x.view(torch.float32)  # the kernel copies 4-byte words
        out = words.new_empty(len(plan.logits_indices), words.shape[1])
        gather_rows(self.gpu, words, plan.logits_indices, out)
        return out.view(x.dtype)

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        for together in independent_copies(copies):
            pairs = torch.tensor(together, dtype=torch.int32, device=self.gpu.device)
            for tensor in cache.tensors:
                copy_blocks(self.gpu, tensor, pairs)
