"""Terms of the memory of one device during training; `utils/memory/estimate.py` adds them up. Standard library only.

Each formula follows the code that allocates (megatron-core 0.16.1, transformers 5.23.0, accelerate 1.15.0, torch
2.13.0); tests/utils/memory/test_real_models.py compares it with real allocations; docs/memory.md shows the main ones.
Not covered: a window shorter than the sequence for mega on a GPU without TransformerEngine, where mask and grouped
queries together may leave torch only the backend that stores all attention weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from utils.frameworks import FRAMEWORKS
from utils.models import ModelSpec
from utils.settings.config import RunConfig

FP32_BYTES = 4
BF16_BYTES = 2


@dataclass(frozen=True)
class Stage:
    """One device of one pipeline stage; every property is in bytes unless stated otherwise."""

    config: RunConfig
    framework: str
    """`mega` or `hf`."""
    spec: ModelSpec
    stage: int
    """From 0."""

    @property
    def is_cpu(self) -> bool:
        """True if the device is a CPU."""
        return self.config.platform == "cpu"

    @property
    def is_mega(self) -> bool:
        """True if the framework is megatron-core."""
        return FRAMEWORKS[self.framework].has_megatron_layers

    @property
    def is_windowed(self) -> bool:
        """True if attention has a mask; without one a flag makes it causal, and nothing grows with SL squared.

        transformers makes a mask for a sequence as long as the window too (`_ignore_causal_mask_sdpa`).
        """
        window, length = self.spec.sliding_window, self.config.sequence_length
        if window is None:
            return False
        return window < length if self.is_mega else window <= length

    @property
    def is_fused(self) -> bool:
        """True if norms, activation and loss are one kernel each: in mega on a GPU, and in hf with liger's kernels.

        Liger's are not measured (liger_kernel/ops of liger-kernel 0.8.5).
        """
        if self.is_mega:
            return not self.is_cpu
        return self.config.hf_kernels == "liger"

    @property
    def has_output(self) -> bool:
        """True for the last stage: final norm, output layer and loss."""
        return self.stage == self.config.pipeline_parallel_size - 1

    @property
    def is_tied_here(self) -> bool:
        """True if embedding and output layer share one weight on this device.

        With several pipeline stages the last one has a copy of its own (megatron/core/models/common/language_module).
        """
        return self.spec.tie_word_embeddings and self.has_output and self.stage == 0

    @property
    def width(self) -> int:
        """Bytes of one number in the matrix multiplies."""
        return FP32_BYTES if self.config.precision == "fp32" else BF16_BYTES

    @property
    def optimizer_ranks(self) -> int:
        """Ranks over which mega's optimizer is split and hf's gradients are averaged."""
        return self.config.data_parallel_size * self.config.context_parallel_size

    @property
    def layers(self) -> int:
        """Number of layers of this stage."""
        return self.spec.num_layers // self.config.pipeline_parallel_size

    @property
    def layer_matrices(self) -> float:
        """Number of linear weights of one layer on this device."""
        hidden = self.spec.hidden_size
        attention = 2 * hidden * (self.spec.query_size + self.spec.key_value_size)
        # a mixture of experts has a router in place of the MLP
        mlp = hidden * self.spec.num_experts or 3 * hidden * self.spec.ffn_hidden_size
        return (attention + mlp) / self.config.tensor_parallel_size + self.expert_matrices

    @property
    def expert_matrices(self) -> float:
        """Number of weights of one layer's experts on this device; 0 without experts."""
        experts = self.spec.num_experts / self.config.expert_parallel_size
        return experts * 3 * self.spec.hidden_size * self.spec.ffn_hidden_size

    @property
    def layer_parameters(self) -> float:
        """Number of parameters of one layer on this device: linear weights, biases, two norms and those of heads."""
        count = self.layer_matrices + 2 * self.spec.hidden_size
        if self.spec.qkv_bias:
            biases = self.spec.query_size + 2 * self.spec.key_value_size
            count += biases / self.config.tensor_parallel_size
        if self.spec.query_key_norm:
            count += 2 * self.spec.head_dim
        return count

    @property
    def vocabulary_matrix(self) -> float:
        """Number of weights of the embedding, and of the output layer; tensor parallelism splits the vocabulary."""
        return self.spec.vocab_size * self.spec.hidden_size / self.config.tensor_parallel_size

    @property
    def parameters(self) -> float:
        """Number of parameters: layers, the embedding on the first stage, final norm and output layer on the last.

        A tied weight counts once on each device that holds it.
        """
        count = self.layers * self.layer_parameters
        if self.stage == 0:
            count += self.vocabulary_matrix
        if self.has_output:
            count += self.spec.hidden_size
            if not self.is_tied_here:
                count += self.vocabulary_matrix
        return count

    @property
    def bytes_per_parameter(self) -> tuple[float, float, float]:
        """Bytes per parameter of weights, gradients and optimizer.

        The optimizer (train/common/adamw.py) keeps two moments in OPTIMIZER_STATE, and for a bf16 weight the 16 bits
        that complete it to its float32 master. mega: `param_data` and `grad_data` of
        megatron/core/distributed/param_and_grad_buffer.py in GRADIENT_DTYPE; optimizer/distrib_optimizer.py splits the
        optimizer over the data-parallel ranks. hf on one device is the same. On several, FSDP2 splits everything and
        keeps float32 masters.
        """
        moments = 2 * (FP32_BYTES if self.config.optimizer_state == "fp32" else BF16_BYTES)
        # FSDP2 keeps float32 masters, whose copies in bf16 are temporary (weight_copies)
        if self.is_sharded:
            ranks = self.optimizer_ranks
            return FP32_BYTES / ranks, FP32_BYTES / ranks, moments / ranks
        remainder = FP32_BYTES - self.width
        gradient = FP32_BYTES if self.config.gradient_dtype == "fp32" else BF16_BYTES
        return self.width, gradient, (remainder + moments) / self.optimizer_ranks

    @property
    def optimizer(self) -> float:
        """Optimizer states. Those of an expert are split over the ranks that have it, fewer than all."""
        # each rank of a group of experts has other experts, so their states are split less often
        shares = self.parameters + (self.config.expert_parallel_size - 1) * self.layers * self.expert_matrices
        return self.bytes_per_parameter[2] * shares

    @property
    def is_sharded(self) -> bool:
        """True if FSDP2 splits weights, gradients and optimizer over the ranks."""
        return not self.is_mega and self.optimizer_ranks > 1

    @property
    def gradients(self) -> float:
        """Gradients. mega's buffer is always allocated. hf's grow during the first backward pass while activations are
        freed: with one micro batch per step only the excess over them is counted.
        """
        whole = self.bytes_per_parameter[1] * self.parameters
        if self.is_mega or self.config.gradient_accumulation > 1:
            return whole
        freed = self.activations + self.logits + self.weight_copies
        return max(whole - freed, 0.0)

    @property
    def tokens(self) -> int:
        """Number of tokens of a micro batch on this device."""
        return self.config.micro_batch_size * self.config.sequence_length // self.config.context_parallel_size

    @property
    def in_flight(self) -> int:
        """Number of micro batches kept at once by 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2)."""
        return min(self.config.pipeline_parallel_size - self.stage, self.config.gradient_accumulation)

    @property
    def activations(self) -> float:
        """Memory that layers and final norm keep for the backward pass, over all micro batches in flight.

        The method is that of Korthikanti et al., arXiv 2205.05198, section 4.1, for the layers that are built here.
        """
        of_micro_batch = self.layers * self.layer_kept
        if self.has_output:
            of_micro_batch += self.tokens * self.norm_bytes_per_token
        else:  # sent on, and kept until its gradient comes back
            of_micro_batch += self.tokens * self.width * self.spec.hidden_size
        if self.has_rotary_once:  # hf: cosine and sine; mega: the angles in float32
            each = FP32_BYTES if self.is_mega else 2 * self.width
            of_micro_batch += each * self.config.sequence_length * self.spec.head_dim
        return of_micro_batch * self.in_flight

    @property
    def has_rotary_once(self) -> bool:
        """True if all layers share what the rotary embedding keeps: in hf, and in the kernel of mega on a GPU."""
        return not self.is_mega or not self.is_cpu

    @property
    def layer_activations(self) -> float:
        """Memory that one layer keeps for one micro batch if nothing is computed again."""
        return self.tokens * self.layer_bytes_per_token + self.layer_bytes_per_sequence

    @property
    def layer_kept(self) -> float:
        """Memory that one layer keeps for one micro batch with RECOMPUTE.

        full: its input. selective: mega keeps all but the results of norms and activation function
        (train/mega/recompute.py); hf keeps its input, the results of linear layers and of attention
        (train/hf/model.py).
        """
        hidden, ffn, keys = self.spec.hidden_size, self.spec.ffn_hidden_size, self.spec.key_value_size
        query, mlps = self.spec.query_size, self.spec.experts_per_token or 1
        if self.config.recompute == "full":
            return float(self.tokens * self.width * hidden)
        if self.config.recompute == "none":
            return self.layer_activations
        if self.is_mega and self.spec.num_experts:
            return self.layer_activations - self.tokens * self.mlp_bytes_per_token
        if self.is_mega:
            again = 2 * hidden + ffn / self.config.tensor_parallel_size
            return self.layer_activations - self.tokens * self.width * again
        # QKV, attention, output, then gate, up and down of the MLPs, and the router
        results = (query + 2 * keys) + query + hidden + mlps * (2 * ffn + hidden) + self.spec.num_experts
        log_sum_exp = FP32_BYTES * self.spec.num_attention_heads
        return self.tokens * (self.width * (hidden + results) + log_sum_exp) + self.layer_bytes_per_sequence

    @property
    def norm_bytes_per_token(self) -> float:
        """Bytes that one RMSNorm and the linear layers that read its result keep.

        A fused kernel keeps its input and 1 / rms. Composed of torch operations, as transformers' own always is, the
        norm keeps its input in float32 and the normalised input: mega in float32, hf in the model's precision.
        """
        inside = self.width
        if not self.is_fused:
            inside = FP32_BYTES + (FP32_BYTES if self.is_mega else self.width)
        return (inside + self.width) * self.spec.hidden_size + FP32_BYTES

    @property
    def query_key_norm_bytes_per_token(self) -> float:
        """Bytes that the norms of queries and keys keep beside their results, of which the rotary embedding keeps none.

        Each keeps 1 / rms of every head and what the other norms keep of their input. mega's queries are a copy out of
        QKV; its keys are a view into QKV, which is kept anyway unless a composed norm makes a float32 copy.
        """
        if not self.spec.query_key_norm:
            return 0.0
        queries, keys = self.spec.query_size, self.spec.key_value_size
        inverse = FP32_BYTES * (self.spec.num_attention_heads + self.spec.num_query_groups)
        if self.is_fused:
            of_input, normalised = self.width, 0
        else:
            of_input = FP32_BYTES
            normalised = FP32_BYTES if self.is_mega else self.width
        kept = (of_input + normalised) * (queries + keys)
        if self.is_mega and of_input == self.width:  # no copy: the key is a view into what is kept anyway
            kept -= of_input * keys
        return kept + inverse

    @property
    def layer_bytes_per_token(self) -> float:
        """Memory kept by one layer. Tensor parallelism splits all but the norms (there is no sequence parallelism).

        Attention is flash or memory-efficient: inputs, result and log-sum-exp of each head, no attention weights.
        """
        query, keys = self.spec.query_size, self.spec.key_value_size
        norms = 2 * self.norm_bytes_per_token
        if self.is_mega:
            # QKV as one (the value is a view into it), rotated query and key, result
            attention = (query + 2 * keys) + query + keys + query
        else:
            # rotated query and key, value, result; transformers repeats keys and values if there is a mask
            if self.is_windowed:
                keys = query
            attention = query + 2 * keys + query
        in_heads = FP32_BYTES * self.spec.num_attention_heads + self.query_key_norm_bytes_per_token
        within = self.width * attention + self.mlp_bytes_per_token + in_heads
        return norms + within / self.config.tensor_parallel_size

    @property
    def mlp_bytes_per_token(self) -> float:
        """Memory that an MLP, or the router and the experts of a token, keep beside their input.

        Of experts: for each choice a copy of the token (hf also the expert's result), its place and its weight; for
        each expert the router's score and, in mega, whether it is chosen.
        """
        numbers = 3  # gate and up, their product
        if not self.is_fused:
            numbers += 1  # SiLU of the gate
            if self.is_mega:
                numbers += 1  # up + 0
        if not self.spec.num_experts:
            return self.width * numbers * self.spec.ffn_hidden_size
        if self.is_mega:
            copies, places, score = 1, 20, self.width + 1
            if not self.is_fused:
                numbers += 1  # the product before it is weighted
        else:
            copies, places, score = 2, 36, FP32_BYTES
        each = numbers * self.spec.ffn_hidden_size + copies * self.spec.hidden_size + 1
        return self.spec.experts_per_token * (self.width * each + places) + self.spec.num_experts * score

    @property
    def layer_bytes_per_sequence(self) -> float:
        """Memory kept by one layer for any MBS: mega's cosine and sine on a CPU, and the mask as numbers."""
        length = self.config.sequence_length
        kept = 0.0
        if not self.has_rotary_once:  # cosine and sine of query and key each
            kept += 4 * self.width * length * self.spec.head_dim
        # flash attention, which mega has on a GPU but not in fp32, knows the window without a mask
        has_flash = self.is_mega and not self.is_cpu and self.config.precision != "fp32"
        if self.is_windowed and not has_flash:
            masks = 1 if self.is_mega else self.config.micro_batch_size  # hf: one for each sequence
            kept += masks * self.width * length * length
        return kept

    @property
    def logits(self) -> float:
        """Logits at the fullest moment of the loss, 2 to 12 bytes each.

        mega in bf16 on a GPU has the logits once, and their gradient is written over them
        (train/mega/kernels.py). On a CPU and in fp32 it has the softmax, which megatron-core turns into the
        gradient in place and casts (megatron/core/tensor_parallel/cross_entropy.py). hf has log-softmax and two
        gradients at once, all float32 (transformers/loss/loss_utils.py); liger has the logits of a part of the tokens
        at a time, about as much as the hidden states, and from then on the gradients of hidden states and output layer.
        """
        if not self.has_output:
            return 0.0
        if not self.is_mega and self.is_fused:
            return self.width * (2 * self.tokens * self.spec.hidden_size + self.vocabulary_matrix)
        if not self.is_mega:
            each = 3 * FP32_BYTES
        elif self.config.precision == "fp32":
            each = FP32_BYTES  # the softmax
        elif self.is_fused:
            each = BF16_BYTES
        else:
            each = FP32_BYTES + BF16_BYTES  # softmax and its cast
        return each * self.tokens * self.spec.vocab_size / self.config.tensor_parallel_size

    @property
    def workspace(self) -> float:
        """Memory of the fullest of four moments beyond weights, gradients, states, activations and logits: the loss,
        and the backward passes of output layer, last layer and tied embedding. The optimizer's step needs less: it
        works in small chunks (train/common/adamw.py).
        """
        # the moments follow one another: the fullest counts, not their sum
        in_layer = self.layer_backward + self.tied_gradient
        in_embedding = 3 * self.tied_gradient - self.activations - self.weight_copies
        fullest = max(self.logits, self.loss_forward, self.output_backward, in_layer, in_embedding)
        return self.weight_copies + fullest - self.logits

    @property
    def loss_forward(self) -> float:
        """Logits and log-softmax of hf with FSDP2, and the output layer's weight as it was gathered, which FSDP2 keeps
        beside its copy in the weight's own shape until it gathers again."""
        if not self.is_sharded or self.is_fused:
            return 0.0
        each = 2 * FP32_BYTES
        if self.width == BF16_BYTES:
            each += BF16_BYTES
        return each * self.tokens * self.spec.vocab_size + self.width * self.vocabulary_matrix

    @property
    def weight_copies(self) -> float:
        """Copies of weights. mega in fp8: an fp8 copy of every layer's weights and its transpose (TransformerEngine;
        not measured here). hf with FSDP2: all weights, gathered for a micro batch (train/hf/model.py).
        """
        if self.is_mega and self.config.precision == "fp8":
            return 2 * self.layers * self.layer_matrices
        if self.is_sharded:
            return self.width * self.parameters
        return 0.0

    @property
    def gradient_width(self) -> int:
        """Bytes of one number of a weight's gradient before accumulation. FSDP2 reduces a float32 copy of it; on one
        device hf adds such a copy to the sum with GRADIENT_DTYPE=fp32.
        """
        is_cast = not self.is_mega and self.width < FP32_BYTES and self.config.gradient_dtype == "fp32"
        if self.is_sharded or is_cast:
            return self.width + FP32_BYTES
        return self.width

    @property
    def output_backward(self) -> float:
        """Gradients of logits, hidden states and the output layer's weight.

        hf: or, when the logits are gone, with the float32 copy of the weight's gradient, and with FSDP2 this rank's
        part of the result, when the gathered weight is gone too.
        """
        if not self.has_output:
            return 0.0
        hidden = self.width * self.tokens * self.spec.hidden_size
        logits = self.width * self.tokens * self.spec.vocab_size / self.config.tensor_parallel_size
        in_product = logits + self.width * self.vocabulary_matrix
        if self.is_mega:
            return in_product + hidden
        width: float = self.gradient_width
        if self.is_sharded:
            width += FP32_BYTES / self.optimizer_ranks - self.width
        return hidden + max(in_product, width * self.vocabulary_matrix)

    @property
    def tied_gradient(self) -> float:
        """Gradient of a tied weight from the output layer, which autograd holds until that of the embedding comes.

        Then the gradient of the embedding and the sum of both are in memory too.
        """
        return self.width * self.vocabulary_matrix if self.is_tied_here else 0.0

    @property
    def layer_backward(self) -> float:
        """Memory of the fullest moment of a layer's backward pass: gradients in the MLP, or copies of the tokens.

        Gradients: those of SwiGLU's product and of the weight before it (hf: of half of that weight, of experts those
        of a whole layer; with FSDP2: of all weights of the layer). Copies of a token for each of its experts: gradients
        of hf's results, or what mega's forward pass holds until its result is there: the tokens as they were sent, as
        they came (with EP) and the results of the experts, twice.

        With RECOMPUTE also the activations of the layer that are in memory again; mega's selective way computes one
        at a time, but the experts as a whole.
        """
        ffn = self.spec.ffn_hidden_size / self.config.tensor_parallel_size
        experts = self.spec.num_experts
        if self.is_sharded:
            weight = self.layer_parameters
        else:
            matrices = 2 if self.is_mega else 2 * experts or 1
            weight = ffn * self.spec.hidden_size * matrices
        choices = self.width * self.tokens * (self.spec.experts_per_token or 1)
        fullest = choices * ffn + self.gradient_width * weight
        if experts:
            copies = 3 if self.is_mega and self.config.expert_parallel_size == 1 else 4
            fullest = max(fullest, choices * copies * self.spec.hidden_size)
        # it computes one piece at a time, which is freed before the next
        if self.is_mega and self.config.recompute == "selective" and not experts:
            return fullest
        return fullest + self.layer_activations - self.layer_kept
