"""Names of operators and kernels as they stand in public traces and sources of both vendors, each with its kind."""

import pytest

from evaluate.timing.kinds import (
    COMPUTE,
    KINDS,
    PRIORITY,
    WORDS,
    kind_of_copy,
    kind_of_kernel,
    kind_of_launch,
    kind_of_operator,
    kind_of_range,
    kind_within,
)

KERNELS = {
    "matmul": (
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x",
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x3_tn_align8>(Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true>(Params)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1_AG0_CLR1",
        "Cijk_Ailk_Bjlk_SB_MT64x64x16_SE_1LDSB0_APM1_ABV0_K1",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_137kernel_gemm_xdl_cshuffle_v3INS_42GridwiseGemm_xdl_cshuffle_v3E",
        "triton_tem_fused_mm_t_3",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>(Params)",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(int, int, __hip_bfloat16 const*)",
        "_blockwise_fp8_unified_kernel",
        "kernel_cutlass_kernel_quackgemm_default_epiGemmDefaultSm90",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(Params)",
        "my_mm(float*)",
        "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, cudnn::reduced_divisor)",
        "void flip_filter<float, float>(float*, float const*, int, int, int, int)",
        "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)",
        # grouped: torch 2.10 (pytorch pull request 156203), Composable Kernel, Primus-Turbo, TransformerEngine
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm10<cutlass::gemm::kernel::GemmUniversal<"
        "cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int>>, cutlass::gemm::collective::CollectiveMma",
        "void ck_tile::kentry<1, ck_tile::GroupedGemmKernel<ck_tile::GemmSpatiallyLocalTilePartitioner>>(Params)",
        *("_grouped_variable_k_gemm_kernel", "setup_grouped_gemm_kernel(char*, long const*)"),
    ),
    "attention": (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 64, cutlass::bfloat16_t>>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Mainloop>>>(Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x128_4x1x1_kernel0_0",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
        "attn_fwd",
        "bwd_kernel_dk_dv",
        "bwd_kernel_dq",
        "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS_31BlockFmhaPipelineQRKSVSAsyncE",
        "aiter::fmha_bwd_hd128_bf16_causal_a32_rtne_psskddv",
        "void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_forward<__half, __half, 11>(Params)",
        "triton_tem_fused_flex_attention_0",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 3, 512, 0>(float const*, float const*)",
        "void cudnn::fusion::convert_dq_to_16bits<true, 4, 256, 0>(float*, void*)",
        "kernel_batched_gemm_softmax_gemm_xdl_cshuffle_v1",
        "kernel_cutlass_kernel_flash_attncuteflash_fwdFlashAttentionForwardSm90",
        "thd_lse_kernel",
    ),
    "optimizer": (
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float>(long, int*)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
        "FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false>>(Params)",
        "void multi_tensor_apply_kernel<transformer_engine::multi_tensor_adam::AdamFunctor<float, float, float, int>>",
    ),
    "communication_exposed": (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_hip_bfloat16_Simple_false",
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)",
        "void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int)",
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)",
        "void primus_turbo::deep_ep::intranode::dispatch<8, 1024>(HIP_vector_type<int, 4u>*, float*)",
        "void rs_acc_kernel<__hip_bfloat16>(float*, char const*, unsigned long)",
        "void hybrid_ep::combine_kernel<hybrid_ep::warp_group<1>, 16>(hybrid_ep::combine_kernel_param_t)",
        *(
            "void deep_ep::elastic::dispatch_impl<true, 8>(int)",
            "EpDispatchIntraNodeKernel_bf16",
            "ag_nvl_kernel(int*)",
        ),
        *("EpCombineAll_bf16", "void mori::collective::OneShotAll2allSdmaKernel<int>(int, int, int*)"),
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        *("consumer_batch_kernel(void*, int, int)", "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(int, int)"),
    ),
    "memory_bound": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::sqrt_kernel_cuda(Iter&)::{lambda()#2}>(int)",
        "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::direct_copy_kernel_cuda(Iter&)>(int)",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
        "triton_poi_fused__unsafe_view_mm_silu_2",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<cutlass::bfloat16_t>(Params)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>(float*)",
        "multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float, c10::BFloat16, 2, 1, 1>>",
        "void fbgemm_gpu::jagged_dense_elementwise_add_kernel<float>(Params)",
        # mangled: the parameters end with two of unsigned long
        "_ZN18transformer_engine12unary_kernelILi16ELb1EfNS_6detail5EmptyE12hip_bfloat1615te_hip_fp8_e4m3EEvPKT4_PT5_mm",
        "void transformer_engine::(anonymous namespace)::HadamardTransformKernel<__nv_bfloat16, 16, false, true>(T*)",
        "multi_tensor_swizzle_row_scaling_kernel<int4, 128, 4>(MultiSwizzleArgs)",
        "kernel_cutlass_kernel_quackrmsnormRMSNorm_object_at__tensorptrbf16gmemalign16",
        "kernel_cutlass_kernel_quackcross_entropyCrossEntropy_object_at__tensorptrbf16gmem",
        "void (anonymous namespace)::cuComputeGradInput<float, float, c10::BFloat16>(c10::BFloat16 const*)",
        "void cuComputePartGradGammaBeta<float, float, float>(float const*, float const*, int, int)",
        *("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", "_row_id_map_pass_1_kernel"),
        *("_unpermute_kernel", "_indices_to_multihot_kernel", "_make_chunk_sort_map_kernel", "moe_permute_kernel"),
        "void cuda::get_fused_mapping<512>(long const*, int*, int*)",
        "void transformer_engine::fused_router::fused_topk_with_score_function_forward_kernel<float>(float const*)",
        "void transformer_engine::fused_router::convert_accum_to_output<float>(float const*, float*)",
        *("moe_permute_row_map(int const*, int*, int)", "fused_scaling_group_sum_routing_backward_kernel"),
        *("_sort_chunks_by_map_kernel", "LocalExpertCountKernel", "mori_ConvertDispatchOutputKernel"),
    ),
    None: (
        *("_combined_routing_compute", "my_kernel", "", "void step::dispatch<8>(int)", "void mesh_step::combine(int)"),
        "kernel_cutlass_kernel_somebodysOperation_object_at_",
    ),
}
OPERATORS = {
    "matmul": (
        *("aten::mm", "aten::linear", "aten::addmm", "aten::bmm", "aten::matmul", "aten::_scaled_mm", "aten::einsum"),
        "autograd::engine::evaluate_function: AddmmBackward0",
        *("aten::_grouped_mm", "_GroupedLinear", "RouterGatingLinearFunction"),
        *("MmBackward0", "LinearWithGradAccumulationAndAsyncCommunicationBackward", "mkldnn::_linear_pointwise"),
    ),
    "attention": (
        "aten::scaled_dot_product_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        *("FlashAttnFunc", "FusedAttnFuncBackward", "aten::_efficient_attention_forward", "aiter::mha_fwd"),
    ),
    "optimizer": ("aten::_fused_adamw_", "aten::_foreach_mul_", "aten::_foreach_norm"),
    "communication_exposed": (
        *("c10d::allreduce_", "_c10d_functional::all_gather_into_tensor", "gloo:all_reduce", "record_param_comms"),
        *("nccl:reduce_scatter", "c10d::alltoall_base_", "FusedDispatch", "HybridEPCombineBackward"),
    ),
    "memory_bound": (
        *("aten::copy_", "aten::mul", "aten::native_layer_norm", "aten::embedding", "aten::_foreach_copy_", "detach"),
        *("fsdp::all_gather_copy_in", "MulBackward0", "aten::cat", "aten::cumsum"),
        *("aten::topk", "aten::index_add_", "FusedTopkScoreFunctionBackward", "_moe_permute_mask_map", "RandomSTE"),
    ),
    "idle": ("autograd::engine::evaluate_function: SomebodysBackward", "_CopyToModelParallelRegion"),
    None: ("SomebodysFunction", "fbgemm::permute", ""),
}


