"""A call of the host in the middle of a stream: `kernels/moe/host_call.cu`."""

from dataclasses import dataclass

from torch import Tensor

from swiftchat.cuda.gpu import Gpu

MAILBOX_WORDS = 24
_THREADS = 512


@dataclass(frozen=True)
class HostChannel:
    """What a kernel and a thread of the host share: pinned memory, and a counter on the GPU.

    `mailbox` int64 [24] and `requests` int64 [1] are 0 at first. Calls of one channel must follow
    each other.
    """

    mailbox: Tensor
    requests: Tensor


def host_call(
    gpu: Gpu,
    channel: HostChannel,
    call: int,
    inputs: Tensor,
    host_inputs: Tensor,
    host_outputs: Tensor,
    outputs: Tensor,
) -> None:
    """Copy `inputs` to the host, let its thread make the call, and copy what it wrote to `outputs`.

    All are fp32 with a multiple of 4 elements; those of the host are pinned. `call` is what the
    thread takes from the mailbox. Without such a thread the kernel never ends.
    """
    if inputs.numel() % 4 or outputs.numel() % 4:
        raise ValueError("the kernel copies multiples of 4 elements")
    gpu.kernel("host_call")(
        1,
        _THREADS,
        inputs=inputs,
        host_inputs=host_inputs,
        host_outputs=host_outputs,
        outputs=outputs,
        mailbox=channel.mailbox,
        requests=channel.requests,
        call=call,
    )
