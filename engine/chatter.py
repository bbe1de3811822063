"""What healthy jobs print most: for measuring what rules cost, and for choosing literals that such text does not hold.

Out: `CHATTER`, name -> forms to fill in ({a} to {g} are numbers of different sizes); `STARTUP`, lines of a start in no order. Always
holds: written from what the sources print, with no line of anybody's log.
"""

from __future__ import annotations

CHATTER: dict[str, tuple[str, ...]] = {
    "nccl-info": (
        "node{a:03}:{b}:{c} [{d}] NCCL INFO Channel {e:02}/0 : {d}[{d}] -> {f}[{f}] via P2P/CUMEM/read\n",
        "node{a:03}:{b}:{c} [{d}] NCCL INFO Channel {e:02}/0 : {g}[{d}] -> {a}[{f}] [send] via NET/IB/{d}/GDRDMA\n",
        "node{a:03}:{b}:{c} [{d}] NCCL INFO Trees [0] {d}/-1/-1->{f}->{a} [1] {d}/-1/-1->{f}->{a}\n",
        "node{a:03}:{b}:{c} [{d}] NCCL INFO NET/IB : Using [0]mlx5_{d}:1/IB [1]mlx5_{f}:1/IB [RO]; OOB bond0:10.0.{a}.{d}<0>\n",
        "node{a:03}:{b}:{c} [{d}] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n",
        "node{a:03}:{b}:{c} [{d}] NCCL INFO threadThresholds 8/8/64 | {g}/8/64 | 512 | 512\n",
        "node{a:03}:{b}:{c} [{d}] NCCL INFO ncclCommInitRankConfig comm 0x{g:x}{b:x} rank {a} nranks 64 cudaDev {d} nvmlDev {d} "
        "busId {b:x} commId 0x{c:x}{g:x} - Init COMPLETE\n",
    ),
    "megatron": (
        " [2026-01-02 0{d}:{e:02}:{f:02}] iteration {g:8}/   61035 | consumed samples: {c:12} | elapsed time per iteration (ms): {b}.{d} | "
        "throughput per GPU (TFLOP/s/GPU): 41{d}.{e} | learning rate: 2.9{c}E-04 | global batch size:  1024 | lm loss: 2.{c}E+00 | loss scale: 1.0 | "
        "grad norm: 0.{b} | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
        "[Rank {a}] (after {g} iterations) memory (MB) | allocated: {b}.{c} | max allocated: {c}.{b} | reserved: {c}.0 | max reserved: {c}.0\n",
        "    forward-backward ...............................: ({b}.{e}, {b}.{f})\n"
        "    optimizer ......................................: ({e}.{b}, {f}.{b})\n",
    ),
    "tqdm": (
        "\rTraining:  {e:2}%|████▌     | {g}/61035 [{e:02}:{f:02}<1:{e:02}:{f:02},  {d}.{e:02}it/s, loss=2.{c}, lr=0.000{b}]",
        "\r {e:2}%|█▎        | {g}/61035 [{e:02}:{f:02}<{f:02}:{e:02}, {d}.{e:02}s/it]",
        "\rEpoch {d}:  {e:2}%|██████▊   | {g}/{c} [0{d}:{e:02}<0{d}:{f:02}, {d}.{e:02}it/s, v_num={a}, train_loss=1.{c}]",
        "\n",
    ),
    "frames": (
        '  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", line {b}, in _wrapped_call_impl\n'
        "    return self._call_impl(*args, **kwargs)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n",
        '[rank{a}]:   File "/workspace/train/step_{d}.py", line {g}, in forward_backward\n'
        "[rank{a}]:     loss = self.engine(batch, timeout=timeout, on_error=handle_error)\n",
        '  File "/usr/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line {b}, in wrapper\n'
        "    return f(*args, **kwargs)\n",
        "frame #{d}: c10d::ProcessGroupNCCL::WorkNCCL::WorkNCCL(c10::Device&, int) + 0x{c:x} (0x7f{c:x}{b:x} in /opt/conda/lib/libtorch_cuda.so)\n",
    ),
    "config": (
        "  distributed_timeout_minutes ..................... {e}\n  error_injection_rate ............................ 0\n"
        "  exit_on_missing_checkpoint ...................... False\n",
        '{{"num_layers": {e}, "hidden_size": {b}, "nccl_timeout": {g}, "abort_on_nan": false, "fail_fast": true, "seed": {c}}}\n',
        "export NCCL_IB_TIMEOUT={e} NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC={g} PYTHONFAULTHANDLER=1\n",
        "model.layers.{e}.self_attn.q_proj.weight: torch.Size([{b}, {c}]) dtype=torch.bfloat16 requires_grad=True\n",
        "    handlers: [error_file, console]; max_failures: {d}; preemption: {{signal: SIGTERM, grace: {g}}}; oom_score_adj: 0\n",
    ),
}

STARTUP = (
    "01/02/2026 03:04:05 - INFO - __main__ - Loading tokenizer and config from cache; Loading dataset",
    "INFO:__main__:Namespace(seed=42, output_dir='out', resume_from_checkpoint=None, dataset='c4')",
    "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1,2,3,4,5,6,7]",
    "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/16",
    "SLURM auto-requeueing enabled. Setting signal handlers.",
    "GPU available: True (cuda), used: True; TPU available: False, using: 0 TPU cores",
    ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "INTERVAL_START", "key": "init_start", "value": null, "metadata": {}}',
    "Downloading shards: 100%|##########| 2/2 [00:10<00:00,  5.01s/it]",
    "Loading checkpoint shards:   0%|          | 0/2 [00:00<?, ?it/s]",
    "evaluating HellaSwag: 12/80",
    "[Torch] Loading checkpoint from ckpt/global_step100/mp_rank_00_model_states.pt...",
    "Received a new configuration; Got 8 workers; communication backend nccl; communicator created",
    "Could not load the optional module apex, using the default; not found: tensorboard",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded",
    "You are using a model with a tokenizer class this function is not called from; special tokens have been added",
    "Using the GPU for the model; saved at: out/checkpoint-100; loaded checkpoint; loading from checkpoint; saving to disk",
    "https://huggingface.co/docs/transformers - WARNING - this will be deprecated in a future version, please use instead",
    "number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1234; training step; epoch; iteration; batch",
)