COPIES = {
    "host_copy": ("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)", "CopyDeviceToHost"),
    "memory_bound": ("Memcpy DtoD (Device -> Device)", "Memset (Device)"),
    "communication_exposed": ("Memcpy PtoP (Device -> Device)",),
}
RANGES = {  # only ranges of the optimizer and our own give a kind
    "optimizer": ("Optimizer.step#AdamW.step",),
    "attention": ("tprimat:attention",),
    None: ("ProfilerStep#3", "tprimat:lunch", "forward"),
}
TABLES = {kind_of_kernel: KERNELS, kind_of_operator: OPERATORS, kind_of_copy: COPIES, kind_of_range: RANGES}


@pytest.mark.parametrize(
    ("kind_of", "kind", "name"),
    [(kind_of, kind, name) for kind_of, table in TABLES.items() for kind, names in table.items() for name in names],
)
def test_a_kernel_operator_copy_or_range_has_the_kind_of_its_name(kind_of, kind, name):
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("kind_of", "first", "second", "kind"),
    [
        # what runs in the optimizer or in attention belongs to it, but not its communication
        (kind_within, "optimizer", "aten::mm", "optimizer"),
        (kind_within, "attention", "aten::bmm", "attention"),
        (kind_within, "matmul", "aten::copy_", "memory_bound"),
        # in attention the products with a weight are products, those of the scores are attention
        *((kind_within, "attention", name, "matmul") for name in ("aten::mm", "LinearWithGradAccumulationFP8")),
        *((kind_within, "attention", name, "attention") for name in ("aten::matmul", "aten::mul", "aten::_softmax")),
        (kind_of_launch, "nvjet_tst", "optimizer", "optimizer"),
        (kind_of_launch, "ncclDevKernel_AllGather_RING_LL", "optimizer", "communication_exposed"),
        # a kernel without a telling name has the kind of its operator
        (kind_of_launch, "my_kernel", "matmul", "matmul"),
        (kind_of_launch, "my_kernel", None, "unattributed"),
        (kind_of_launch, "my_kernel", "idle", "unattributed"),
    ],
)
def test_the_kind_also_follows_from_what_is_around(kind_of, first, second, kind):
    assert kind_of(first, second) == kind


@pytest.mark.parametrize(
    ("kernel", "operator", "kind"),
    [
        ("cutlass::device_kernel<GemmKernel>", "RopeLoraFlashAttnVarlenFunc", "matmul"),
        ("cutlass::device_kernel<GemmKernel>", "aten::bmm", "attention"),
        ("cutlass::device_kernel<GemmKernel>", "", "attention"),  # a range
        ("cutlass::device_kernel<flash::FlashAttnBwd>", "RopeLoraFlashAttnVarlenFunc", "attention"),
        ("_copy_tensor_kernel", "RopeLoraFlashAttnVarlenFunc", "attention"),
    ],
)
def test_a_gemm_that_an_attention_function_launches_is_a_product(kernel, operator, kind):
    assert kind_of_launch(kernel, "attention", operator) == kind


def test_every_kind_has_a_word_and_a_place():
    assert set(WORDS) == set(KINDS) == {*PRIORITY, "idle"}
    assert PRIORITY[: len(COMPUTE)] == COMPUTE
