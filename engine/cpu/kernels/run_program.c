/* Run programs: list the phases of a batch and give them to the pool. */
#include "op_kernels.h"

#include "pool.h"

enum { MAX_PHASES_PER_OP = 8 };

static const OpKernels *const op_kernels[NUM_OP_KINDS] = {
    [OP_EMBED] = &embed_kernels,
    [OP_NORM] = &norm_kernels,
    [OP_LINEAR] = &linear_kernels,
    [OP_ROTARY] = &rotary_kernels,
    [OP_ATTENTION] = &attention_kernels,
    [OP_ACT_AND_MUL] = &act_and_mul_kernels,
    [OP_ADD_SCALED] = &add_scaled_kernels,
    [OP_SOFTCAP] = &softcap_kernels,
    [OP_GATHER] = &gather_kernels,
    [OP_MOE] = &moe_kernels,
    [OP_LOW_RANK] = &low_rank_kernels,
    [OP_CONV] = &conv_kernels,
    [OP_DROP_COLUMNS] = &drop_columns_kernels,
    [OP_GATE] = &gate_kernels,
    [OP_GATED_DELTA] = &gated_delta_kernels,
    [OP_MAMBA2] = &mamba2_kernels,
    [OP_MAMBA] = &mamba_kernels,
};

/* The compiler's argument INTERFACE_DIGEST is a hash of the headers that Python reads. */
EXPORT uint64_t interface_digest(void) { return INTERFACE_DIGEST; }

EXPORT size_t program_workspace_bytes(const Program *program, int num_tokens, int num_logits) {
    size_t most = 0;
    for (const Op *op = program->ops; op < program->ops + program->num_ops; op++) {
        size_t nbytes =
            op_kernels[op->header.kind]->workspace_bytes(op, program->buffers, num_tokens, num_logits);
        if (nbytes > most) most = nbytes;
    }
    return most;
}

static size_t scratch_bytes(const Program *program, const Run *run) {
    size_t most = 0;
    for (const Op *op = program->ops; op < program->ops + program->num_ops; op++) {
        size_t nbytes = op_kernels[op->header.kind]->scratch_bytes(op, program->buffers, run->num_tokens,
                                                                   run->num_logits);
        if (nbytes > most) most = nbytes;
    }
    return most;
}

/* Compute all operations for the batch `run`. Return 0, or 1 if memory is out. */
EXPORT int run_program(Pool *pool, const Program *program, Run *run) {
    Phase *phases = pool_phases(pool, max_int(1, MAX_PHASES_PER_OP * program->num_ops));
    if (!phases) return 1;
    run->num_threads = min_int(max_int(1, run->num_threads), pool_size(pool));
    int n = 0;
    for (const Op *op = program->ops; op < program->ops + program->num_ops; op++) {
        const OpKernels *kernels = op_kernels[op->header.kind];
        int num_phases = min_int(kernels->num_phases(op, run), MAX_PHASES_PER_OP);
        for (int phase = 0; phase < num_phases; phase++)
            phases[n++] = (Phase){kernels, op, phase, kernels->num_chunks(op, run, phase)};
    }
    return pool_run(pool, run, n, scratch_bytes(program, run));
}

EXPORT void run_host_call(HostCall *call) {
    call->failed = run_program(call->pool, call->program, call->run);
}
